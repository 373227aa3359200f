"""A file is stored before the row of its document: without the row it does not stay."""

import pytest
from django.core.files.base import ContentFile

from kb.base.errors import AlreadyThere
from kb.base.files import files_below
from kb.content.models import documents_folder
from kb.ingest.services.documents import document_add, document_held, document_replace_file
from kb.models import Document
from tests.factories import make_kb

pytestmark = pytest.mark.django_db

OLD, NEW = "旧文件".encode(), "新文件".encode()


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture
def document(kb):
    return add(kb, OLD)


def add(kb, data, file=None):
    return document_add(knowledge_base=kb, file=file or ContentFile(data), name="a.txt", user=kb.owner)


def replace(document, file, **changes):
    with document_held(document) as held:
        document_replace_file(document=held, file=file, name="b.txt", **changes)


class RacedFile(ContentFile):
    """Its bytes come into the knowledge base by another upload once it is known that they were not there."""

    def __init__(self, data, kb):
        super().__init__(data)
        self._kb, self._data, self._readings = kb, data, 0

    def chunks(self, chunk_size=None):
        self._readings += 1
        if self._readings == 2:  # the first was for its digest
            self.rival = add(self._kb, self._data)
        return super().chunks(chunk_size)


def stored(kb):
    return {each.name for each in files_below(documents_folder(kb.pk))}


def names_in_rows(kb):
    return {str(each.file) for each in Document.objects.filter(knowledge_base=kb)}


def test_a_file_that_another_upload_brought_meanwhile_is_there_already(kb):
    file = RacedFile(NEW, kb)
    with pytest.raises(AlreadyThere) as error:
        add(kb, NEW, file)
    assert error.value.document_id == file.rival.pk
    assert stored(kb) == names_in_rows(kb)


def test_so_is_one_in_the_place_of_another_whose_file_stays(kb, document):
    file = RacedFile(NEW, kb)
    with document_held(document) as held, pytest.raises(AlreadyThere) as error:
        document_replace_file(document=held, file=file, name="b.txt")
    assert error.value.document_id == file.rival.pk
    document.refresh_from_db()
    with document.file.open() as kept:
        assert kept.read() == OLD
    assert stored(kb) == names_in_rows(kb)


def test_a_file_whose_details_cannot_be_written_does_not_stay(kb, document):
    with pytest.raises(Exception, match="value too long"):
        replace(document, ContentFile(NEW), title="题" * 501)
    assert stored(kb) == names_in_rows(kb)


def test_the_former_file_goes_with_the_commit(kb, document, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        replace(document, ContentFile(NEW))
    assert stored(kb) == names_in_rows(kb)
    assert len(stored(kb)) == 1
