import pytest
from django.urls import reverse

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


def test_other_paths_keep_their_own_answers(client):
    assert 'data-testid="not-found"' not in client.get("/nothing/").content.decode()
