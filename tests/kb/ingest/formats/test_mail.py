import base64
from email.message import EmailMessage

import pytest

from kb.ingest.formats.mail import read_mail
from kb.ingest.formats.text import decode_mislabelled
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError, Section

SENTENCE = "退货须在七天之内提出，运费由卖家承担。"
TRADITIONAL = "退貨須在七天之內提出，運費由賣家負擔。"


def mail(*headers, body=b"hi"):
    return b"\r\n".join([*(each if isinstance(each, bytes) else each.encode() for each in headers), b"", body])


def mixed(*parts):
    """Each part is its headers, a blank line and its content."""
    inner = b"".join(b"--x\r\n" + (part if isinstance(part, bytes) else part.encode()) + b"\r\n" for part in parts)
    return mail("Subject: s", "Content-Type: multipart/mixed; boundary=x", body=inner + b"--x--\r\n")


def text_of(data):
    return parse(data, "a.eml").sections[0].text


def word(text, charset, way="B"):
    data = text.encode(charset)
    coded = base64.b64encode(data).decode() if way == "B" else "".join(f"={byte:02X}" for byte in data)
    return f"=?{charset}?{way}?{coded}?="


def names(data):
    return [attachment.name for attachment in read_mail(data).attachments]


def test_the_headers_are_lines_above_the_body_and_metadata():
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "退货规则", "张三 <a@b.com>", "c@d.com, e@f.com"
    message["Date"] = "Tue, 05 Mar 2024 09:12:00 +0800"
    message.set_content(f"{SENTENCE}\n\n> 多久？\n")
    document = parse(message.as_bytes(), "a.eml")
    assert document.title == "退货规则"
    assert document.sections == (
        Section(
            "退货规则\n\n发件人：张三 <a@b.com>\n收件人：c@d.com, e@f.com\n日期：2024-03-05 09:12 +0800\n\n"
            f"{SENTENCE}\n\n> 多久？",
            None,
            ("退货规则",),
        ),
    )
    assert document.metadata == {"from": "张三 <a@b.com>", "to": "c@d.com, e@f.com", "date": "2024-03-05T01:12:00Z"}
    assert document.mime == "message/rfc822"


def test_a_mail_in_english_has_english_labels():
    assert text_of(mail("Subject: Returns", "From: Ann <a@b.com>")) == "Returns\n\nFrom: Ann <a@b.com>\n\nhi"


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [
        *(
            ("gb2312", "gbk"),
            ("gbk", "gbk"),
            ("big5", "gbk"),
            ("us-ascii", "gbk"),
            ("iso-8859-1", "gbk"),
            ("utf-8", "gbk"),
        ),
        *(("gb2312", "big5"), ("big5", "big5"), ("", "big5"), ("gb2312", "utf-8"), ("x-unknown", "gb18030")),
    ],
)
def test_chinese_is_read_whatever_the_label_says(declared, encoding):
    sentence = TRADITIONAL if encoding == "big5" else f"{SENTENCE}朱镕基"[: len(SENTENCE) + 3]
    data = mail(f"Content-Type: text/plain; charset={declared}", body=sentence.encode(encoding))
    assert text_of(data) == sentence


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("für naïve Größe", "iso-8859-1"),
        ("Привет, возврат", "koi8-r"),
        ("返品は七日以内", "iso-2022-jp"),
        ("“quoted”", "cp1252"),
    ],
)
def test_other_languages_are_read_as_labelled(text, encoding):
    assert text_of(mail(f"Content-Type: text/plain; charset={encoding}", body=text.encode(encoding))) == text


def test_a_text_that_was_cut_within_a_character_is_read():
    assert decode_mislabelled(SENTENCE.encode()[:-1], "utf-8").startswith(SENTENCE[:-1])
    assert decode_mislabelled(SENTENCE.encode("gbk")[:-1], "gb2312").startswith(SENTENCE[:-1])


@pytest.mark.parametrize("way", ["B", "Q"])
def test_encoded_words_are_decoded_also_where_a_character_is_divided(way):
    data = "退货规则".encode("gbk")
    halves = [base64.b64encode(half).decode() for half in (data[:3], data[3:])]
    assert parse(mail(f"Subject: =?GB2312?B?{halves[0]}?=\r\n =?gb2312?B?{halves[1]}?="), "a.eml").title == "退货规则"
    assert parse(mail(f"Subject: Re: {word('退货', 'utf-8', way)} ok"), "a.eml").title == "Re: 退货 ok"


def test_bare_bytes_in_headers_are_decoded():
    assert parse(mail(b"Subject: " + "退货规则".encode("gbk")), "a.eml").title == "退货规则"


