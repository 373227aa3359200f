import pytest

from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError, Section

PARAGRAPH = "本公司在收到货物之后的七天之内办理退款，逾期不予受理，请您保留好发票、收据以及其他凭证以备查验。"


def read(markup):
    return parse(markup.encode() if isinstance(markup, str) else markup, "a.html")


def all_text(markup):
    return "\n\n".join(section.text for section in read(markup).sections)


def article(body):
    return f"<html><head><title>页面</title></head><body><article>{body}</article></body></html>"


def test_the_main_content_is_kept_and_the_navigation_is_not():
    page = f"""<html><head><title>退款政策</title></head><body>
    <nav><a href=/a>首页</a> <a href=/b>关于我们</a></nav>
    <article><h1>退款政策</h1>{f"<p>{PARAGRAPH}</p>" * 6}</article>
    <footer>版权所有</footer></body></html>"""
    text = all_text(page)
    assert PARAGRAPH in text
    assert "首页" not in text
    assert "版权所有" not in text


def test_headings_become_paths():
    body = f"<h1>手册</h1><p>{PARAGRAPH}</p><h2>退款</h2><p>{PARAGRAPH}</p><h2>换货</h2><p>{PARAGRAPH}</p>"
    paths = [section.heading_path for section in read(article(body)).sections]
    assert paths == [("手册",), ("手册", "退款"), ("手册", "换货")]


@pytest.mark.parametrize("long", [True, False], ids=["main content", "all visible text"])
def test_tables_lists_breaks_and_code_keep_their_shape(long):
    body = (
        "<table><tr><th>商品</th><th>期限</th></tr><tr><td>手机</td><td>7天</td></tr></table>"
        "<ul><li>第一项说明</li><li>第二项说明</li></ul><p>上行<br>下行</p>"
        "<pre><code>def f():\n    return 1</code></pre>"
    )
    text = all_text(article(f"<p>{PARAGRAPH}</p>" * 6 + body) if long else body)
    for expected in (
        "| 商品 | 期限 |\n| --- | --- |\n| 手机 | 7天 |",
        "第一项说明\n第二项说明",
        "上行\n下行",
        "def f():\n    return 1",
    ):
        assert expected in text


def test_all_visible_text_is_kept_when_little_of_it_is_an_article():
    page = "<body><div>甲公司</div><div><span>电话</span> <b>123</b></div><aside>地址：北京</aside></body>"
    text = all_text(page)
    for expected in ("甲公司", "电话 123", "地址：北京"):
        assert expected in text


def test_hidden_text_is_not_visible_text():
    page = (
        "<body><p>看得见</p><script>var a</script><style>p{}</style><div hidden>藏一</div>"
        '<div style="display: none">藏二<p>藏三</p></div>尾<!-- 藏四 --></body>'
    )
    assert all_text(page) == "看得见\n\n尾"


def test_a_merged_cell_stands_in_each_place_that_it_covers():
    table = (
        "<table><tr><th rowspan=2>型号</th><th colspan=2>价格</th></tr><tr><td>元</td><td>美元</td></tr>"
        "<tr><td>甲</td><td>1</td><td>2</td></tr></table><p>下文</p>"
    )
    assert (
        all_text(table) == "| 型号 | 价格 | 价格 |\n| --- | --- | --- |\n| 型号 | 元 | 美元 |\n| 甲 | 1 | 2 |\n\n下文"
    )


def test_tables_side_by_side_stay_apart():
    found = all_text(
        "<table><tr><th>A<th>B</tr><tr><td>1<td rowspan=9>2</tr></table><table><tr><th>C<th>D</tr><tr><td>3<td>4</tr></table>"
    )
    assert found == "| A | B |\n| --- | --- |\n| 1 | 2 |\n\n| C | D |\n| --- | --- |\n| 3 | 4 |"


def test_equal_cells_of_a_table_that_lays_out_a_page_stay():
    found = all_text(f"<table><tr><td>{'很长的一段正文。' * 80}</td><td>是</td><td>是</td></tr></table>")
    assert found.count("\n是") == 2


def test_a_table_that_lays_out_a_page_is_text():
    long = "很长的一段正文。" * 80
    assert (
        all_text(f"<table><tr><td>导航</td><td><p>{long}</p><p>第二段</p></td></tr></table>")
        == f"导航\n\n{long}\n第二段"
    )


