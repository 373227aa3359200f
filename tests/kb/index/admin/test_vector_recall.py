import pytest
from django.urls import reverse

from kb.index.vector_index import maintain_vector_indexes
from kb.models import VectorIndex
from tests.factories import make_document, make_kb, make_user
from tests.kb.index.vectors import build_under_way

pytestmark = pytest.mark.django_db


@pytest.fixture
def page(client, settings):
    settings.VECTOR_INDEX_MIN_ROWS = 1
    kb = make_kb()
    make_document(kb, "保修", "退货")
    client.force_login(make_user(superuser=True))
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"

    def read(recall, *, is_used=True):
        VectorIndex.objects.update_or_create(
            knowledge_base=kb,
            model=kb.embedding_model,
            kind="content",
            defaults={
                "method": "hnsw",
                "effort": 128,
                "is_used": is_used,
                "vectors": 2,
                "recall": recall,
                "sampled": 40,
                "exact_ms": 70,
                "index_ms": 0.9,
            },
        )
        return client.get(reverse("admin:kb_knowledgebase_stores", args=[kb.pk])).content.decode()

    return read


def test_the_page_of_a_knowledge_base_tells_what_its_index_finds(page):
    text = page(0.9991)
    assert "it finds 0.999 of the nearest 25, measured with 40 vectors; 0.9 ms, against 70.0 ms" in text
    assert "good matches may be missed" not in text


def test_an_index_that_finds_too_few_is_an_alert(page):
    assert "That is below 0.98: good matches may be missed." in page(0.7)


def test_an_index_that_is_passed_over_is_told(page):
    assert "searches compare all vectors one by one" in page(0.4, is_used=False)


def test_the_page_says_that_an_index_is_due_and_then_that_it_is_being_built(page, transactional_db):
    assert "A vector index is due for 2 vectors" in page(0.9991)
    kb = VectorIndex.objects.get().knowledge_base
    with build_under_way(kb):
        assert "The vector index is being built: 0 of 2 vectors" in page(0.9991)
    text = page(0.9991)
    assert "due for" not in text
    assert "being built" not in text
    kb.delete()
    maintain_vector_indexes()
