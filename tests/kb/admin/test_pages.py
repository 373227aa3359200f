"""Every page of the admin in both languages."""

import re
from dataclasses import dataclass

import lxml.html
import pytest
from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from tests.factories import make_document, make_kb, make_user
from tests.isolation.admin_rules import MODEL_KINDS, PATH
from tests.isolation.routes import routes
from tests.kb.admin.pages import ALL_PAGES, SEARCHING, SUPERUSER_PAGES, make_objects, url_of
from tests.kb.index.searching import settle
from tests.standing import standing

# Names and codes that are the same in every language.
SAME_IN_CHINESE = re.compile(
    r"(?<![a-z])(contracts?|legal|curator2?|curated|law questions|text of q\d|someone|test|hashing|keyword-led|default|weighted|balanced|"
    r"manage\.py.*|recall|ndcg|mrr|hit rate|auroc|idf|rrf|top k|n-gram|cross[- _]encoder|http|overlap|cosine|vector_weight|cmrc2018|"
    r"textrank|tf-idf|external_providers|vertex_\w*|vertex ai search|google cloud|global|us-central1|engine|enterprise|grpc|rest|google|beir|trec|queries|qrels|topics|passages|zip|csv|"
    r"utc|sha-256|jieba|rjieba|rust|python|redis|postgresql|prometheus_multiproc_dir|"
    r"english|api|openai|ldap|json|zh-hans|notes\.txt|mac|control|command|ctrl k|esc|enter|shift|mb|deepseek|llm|tokens?|javascript)(?![a-z])"
    r"|\b[0-9a-f]{8}(?:(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})?\b|\.[a-z]+",
    re.IGNORECASE,
)


@pytest.fixture
def objects(kb, document, curator):
    return make_objects(kb, document, curator)


SOURCES = re.compile(
    "https|RSS|Atom|/docs/|WebDAV|Nextcloud|cloud|remote|dav|files|NAME|Folder|REPOSITORY|ssh-keyscan HOST|"
    "SOURCE_FOLDERS|/srv/documents|Amazon|MinIO|auto|path|virtual|manuals|drafts|Git(?![a-z])|github|gitlab|gitee|gitea|"
    "git|SSH"
)
MODELS = re.compile(
    "DeepSeek|Jina|Cohere|Ollama|vLLM|Xinference|Text Embeddings Inference|Moonshot|Kimi|DashScope|BAAI|BGE|Reranker|OpenAI|"
    "intfloat|sentence-transformers|cross-encoder|https?|huggingface|[a-z0-9]+(-[a-z0-9.]+)+|GB|MIT|Apache|bge|"
    "pip install|Hub|MiniLM\\w*|all|tokens?|zhiku|models|enable_thinking|false"
)
ASSISTANTS = (
    "assistants",
    "new assistant",
    "assistant",
    "sharing an assistant",
    "use of an assistant",
    "conversations of an assistant",
    "questions to an assistant",
    "conversation of an assistant",
    "versions of an assistant",
    "take an assistant back",
    "delete assistant",
)
TECHNICAL = {
    **dict.fromkeys(ASSISTANTS, re.compile("Dify|MCP|PNG|JPEG|WebP|OpenAI|Base|URL|curl|https?|example|www|com|body")),
    "models": MODELS,
    "new model": MODELS,
    "model": MODELS,
    "new key": re.compile("minute|hour|Dify|MCP|Asia/Shanghai"),
    "key": re.compile("Dify|MCP"),
    "keys": re.compile("Dify|MCP"),
    "delete key": re.compile("Dify|MCP"),
    "use of models": re.compile("token"),
    "use of models of a knowledge base": re.compile("token"),
    "document": re.compile("department"),
    "document at a chunk": re.compile("department"),
    "integrations": re.compile("MCP|Dify|Cursor|Claude|Code|Desktop|LangChain|curl|stdio|Score|Endpoint|Key"),
    "embedding model": re.compile("sentence-transformers|BAAI/bge-large-zh|MODEL"),
    "store": re.compile("PostgreSQL|MILVUS_URI|CHROMA_URL"),
    "one upload": re.compile("filename|title|tags|metadata"),
    "import graph": re.compile("name|kind|description|aliases|subject|predicate|object|document|chunk|parent|synonyms"),
    "knowledge base": re.compile("Word"),
    "sign-in": re.compile("OpenID Connect|Keycloak|Entra ID|https|realms|company|realm_access"),
    "audit log": re.compile("oidc"),  # before the names of the provider's groups
    "new knowledge base": re.compile("Word|BAAI/bge-large-zh"),
    "web sources": re.compile("https|RSS|Atom|WebDAV|Git"),
    "web source": SOURCES,
    "new web source": SOURCES,
    "web pages": re.compile("https|robots"),
    "web page": re.compile("https"),
    "history of a web page": re.compile("https"),
    "sources of a knowledge base": re.compile("https|RSS|Atom|WebDAV|Git"),
    "checks": re.compile(
        r"(?i)sentence-transformers|torch|\+cpu|zhiku|django|psycopg|pgvector|celery|numpy|rank-bm25|pystemmer|git|ssh|"
        r"seccomp|landlock|libreoffice|libseccomp2|bm25_memory_mb|warm_up_mb|/\S+|GB|balanced|fusion|"
        r"ODT|ODS|ODP|RTF|DOC|XLS|PPT|writer|calc|impress|memory|jieba-\S+|build|search|snowball|aedec"
    ),
}
"""Names and columns that these pages give as they are written in files and addresses."""
MOST_QUERIES = {"checks": 60}
"""Of a part that the page of the status fetches after it is shown."""