@pytest.mark.parametrize(
    "header",
    [
        f'Content-Type: application/pdf; name="{word("合同.pdf", "gbk")}"',
        "Content-Disposition: attachment; filename*=GBK''%BA%CF%CD%AC.pdf",
        "Content-Disposition: attachment; filename*0*=utf-8''%E5%90%88; filename*1*=%E5%90%8C.pdf",
        'Content-Disposition: attachment; filename="合同.pdf"'.encode("gbk"),
        'Content-Disposition: attachment; filename="C:\\合同.pdf"'.encode(),
    ],
    ids=["words", "RFC 2231", "in pieces", "bare GBK", "a path"],
)
def test_names_of_attachments(header):
    header = header if isinstance(header, bytes) else header.encode()
    assert names(mixed("Content-Type: text/plain\r\n\r\nhi", header + b"\r\n\r\nA")) == ["合同.pdf"]


def test_pictures_that_the_text_shows_and_signatures_are_no_attachments():
    data = mixed(
        'Content-Type: text/html\r\n\r\n<p>看图 <img src="cid:one"></p>',
        "Content-Type: image/png; name=one.png\r\nContent-ID: <one>\r\nContent-Disposition: attachment\r\n\r\nA",
        "Content-Type: image/png\r\nContent-ID: <two>\r\nContent-Disposition: inline\r\n\r\nA",
        "Content-Type: image/png; name=three.png\r\nContent-Disposition: attachment\r\n\r\nA",
        "Content-Type: application/pkcs7-signature; name=smime.p7s\r\n\r\nA",
        "Content-Type: text/calendar\r\n\r\nBEGIN:VCALENDAR",
    )
    assert names(data) == ["three.png"]
    assert parse(data, "a.eml").attachments == 1


def test_a_mail_within_a_mail_is_an_attachment_named_by_its_subject():
    inner = mail(f"Subject: {word('转发', 'utf-8')}", body=SENTENCE.encode())
    [attachment] = read_mail(mixed(b"Content-Type: message/rfc822\r\n\r\n" + inner)).attachments
    assert attachment.name == "转发.eml"
    assert SENTENCE in text_of(attachment.data())


def test_html_is_read_where_there_is_no_text_or_none_to_speak_of():
    page = f"<h1>通知</h1><p>{SENTENCE * 9}</p><blockquote>早先的邮件</blockquote>"
    html = f"Content-Type: text/html; charset=utf-8\r\n\r\n{page}"
    both = "Content-Type: multipart/alternative; boundary=y\r\n\r\n--y\r\nContent-Type: text/plain\r\n\r\n{}\r\n--y\r\n{}\r\n--y--"
    expected = f"通知\n\n{SENTENCE * 9}\n\n早先的邮件"
    for data in (mixed(html), mixed(both.format("Use a program that shows HTML.", html))):
        sections = parse(data, "a.eml").sections
        assert [section.text for section in sections] == ["s", expected]
        assert sections[1].heading_path == ("s", "通知")
    [section] = parse(mixed(both.format("x" * 80, html)), "a.eml").sections
    assert section.text == f"s\n\n{'x' * 80}"


def test_lines_that_the_mail_program_broke_are_joined():
    body = b"a long line \r\nthat goes on\r\n> quoted \r\n> more\r\n-- \r\nAnn"
    data = mail("Subject: f", "Content-Type: text/plain; format=flowed", body=body)
    assert text_of(data) == "f\n\na long line that goes on\n> quoted more\n--\nAnn"


def test_a_mail_that_was_cut_off_is_read():
    data = mail("Subject: s", 'Content-Type: multipart/mixed; boundary="x"', body=SENTENCE.encode())
    assert SENTENCE in text_of(data)


def test_a_mail_with_bytes_that_no_text_holds_is_read():
    part = b"Content-Disposition: attachment; filename=a.bin\r\nContent-Transfer-Encoding: binary\r\n\r\n" + bytes(
        range(256)
    )
    assert text_of(mixed("Content-Type: text/plain\r\n\r\nhi", part)) == "s\n\nhi"


def test_a_file_that_is_only_named_as_a_mail_is_text():
    assert parse("没有邮件头。".encode(), "a.eml").sections == (Section("没有邮件头。"),)


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (mail("Content-Type: application/pkcs7-mime; smime-type=enveloped-data"), "S/MIME"),
        (mail("Content-Type: multipart/encrypted; boundary=x"), "PGP"),
        (mail("Subject: s", body=b"-----BEGIN PGP MESSAGE-----\r\nabc"), "PGP"),
    ],
)
def test_an_encrypted_mail_says_so(data, form):
    with pytest.raises(ParseError) as caught:
        parse(data, "a.eml")
    assert (caught.value.code, caught.value.params) == ("encrypted_mail", {"form": form})
