import pytest
from django.test import Client
from django.urls import reverse

from kb.index import admin
from kb.index.bm25 import BM25Store, RedisTier, index_fingerprint
from kb.models import BM25Index, ChunkChange, KnowledgeBase, Membership
from kb.search.services.search import SearchRequest, search
from retrieval.cache import TierUnavailable
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.kb.web.admin.pages import Page, words

PAGE = "admin:keyword_cache"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def drop_url(kb):
    return reverse("admin:keyword_cache_invalidate", args=[kb.pk])


def version_of(kb):
    return KnowledgeBase.objects.select_related("version_row").get(pk=kb.pk).version_row.version


class CachePage(Page):
    def figures(self, tier):
        (card,) = self.tree.xpath(f"//*[@data-tier='{tier}']")
        terms = (row.getchildren() for row in card.xpath(".//dl/div"))
        return {words(term): words(value) for term, value in terms} | {
            "ratio": words(card.xpath(".//*[@data-testid='hit-ratio']")[0])
        }

    def rows(self):
        found = {}
        for row in self.tree.xpath("//*[@data-testid='indexes']//tr[@data-kb-id]"):
            cells = {cell.get("data-col"): words(cell) for cell in row.xpath("./td[@data-col]")}
            found[int(row.get("data-kb-id"))] = cells | {"drop": row.xpath(".//a[contains(@href,'invalidate')]/@href")}
        return found


# -- Who may open it -----------------------------------------------------------------------------------------------------
def test_a_visitor_is_sent_to_the_login(db):
    assert Client().get(reverse(PAGE)).url.startswith(reverse("admin:login"))


def test_a_user_who_is_not_staff_is_sent_to_the_login(client):
    client.force_login(make_user(staff=False))

    assert client.get(reverse(PAGE)).status_code == 302


def test_the_status_leads_there(client):
    client.force_login(make_user(superuser=True))
    assert f'href="{reverse(PAGE)}"' in client.get(reverse("admin:system_status")).content.decode()


# -- The tiers -----------------------------------------------------------------------------------------------------------
COUNTERS = {
    "process": {"hits": 3, "misses": 1, "stores": 2, "errors": 0, "nbytes": 2_048, "builds": 1, "updates": 4},
    "redis": {"hits": 1, "misses": 2, "stores": 5, "errors": 6, "nbytes": 1_024, "builds": 0, "updates": 0},
}


def test_each_tier_shows_its_counts(client, kb, monkeypatch):
    monkeypatch.setattr(admin, "cache_counters", lambda: COUNTERS)
    BM25Index.objects.create(knowledge_base=kb, version=1, chunk_count=0, payload=b"1" * 3_072)

    page = CachePage(client.get(reverse(PAGE)))

    assert page.figures("process") == {
        "ratio": "75%",
        "hits": "3",
        "misses": "1",
        "stores": "2",
        "errors": "0",
        "built again": "1",
        "changes read over a base": "4",
        "memory": "2.0 KB",
        "limit of each process": "512.0 MB",
    }
    assert page.figures("redis") == {
        "ratio": "33%",
        "hits": "1",
        "misses": "2",
        "stores": "5",
        "errors": "6",
        "read and written": "1.0 KB",
    }
    assert page.figures("database") == {
        "ratio": "–",
        "hits": "0",
        "misses": "0",
        "stores": "0",
        "errors": "0",
        "read and written": "0 bytes",
        "stored for what you may see": "3.0 KB",
    }


@pytest.mark.django_db(transaction=True)
def test_a_search_moves_the_counts(client, curator):
    kb = make_kb(curator)
    make_document(kb, "违约金")

    def built():
        figure = CachePage(client.get(reverse(PAGE))).figures("process")["built again"]
        return int(figure.replace(",", ""))

    before = built()

    search(principal(curator), SearchRequest(query="违约金", knowledge_base_ids=[kb.pk]))

    assert built() == before + 1


@pytest.mark.parametrize(
    ("folder", "expected"), [("", "of this web process"), ("/nowhere", "of all processes")], ids=["alone", "shared"]
)
def test_the_page_says_whose_counts_these_are(client, monkeypatch, folder, expected):
    monkeypatch.setattr(admin, "cache_counters", dict)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", folder)

    assert expected in CachePage(client.get(reverse(PAGE))).text("counted")


