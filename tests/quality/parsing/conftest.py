import os

import pytest

from tests.quality.parsing.files import ProgramMissing, make


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Prints documents of the bed: pairs of a case and its PDF."""

    def print_all(cases):
        try:
            return list(make(list(cases), tmp_path_factory.mktemp("printed")))
        except ProgramMissing:
            reason = "NO CHROMIUM IS INSTALLED: THE DOCUMENTS WERE NOT PRINTED (apt-get install chromium)."
            (pytest.fail if os.environ.get("ZHIKU_REQUIRE_BROWSER") == "1" else pytest.skip)(reason)

    return print_all
