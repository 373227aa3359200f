from functools import partial

import pytest


@pytest.fixture
def open_debug(client):
    """Opens the process of a search as the curator."""
    from tests.kb.quality.debug.admin.debug_page import open_page

    return partial(open_page, client, view="process")
