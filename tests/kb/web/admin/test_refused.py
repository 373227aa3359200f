import pytest
from django.urls import reverse

from tests.factories import make_member
from tests.kb.admin.test_pages import words_of


@pytest.mark.parametrize("path", ["kb/nothing/", "kb/document/999999/download/"])
@pytest.mark.parametrize("debug", [True, False])
def test_a_page_that_is_not_there_leads_back_and_tells_nothing_of_the_code(client, settings, path, debug):
    settings.DEBUG = debug

    answer = client.get(f"/admin/{path}", headers={"accept-language": "en"})

    assert answer.status_code == 404
    assert "This page does not exist" in words_of(answer)
    assert "URLconf" not in words_of(answer)
    assert f'href="{reverse("admin:index")}"' in answer.content.decode()


@pytest.mark.parametrize(
    ("language", "words", "back"),
    [("en", "You may not open this page", "To the workbench"), ("zh-hans", "没有权限打开此页面", "返回工作台")],
)
def test_a_page_that_is_not_theirs_says_so_and_leads_back(client, document, language, words, back):
    viewer = make_member(document.knowledge_base)
    client.force_login(viewer)
    for url in (
        reverse("admin:kb_user_changelist"),
        reverse("admin:kb_knowledgebase_sharing", args=[document.knowledge_base_id]),
    ):
        answer = client.get(url, headers={"accept-language": language})

        assert answer.status_code == 403
        assert words in words_of(answer)
        assert back in words_of(answer)
        assert f'href="{reverse("admin:index")}"' in answer.content.decode()


def test_a_page_that_is_refused_offers_none_of_those_beside_it(client, document):
    client.force_login(make_member(document.knowledge_base))

    page = client.get(reverse("admin:kb_user_changelist")).content.decode()

    for name in ("kb_user_changelist", "kb_auditentry_changelist", "system_status"):
        assert f'href="{reverse(f"admin:{name}")}"' not in page


def test_other_paths_keep_their_own_answers(client):
    assert 'data-testid="not-found"' not in client.get("/nothing/").content.decode()
