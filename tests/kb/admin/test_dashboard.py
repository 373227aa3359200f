import sys

import pytest
from django.urls import reverse

from kb import conf


@pytest.fixture
def missing(monkeypatch):
    """A package that cannot be imported, and a process that has not looked for it yet."""

    def remove(package):
        monkeypatch.setitem(sys.modules, package, None)
        conf._load_tokenizer.cache_clear()

    yield remove
    conf._load_tokenizer.cache_clear()


@pytest.mark.parametrize(
    ("package", "remedy"),
    [("sentence_transformers", "pip install &#x27;zhiku[models]&#x27;"), ("rank_bm25", "pip install rank-bm25 jieba")],
)
def test_the_first_page_says_what_the_server_cannot_do(client, missing, package, remedy):
    missing(package)
    page = client.get(reverse("admin:index")).content.decode()
    assert page.count('data-testid="degraded"') == 1
    assert remedy in page


def test_the_first_page_is_silent_where_all_is_there(client):
    assert 'data-testid="degraded"' not in client.get(reverse("admin:index")).content.decode()