@pytest.mark.parametrize("span", ["0", "-1", "x", "9" * 5_000, "²", ""], ids=["0", "-1", "x", "9s", "²", "none"])
def test_a_span_that_cannot_be_costs_nothing(span):
    row = f'<tr><td colspan="{span}" rowspan="{span}">甲</td><td>乙</td></tr><tr><td>丙</td><td>丁</td></tr>'
    found = all_text(f"<table>{row}</table>")
    assert all(each in found for each in "甲乙丙丁")
    assert len(found) < 5_000


def test_spans_upon_spans_do_not_make_a_page_grow_without_bound():
    cell = f'<td colspan="99" rowspan="99">{"字" * 90}</td>'
    page = f"<table>{f'<tr>{cell * 200}</tr>' * 3}{'<tr></tr>' * 200}</table>"
    assert len(all_text(page)) < 60 * len(page)


def test_text_around_nested_rows_stays():
    page = "<table><tr><td><p>一</p><p>二</p></td><td><table><tr><td>三</td></tr></table></td><td></td></tr></table>"
    assert all_text(page).split() == ["一", "二", "|", "三"]


def test_words_in_inline_elements_stay_together():
    assert all_text("<p>re<b>triev</b>al of\n  <i>text</i>\n<a>now</a></p>") == "retrieval of text now"


def test_a_source_line_end_between_chinese_characters_is_no_space():
    assert all_text("<p>中文\n   换行</p>") == "中文换行"


def test_the_title_is_the_pages_or_the_first_headings():
    assert read("<title> 页面标题 </title><h1>别的</h1><p>正文").title == "页面标题"
    assert read('<meta property="og:title" content="分享标题"><title>站点</title><p>正文').title == "分享标题"
    assert read("<title> </title><h1>大标题</h1><p>正文").title == "大标题"
    assert read("<p>正文").title == "a"


@pytest.mark.parametrize("charset", ["gb2312", "GBK", "gb18030", "big5"])
def test_the_declared_charset_is_honoured(charset):
    page = f'<html><head><meta charset="{charset}"><title>文</title></head><body><p>中文正文內容</p></body></html>'
    encoding = "gb18030" if charset != "big5" else "big5"
    assert all_text(page.encode(encoding)) == "中文正文內容"


def test_the_charset_of_an_old_meta_element_is_honoured():
    page = '<meta http-equiv="Content-Type" content="text/html; charset=windows-1252"><p>caf\xe9'
    assert all_text(page.encode("cp1252")) == "café"


def test_an_undeclared_gbk_page_is_read():
    assert all_text("<p>中文正文内容</p>".encode("gbk")) == "中文正文内容"


def test_a_utf_16_page_is_read():
    assert all_text("\ufeff<html><body><p>中文正文</p></body></html>".encode("utf-16-le")) == "中文正文"


def test_a_declaration_of_encoding_in_xhtml_does_no_harm():
    assert all_text('<?xml version="1.0" encoding="gbk"?><html><body><p>正文</p></body></html>') == "正文"


@pytest.mark.parametrize("page", ["<html></html>", "<!-- only -->", "<html><body><script>x</script></body></html>"])
def test_a_page_without_text_is_empty(page):
    with pytest.raises(ParseError) as caught:
        read(page)
    assert caught.value.code == "empty_file"


def test_deep_nesting_loses_no_text():
    assert all_text("<div>" * 1000 + "深处" + "</div>" * 1000 + "<p>尾部</p>") == "深处\n\n尾部"


def test_lists_nested_beyond_what_trafilatura_walks_lose_no_text():
    outside = f"<p>{PARAGRAPH * 10}</p>"
    assert "深处" in all_text(article(outside + "<ul><li>" * 900 + f"深处{outside}" + "</li></ul>" * 900))


def test_nesting_that_the_parser_would_cut_is_refused():
    with pytest.raises(ParseError) as caught:
        read("<div>" * 50_000 + "深处" + "</div>" * 50_000)
    assert caught.value.code == "nested_too_deeply"


def test_entities_are_resolved():
    assert all_text("<p>A&amp;B&nbsp;&lt;C&gt;</p>") == "A&B <C>"


def test_sections_carry_no_page():
    assert read("<p>正文</p>").sections == (Section("正文", None, ()),)


def test_a_page_of_one_article_keeps_its_headings_where_the_extraction_loses_them():
    page = f"<html><body><h1>总则</h1><p>{'一段很长的文字。' * 60}</p><h2>退货</h2><p>七天内。</p></body></html>"
    assert [section.heading_path for section in parse(page.encode(), "a.html").sections] == [
        ("总则",),
        ("总则", "退货"),
    ]
