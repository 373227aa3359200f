from tests.browser.conftest import chromium  # noqa: F401 (a fixture)