# -- The knowledge bases ---------------------------------------------------------------------------------------------------
def test_a_row_shows_versions_sizes_and_state(client, kb, document):
    base = {
        "version": version_of(kb),
        "tokenizer_id": kb.tokenizer_id,
        "format": index_fingerprint(),
        "chunk_count": 2,
        "payload": b"1" * 2_048,
    }
    BM25Index.objects.create(knowledge_base=kb, **base)
    ChunkChange.objects.filter(knowledge_base=kb).delete()
    make_document(kb, "新的内容", "更多内容")

    row = CachePage(client.get(reverse(PAGE))).rows()[kb.pk]

    assert row["version"] == str(version_of(kb))
    assert row["base"].startswith(f"2.0 KB version {base['version']}, 2 chunks")
    assert (row["redis"], row["state"]) == ("–", "current: 2 changes over the base")


def test_only_visible_knowledge_bases_are_listed(client, kb, foreign):
    assert list(CachePage(client.get(reverse(PAGE))).rows()) == [kb.pk]


def test_many_knowledge_bases_come_in_pages(client, curator, monkeypatch):
    monkeypatch.setattr(admin, "ROWS_A_PAGE", 2)
    made = [make_kb(curator, name).pk for name in ("a", "b", "c")]

    pages = [CachePage(client.get(reverse(PAGE), {"page": page})) for page in (1, 2)]

    assert [list(page.rows()) for page in pages] == [made[:2], made[2:]]
    assert "Page 2 of 2" in words(pages[1].tree)


def test_without_redis_the_page_says_so_and_works(client, kb, document, monkeypatch):
    def unreachable(self, kb_id):
        raise TierUnavailable

    monkeypatch.setattr(RedisTier, "size", unreachable)

    page = CachePage(client.get(reverse(PAGE)))

    assert "Redis cannot be reached" in page.text("redis-down")
    assert page.rows()[kb.pk]["redis"] == "–"


def test_with_redis_there_is_no_word_of_it(client, kb):
    assert not CachePage(client.get(reverse(PAGE))).has("redis-down")


def test_without_a_knowledge_base_the_page_leads_to_making_one(client):
    page = CachePage(client.get(reverse(PAGE)))

    assert not page.has("indexes")
    assert page.tree.xpath(f"//a[@href='{reverse('admin:kb_knowledgebase_add')}']")


# -- Dropping an index -----------------------------------------------------------------------------------------------------
@pytest.fixture
def shared(curator):
    kb = make_kb()
    make_member(kb, user=curator)
    return kb


def test_a_viewer_is_offered_no_dropping(client, kb, shared):
    rows = CachePage(client.get(reverse(PAGE))).rows()

    assert (rows[kb.pk]["drop"], rows[shared.pk]["drop"]) == ([drop_url(kb)], [])


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_viewer_cannot_drop_an_index(client, shared, method):
    before = version_of(shared)

    assert getattr(client, method)(drop_url(shared)).status_code == 403
    assert version_of(shared) == before


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_stranger_s_index_does_not_exist(client, foreign, method):
    assert getattr(client, method)(drop_url(foreign.knowledge_base)).status_code == 404


def test_dropping_asks_first(client, kb):
    before = version_of(kb)

    page = client.get(drop_url(kb)).content.decode()

    assert "All three tiers forget this index" in page
    assert version_of(kb) == before


@pytest.mark.django_db(transaction=True)
def test_an_editor_drops_an_index_from_every_tier(client, curator):
    kb = make_kb()
    make_member(kb, Membership.Role.EDITOR, curator)
    make_document(kb, "违约金")
    BM25Store().merge(kb.pk, kb.tokenizer_id)
    before = version_of(kb)

    response = client.post(drop_url(kb), follow=True)

    assert "the next search builds it again" in response.content.decode()
    assert version_of(kb) > before
    assert not BM25Index.objects.exists()
    row = CachePage(response).rows()[kb.pk]
    assert (row["state"], row["redis"]) == ("none yet: built at the next search", "–")
