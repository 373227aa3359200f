import pytest
from django.core.files.base import ContentFile

from kb.models import Document
from kb.services.batch_files import batch_add
from kb.services.batch_tables import batch_describe, read_table
from kb.services.batches import batch_create
from kb.services.errors import Rejected
from tests.factories import make_kb

pytestmark = pytest.mark.usefixtures("english")


def test_a_table_is_read_with_further_columns_as_metadata():
    table = 'filename,title,tags,metadata,year\n./law\\a.txt,民法,"civil; 合同","{""court"": ""最高""}",2020\n,,,,\n'.encode()
    [row] = read_table(table)
    assert (row.name, row.title, row.tags) == ("law/a.txt", "民法", ("civil", "合同"))
    assert row.metadata == {"court": "最高", "year": 2020}


def test_a_column_of_numbers_compares_as_numbers():
    table = b"filename,year,price,code,version,size\na.txt,2020,-1.5,007,1.10,3\nb.txt,,2,8,1.9,3 kg\n"
    first, second = read_table(table)
    assert first.metadata == {"year": 2020, "price": -1.5, "code": "007", "version": "1.10", "size": "3"}
    assert second.metadata == {"price": 2, "code": "8", "version": "1.9", "size": "3 kg"}


def test_a_table_in_gb18030_is_read():
    assert read_table("filename,title\na.txt,合同法\n".encode("gb18030"))[0].title == "合同法"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (b"name,title\na.txt,x\n", "column “filename”"),
        (b"filename,metadata\na.txt,[1]\n", "Line 2"),
        (b"filename,metadata\na.txt,{\n", "Line 2"),
        (b"filename,title\na.txt,x,y\n", "more cells"),
        (b"filename,tags\na.txt," + b"x" * 61 + b"\n", "too long"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"", "column “filename”"),
    ],
)
def test_a_table_that_cannot_be_taken_says_why(table, words):
    with pytest.raises(Rejected, match=words):
        read_table(table)


@pytest.mark.django_db
def test_a_table_describes_files_that_come_after_it_and_those_that_are_here():
    kb = make_kb()
    batch = batch_create(knowledge_base=kb, name="laws", user=kb.owner)
    batch_add(batch, ContentFile(b"first"), "law/a.txt", user=kb.owner)
    table = "filename,title,tags,year\nlaw/a.txt,甲,x,2020\nb.txt,乙,,2021\n".encode()

    assert batch_describe(batch, read_table(table)) == 1
    batch_add(batch, ContentFile(b"second"), "law/b.txt", user=kb.owner)

    rows = Document.objects.order_by("pk").values_list("title", "tags", "metadata")
    assert list(rows) == [
        ("甲", ["x"], {"path": "law/a.txt", "year": 2020}),
        ("乙", [], {"path": "law/b.txt", "year": 2021}),
    ]
