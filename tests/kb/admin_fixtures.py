from functools import partial

import pytest

# The factories are imported late: this file is read before the test services, and so the settings, are there.


@pytest.fixture
def curator(db):
    """A staff user without any of Django's model permissions, logged in by `client`."""
    from tests.factories import make_user

    return make_user("curator")


@pytest.fixture
def client(client, curator):
    client.force_login(curator)
    return client


@pytest.fixture
def kb(curator):
    from tests.factories import make_kb

    return make_kb(curator, "legal")


@pytest.fixture
def document(kb):
    from tests.factories import make_document

    return make_document(kb, "违约金过高的，可以请求减少。", "诉讼时效期间为三年。", title="Contracts")


@pytest.fixture
def foreign(db):
    """A document of a stranger's knowledge base."""
    from tests.factories import make_document, make_kb, make_user

    return make_document(make_kb(make_user("stranger"), "stranger-base"), "Secret text.", title="stranger-title")


@pytest.fixture
def handbook(curator):
    """A knowledge base with three chunks in two documents and two languages."""
    from tests.factories import make_document, make_kb

    kb = make_kb(curator, "Handbook")
    make_document(kb, "Employees running late may rebook their flight.", "差旅报销标准由财务部公布。", title="Travel")
    make_document(kb, "Hotels are booked by the office.", title="Hotels", source="hotels.pdf")
    return kb


@pytest.fixture
def flights(curator):
    """A knowledge base with more chunks that hold one word than are reranked."""
    from tests.factories import make_document, make_kb

    kb = make_kb(curator)
    make_document(kb, *[f"flight {number} " + "word " * number for number in range(30)], title="Flights")
    return kb


@pytest.fixture
def few_flights(curator):
    """A knowledge base whose four chunks hold one word."""
    from tests.factories import make_document, make_kb

    kb = make_kb(curator)
    make_document(kb, *[f"flight {number} of the day" for number in range(4)])
    return kb


@pytest.fixture
def open_debug(client):
    """Opens search debug as the curator; see `debug_page.open_page`."""
    from tests.kb.quality.debug.admin.debug_page import open_page

    return partial(open_page, client)


@pytest.fixture
def long_log(curator, handbook):
    """A log of 100,000 searches, every tenth of which is the curator's."""
    from django.db import connection

    from tests.factories import make_user

    other = make_user()
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO kb_searchlog (id, user_id, knowledge_base_ids, query, profile, profile_version, configuration, trace,
                degraded, result_count, outcome, duration_ms, timings, history, created_at)
            SELECT gen_random_uuid(), CASE WHEN n %% 10 = 0 THEN %s ELSE %s END, ARRAY[%s]::bigint[], 'query ' || n, 'default', 1,
                '{}', '{"request": {}}', '[]', 1, 'found', 1, '{}', '[]', now() - n * interval '1 second'
            FROM generate_series(1, 100000) n
            """,
            [curator.pk, other.pk, handbook.pk],
        )
        cursor.execute("ANALYZE kb_searchlog")
