import pytest

from kb.base.findings import State
from kb.models import KnowledgeBase
from kb.operations.services.health.health import remote_parsers
from tests.docling_server import docling_server
from tests.factories import make_kb

pytestmark = pytest.mark.django_db


def test_without_a_parser_elsewhere_nothing_is_amiss():
    assert remote_parsers().state is State.OK


def test_a_parser_that_answers_is_named_and_one_that_does_not_is_reported_with_a_remedy(settings):
    with docling_server() as server:
        settings.DOCLING_SERVE_URL = server.url
        assert (remote_parsers().state, remote_parsers().detail) == (State.OK, "Docling Serve answers")
    finding = remote_parsers()
    assert (finding.state, finding.detail) == (State.DEGRADED, "Docling Serve: it does not answer")
    assert "DOCLING_SERVE_URL" in finding.remedy


def test_a_parser_that_is_chosen_and_not_set_up_is_reported():
    KnowledgeBase.objects.filter(pk=make_kb().pk).update(parser="docling")
    assert remote_parsers().state is State.DEGRADED
