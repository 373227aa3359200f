"""What people and files name is text on every page that shows it, never markup."""

import pytest
from django.core.files.base import ContentFile
from django.urls import reverse

from kb.content.folders.services import folder_create
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import Chunk
from kb.providers.recommended import Role
from kb.providers.services import provider_model_create
from tests.factories import make_kb, make_user

NAME = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>"
FILE = """<h1>A &lt;img src=x onerror=alert(1)&gt;</h1>
<p><a href="javascript:alert(3)">a</a><a href="JaVaScript&colon;alert(3)">b</a><a href="data:text/html,x">c</a>
<a href='https://example.org/"onmouseover="alert(3)'>d</a></p><svg onload=alert(3)></svg>
<table><tr><td>&lt;svg onload=alert(3)&gt;</td></tr></table><p>&lt;script&gt;alert(2)&lt;/script&gt;</p>"""
MARKUP = (
    "<img src=x",
    "<script>alert(2)",
    "<svg onload",
    'href="javascript:',
    'href="JaVa',
    'href="data:',
    '"onmouseover',
)


@pytest.fixture
def pages(client):
    root = make_user("root", superuser=True)
    client.force_login(root)
    kb = make_kb(root, NAME)
    folder = folder_create(kb=kb, name=NAME.replace("/", ""))
    document = document_add(
        knowledge_base=kb, file=ContentFile(FILE.encode()), name="a.html", user=root, title=NAME, folder_id=folder.pk
    )
    index_document(document.pk)
    chunk = Chunk.objects.get()
    Chunk.objects.update(questions=[NAME])
    address = "https://203.0.114.7/v1"
    model = provider_model_create(user=root, role=Role.CHAT, name=NAME, provider="openai", model=NAME, base_url=address)

    def url(name, *ids, query=""):
        return reverse(f"admin:{name}", args=[each.pk for each in ids]) + query

    return [
        url("index"),
        url("search", query="?s=onerror"),
        url("search", query="?s=img&of=bases"),
        url("ask", query=f"?kb={kb.pk}"),
        url("kb_chunk_passage", chunk),
        url("kb_chunk_passage_text", chunk),
        url("ask_write", query=f"?kb={kb.pk}"),
        url("integrations"),
        url("kb_knowledgebase_documents", kb),
        url("kb_knowledgebase_documents", kb, query=f"?in_folder={folder.pk}"),
        url("kb_knowledgebase_folder", kb, folder),
        url("kb_document_change", document),
        url("kb_document_original", document),
        url("kb_document_chunks", document),
        url("kb_document_replace", document),
        url("kb_chunk_work", chunk, query="?form=split"),
        url("kb_providermodel_changelist"),
        url("kb_providermodel_change", model),
    ]


@pytest.mark.django_db
def test_names_and_files_are_text_on_every_page(client, pages):
    escaped = 0
    for url in pages:
        page = client.get(url)
        shown = page.content.decode()
        assert page.status_code == 200
        assert [mark for mark in MARKUP if mark in shown] == [], url
        escaped += "&lt;img src=x" in shown
    assert escaped > len(pages) / 2
