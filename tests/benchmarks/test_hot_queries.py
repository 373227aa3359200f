import pytest

from kb.search.services import search_log
from tests.benchmarks import hot_queries


@pytest.mark.django_db(transaction=True)
def test_a_hit_an_empty_request_and_a_search_are_measured_on_the_real_services():
    measured = hot_queries.measure(rounds=1)
    search_log.flush()

    assert min(measured.empty, measured.hit, measured.search) > 0
