from datetime import UTC, datetime

import pytest

from kb.ingest.formats.mail import read_mail as read_mime
from kb.ingest.formats.msg import read_mail
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError, Section
from tests.kb.ingest.formats.outlook import make_msg

SENTENCE = "退货须在七天之内提出。"
INNER = {"subject": "内部邮件", "body": "里面的正文。", "attachments": [("x.txt", b"deep")]}


def test_the_properties_of_an_outlook_mail_are_read():
    data = make_msg(
        "退货规则",
        SENTENCE,
        sender=("张三", "a@b.com"),
        to=[("李四", "c@d.com"), ("e@f.com", "e@f.com")],
        cc=[("Ann", "ann@x.com")],
        date=datetime(2024, 3, 5, 1, 12, tzinfo=UTC),
    )
    document = parse(data, "a.msg")
    assert document.title == "退货规则"
    head = (
        "发件人：张三 <a@b.com>\n收件人：李四 <c@d.com>, e@f.com\n抄送：Ann <ann@x.com>\n日期：2024-03-05 01:12 +0000"
    )
    assert document.sections == (Section(f"退货规则\n\n{head}\n\n{SENTENCE}", None, ("退货规则",)),)
    assert document.metadata["date"] == "2024-03-05T01:12:00Z"
    assert document.mime == "application/vnd.ms-outlook"


def test_it_is_known_by_its_bytes_whatever_its_name_and_whatever_is_attached():
    word = "WordDocument".encode("utf-16-le") * 300
    assert parse(make_msg("s", SENTENCE, attachments=[("a.doc", word)]), "a.doc").attachments == 1


def test_texts_and_html_in_a_code_page_are_read():
    data = make_msg("退货", html=f"<p>{SENTENCE}</p>".encode("gbk"), narrow="gbk", codepage=936)
    assert parse(data, "a.msg").sections[0].text == f"退货\n\n{SENTENCE}"


def test_attachments_and_mails_within_it():
    mail = read_mail(make_msg("s", "b", attachments=[("合同.csv", b"a,b"), ("", INNER)]))
    assert [attachment.name for attachment in mail.attachments] == ["合同.csv", "内部邮件.eml"]
    assert mail.attachments[0].data() == b"a,b"
    inner = read_mime(mail.attachments[1].data())
    assert (inner.subject, inner.bodies) == ("内部邮件", (("里面的正文。", ""),))
    assert [(attachment.name, attachment.data()) for attachment in inner.attachments] == [("x.txt", b"deep")]


def test_a_mail_within_it_is_the_same_file_each_time():
    first, second = (read_mail(make_msg("s", attachments=[("", INNER)])).attachments[0].data() for _ in range(2))
    assert first == second


def test_a_large_body_is_read():
    assert parse(make_msg("s", "长" * 100_000), "a.msg").sections[0].text.count("长") == 100_000


def test_an_encrypted_mail_says_so_and_a_signed_one_is_read():
    with pytest.raises(ParseError, match="encrypted"):
        parse(make_msg("s", kind="IPM.Note.SMIME", attachments=[("smime.p7m", b"x")]), "a.msg")
    signed = b"Content-Type: multipart/signed; boundary=x\r\n\r\n--x\r\nContent-Type: text/plain\r\n\r\nhello\r\n--x--"
    data = make_msg("s", kind="IPM.Note.SMIME.MultipartSigned", attachments=[("smime.p7m", signed)])
    assert parse(data, "a.msg").sections[0].text == "s\n\nhello"


@pytest.mark.parametrize("cut", [600, 1_500, 3_000])
def test_a_damaged_mail_is_refused(cut):
    with pytest.raises(ParseError) as caught:
        parse(make_msg("s", SENTENCE * 1_000)[:cut], "a.msg")
    assert caught.value.code in {"damaged_file", "unsupported_type", "binary_content"}
