import time

import pytest
from django.core.files.base import ContentFile

from kb.base.errors import Rejected
from kb.ingest.services.batches import batch_add, batch_cancel, batch_create
from kb.ingest.services.tables import batch_describe, read_table
from kb.models import Document
from tests.factories import make_kb

pytestmark = pytest.mark.usefixtures("english")


def test_a_table_is_read_with_further_columns_as_metadata():
    table = 'filename,title,tags,metadata,year\n./law\\a.txt,民法,"civil; 合同","{""court"": ""最高""}",2020\n,,,,\n'.encode()
    [row] = read_table(table)
    assert (row.name, row.title, row.tags) == ("law/a.txt", "民法", ["civil", "合同"])
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
        (b"filename\n" + b"a\n" * 50_001, "50000 rows"),
        (b"filename" + b",c" * 200 + b"\na.txt\n", "more than 200 columns"),
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


@pytest.mark.parametrize(
    "table", [b"filename\n" + b"a\n" * 5_000_000, b"filename" + b",c" * 2_000_000 + b"\n" + b"a\n" * 50_000]
)
def test_a_table_of_very_many_rows_or_columns_is_refused_before_it_is_read(table):
    started = time.thread_time()
    with pytest.raises(Rejected):
        read_table(table)
    assert time.thread_time() - started < 5


@pytest.mark.django_db
def test_a_table_takes_up_no_document_that_was_cancelled():
    kb = make_kb()
    batch = batch_create(knowledge_base=kb, name="laws", user=kb.owner)
    batch_add(batch, ContentFile(b"first"), "a.txt", user=kb.owner)
    batch_cancel(batch)

    batch_describe(batch, read_table("filename,title\na.txt,甲\n".encode()))

    assert Document.objects.values_list("title", "status").get() == ("甲", "cancelled")


@pytest.mark.django_db
def test_a_table_that_says_nothing_new_writes_nothing(django_assert_max_num_queries):
    kb = make_kb()
    batch = batch_create(knowledge_base=kb, name="laws", user=kb.owner)
    rows = []
    for number in range(30):
        batch_add(batch, ContentFile(str(number).encode()), f"{number}.txt", user=kb.owner)
        rows.append(f"{number}.txt,甲{number},2020")
    table = read_table(("filename,title,year\n" + "\n".join(rows)).encode())
    assert batch_describe(batch, table) == 30
    with django_assert_max_num_queries(8):
        assert batch_describe(batch, table) == 30
