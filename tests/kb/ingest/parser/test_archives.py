import io
import stat
import struct
import zipfile

import pytest

from kb.ingest.parser import archives
from kb.ingest.parser.archives import ArchiveLimits, unpack
from kb.ingest.parser.parsed import ParseError
from tests.kb.ingest.parser.documents import make_zip

MIB = 1024**2


@pytest.fixture
def folder(tmp_path):
    target = tmp_path / "unpacked"
    target.mkdir()
    return target


@pytest.fixture
def opened(tmp_path, folder):
    def open_archive(data, **limits):
        path = tmp_path / "archive"
        path.write_bytes(data)
        return unpack(path, folder, limits=ArchiveLimits(**limits))

    return open_archive


@pytest.fixture
def failure(opened):
    def fail(data, **limits):
        with pytest.raises(ParseError) as caught:
            opened(data, **limits)
        return caught.value

    return fail


def packed(*entries):
    """A deflated archive of (name or ZipInfo, content)."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target:
        for entry, content in entries:
            target.writestr(entry, content)
    return stream.getvalue()


def link(name, target):
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return entry, target


def test_files_come_out_with_their_names_and_folders(opened):
    result = opened(packed(("手册/退款.md", "七天"), ("a.txt", "text"), ("手册/", "")))
    assert [(name, path.read_text()) for name, path in result[0]] == [
        ("手册/退款.md", "七天"),
        ("a.txt", "text"),
    ]
    assert result[1] == []


def test_no_name_of_the_archive_reaches_the_file_system(opened, folder):
    opened(packed(("深/名.txt", "x"), ("b.txt", "y")))
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]


def test_names_in_the_encoding_of_chinese_windows_are_read(opened):
    data = make_zip(**{"xxxx.txt": "x"}).replace(b"xxxx", "手册".encode("gb18030"))
    assert opened(data)[0][0][0] == "手册.txt"


def test_backslashes_part_folders(opened):
    assert opened(make_zip(**{"a|b.txt": "x"}).replace(b"a|b", b"a\\b"))[0][0][0] == "a/b.txt"


def test_what_file_managers_add_is_no_file(opened):
    result = opened(packed(("a.txt", "x"), ("__MACOSX/._a.txt", "x"), ("folder/.DS_Store", "x"), ("Thumbs.db", "x")))
    assert [name for name, _path in result[0]] == ["a.txt"]
    assert result[1] == []


def test_files_without_a_reader_and_archives_inside_are_skipped_and_told(opened):
    result = opened(packed(("a.txt", "x"), ("b.png", "x"), ("README", "x"), ("c.zip", make_zip(**{"d.txt": "x"}))))
    assert [name for name, _path in result[0]] == ["a.txt"]
    assert [(name, reason.code) for name, reason in result[1]] == [
        ("b.png", "unsupported_type"),
        ("README", "unsupported_type"),
        ("c.zip", "nested_archive"),
    ]
    assert "“README”" in str(result[1][1][1])


def test_programs_are_skipped_with_what_to_do(opened):
    result = opened(packed(("a.txt", "x"), ("b.exe", "plain words"), ("旧版.doc", "x")))
    assert [name for name, _path in result[0]] == ["a.txt", "旧版.doc"]
    assert [(name, reason.code) for name, reason in result[1]] == [
        ("b.exe", "unsupported_type"),
    ]


def test_a_file_larger_than_a_document_may_be_is_skipped(opened):
    result = opened(packed(("a.txt", "x"), ("big.txt", "y" * 20)), file_bytes=10)
    assert [reason.code for _name, reason in result[1]] == ["too_large"]


@pytest.mark.parametrize("name", ["/etc/passwd.txt", "../up.txt", "a/../../up.txt", "C:/x.txt", "..\\up.txt"])
def test_a_path_that_leads_outside_refuses_the_archive(failure, folder, name):
    error = failure(packed(("a.txt", "x"), (name, "x")))
    assert error.code == "unsafe_archive"
    assert list(folder.iterdir()) == []


def test_a_link_refuses_the_archive(failure):
    assert failure(packed(link("a.txt", "/etc/passwd"))).code == "unsafe_archive"


def test_too_many_files_are_refused(failure):
    error = failure(packed(*((f"{number}.txt", "x") for number in range(4))), files=3)
    assert error.code == "too_many_files"


def test_more_than_the_total_is_refused_before_anything_is_written(failure, folder):
    error = failure(packed(("a.txt", "x" * MIB), ("b.txt", "y" * MIB)), total_bytes=2 * MIB - 1)
    assert error.code == "unpacks_to_too_much"
    assert list(folder.iterdir()) == []


def test_a_file_that_unpacks_to_far_more_than_it_packs_is_refused(failure):
    assert failure(packed(("a.txt", bytes(20 * MIB)))).code == "unpacks_to_too_much"


def test_a_directory_that_lies_about_sizes_is_not_believed(failure):
    data = bytearray(packed(("a.txt", bytes(range(256)) * 4096)))
    directory = data.index(b"PK\x01\x02")
    struct.pack_into("<L", data, directory + 24, 10)
    assert failure(bytes(data)).code in ("damaged_file", "unpacks_to_too_much")


def test_a_protected_archive_asks_to_remove_the_password(failure):
    data = bytearray(packed(("a.txt", "x")))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    error = failure(bytes(data))
    assert error.code == "protected"
    assert "ZIP" in str(error)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda data: b"no archive", lambda data: data.replace(b"text", b"tixt")],
)
def test_a_damaged_archive_is_told(failure, damage):
    assert failure(damage(make_zip(**{"a.txt": "some text"}))).code == "damaged_file"


@pytest.mark.parametrize("data", [make_zip(), packed(("folder/", "")), packed((".DS_Store", "x"))])
def test_an_archive_without_files_is_empty(failure, data):
    assert failure(data).code == "empty_archive"


def test_an_archive_larger_than_allowed_is_not_even_read(failure):
    assert failure(packed(("a.txt", "x")), archive_bytes=10).code == "too_large"


def test_a_missing_folder_is_the_callers_error(tmp_path):
    (tmp_path / "archive").write_bytes(make_zip(**{"a.txt": "x"}))
    with pytest.raises(FileNotFoundError):
        unpack(tmp_path / "archive", tmp_path / "none")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"members": [["a.txt", "../../etc/passwd"]], "skipped": []},
        {"members": [["a.txt", 7]], "skipped": []},
        {"members": [], "skipped": [["a.txt", "no_such_code", {}]]},
        {"members": 5, "skipped": []},
        {"members": [["a.txt", float("inf")]], "skipped": []},
        {"members": [["a.txt", 10**300]], "skipped": []},
        {"members": [["a.txt", 1], ["b.txt", 1]], "skipped": []},
        {"members": [["a.txt", 10_001]], "skipped": []},
        {"members": [], "skipped": [["a.txt", "empty_file", {}]] * 10_001},
    ],
)
def test_an_answer_of_another_shape_is_not_believed(monkeypatch, folder, answer):
    for number in (1, 10_001):
        (folder / str(number)).write_text("text")
    monkeypatch.setattr(archives, "run_job", lambda *_args, **_kwargs: answer)
    with pytest.raises(ParseError) as caught:
        unpack(folder / "archive", folder)
    assert caught.value.code == "parser_crashed"