NO_PAGES = {"login", "logout", "app_list"}
OTHER_NAMES = {"provider_model": "model", "audit_entry": "change", "source_item": "item"}


def kind_of(route, parameter):
    """What a parameter of an address is the id of, by its name in `objects`."""
    kind = PATH.get(parameter) or MODEL_KINDS[route.path.split("/")[2 if route.path.startswith("admin/kb/") else 1]]
    return OTHER_NAMES.get(kind, kind)


def words_of(response):
    """What a reader sees and a screen reader says: texts and labels, without scripts and icon names."""
    page = lxml.html.fromstring(response.content.decode())
    for hidden in page.xpath(
        "//script | //style | //template | //*[contains(@class, 'material-symbols')] | //code | //pre"
    ):
        hidden.drop_tree()  # codes, key prefixes and commands are no words either
    labels = page.xpath("//@title | //@placeholder | //@aria-label | //@data-label")
    return "\n".join([*page.itertext(), *labels])


@dataclass
class Visit:
    status: int
    words: str
    queries: int


@pytest.fixture(scope="module")
def visits(django_db_setup, django_db_blocker, tmp_path_factory):
    """Each page in each language, opened by whoever may see it.

    All are opened in English first, so that in Chinese none asks for what a process reads once.
    """
    from tests.parser import run_in_process

    media = tmp_path_factory.mktemp("media")
    with pytest.MonkeyPatch.context() as patch, override_settings(MEDIA_ROOT=media), standing(django_db_blocker):
        run_in_process(patch)
        curator = make_user("curator")
        kb = make_kb(curator, "legal")
        document = make_document(kb, "违约金过高的，可以请求减少。", "诉讼时效期间为三年。", title="Contracts")
        objects = make_objects(kb, document, curator)
        browsers = [Client(), Client()]
        browsers[False].force_login(curator)
        browsers[True].force_login(make_user("curator2", superuser=True))
        ContentType.objects.get_for_models(*apps.get_app_config("kb").get_models())  # a process keeps them

        def visit(name, language):
            url = url_of(objects, name)
            with CaptureQueriesContext(connection) as queries:
                page = browsers[name in SUPERUSER_PAGES].get(url, headers={"accept-language": language})
            return Visit(page.status_code, words_of(page), len(queries))

        made = {language: {name: visit(name, language) for name in sorted(ALL_PAGES)} for language in ("en", "zh-hans")}
        settle()
        return made


@pytest.mark.django_db
def test_every_page_opens_in_english(visits):
    shown = "简体中文 违约金 违约 约金 违约金过高的 过高 过高的 可以 请求 减少 可以请求减少 诉讼时效期间为三年 违约金过高怎么办 诉讼时效多久"
    found = {}
    for name, visit in visits["en"].items():
        assert visit.status == 200, name
        as_python_writes = re.findall(r"\d:\d\d:\d\d\.\d{6}", visit.words)
        found[name] = [*as_python_writes, *(set(re.findall(r"[\u4e00-\u9fff]{2,}", visit.words)) - set(shown.split()))]

    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.django_db
def test_every_page_opens_in_chinese_and_holds_no_english_sentence(visits):
    found = {}
    for name, visit in visits["zh-hans"].items():
        assert visit.status == 200, name
        left = SAME_IN_CHINESE.sub(" ", visit.words)
        left = TECHNICAL[name].sub(" ", left) if name in TECHNICAL else left
        found[name] = re.findall(r"[A-Za-z]{3,}(?: +[A-Za-z]+)*", left)

    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.django_db
def test_every_page_takes_few_queries(visits):
    taken = {name: visit.queries for name, visit in visits["zh-hans"].items() if name not in SEARCHING}

    assert {name: number for name, number in taken.items() if number > MOST_QUERIES.get(name, 11)} == {}


@pytest.mark.parametrize(("language", "words"), [("zh-hans", "欢迎回到"), ("en", "Welcome back to")])
def test_the_login_page_speaks_the_browser_s_language_and_offers_both(client, language, words):
    client.logout()

    page = client.get(reverse("admin:login"), headers={"accept-language": language}).content.decode()

    assert words in page
    assert "简体中文" in page
    assert "English" in page


def test_the_chosen_language_stays(client):
    client.post(reverse("set_language"), {"language": "en", "next": "/admin/"})

    page = client.get(reverse("admin:index"), headers={"accept-language": "zh-hans"}).content.decode()

    assert "First steps" in page


@pytest.mark.django_db
def test_every_address_that_answers_with_a_page_is_in_the_list(client, objects, curator):
    """So that no page is left out of what is tested with every page, axe-core's rules among it."""
    superuser = make_user("curator2", superuser=True)
    listed = {target.partition("?")[0] for target, _needed in ALL_PAGES.values()}
    forgotten = set()
    for route in routes("admin/"):
        if route.name in listed or route.name in NO_PAGES or route.path.endswith("$"):
            continue
        url = route.url({name: objects[kind_of(route, name)] for name in route.parameters})
        for user in (curator, superuser):
            client.force_login(user)
            answer = client.get(url)
            content = b"".join(answer) if answer.streaming else answer.content
            if answer.status_code == 200 and b"</html>" in content:
                forgotten.add(route.name or route.path)

    assert sorted(forgotten) == []
