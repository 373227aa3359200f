"""The headless Chromium of a test process, for all of its files that drive one."""

import os
import shutil
from functools import lru_cache

import pytest
from playwright.sync_api import sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Nothing but the served application is reachable, so that a page which asks for more is caught.
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    # Pages of Chromium's own that every window would load, for an address bar that nobody sees.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def path():
    """None: none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def opened():
    if path() is None:
        reason = "NO CHROMIUM IS INSTALLED: THE PAGES WERE NOT TRIED IN A BROWSER (apt-get install chromium)."
        (pytest.fail if os.environ.get("ZHIKU_REQUIRE_BROWSER") == "1" else pytest.skip)(reason)
    return _started()[1]


def close():
    """Before a test that needs none: while it runs, this thread has an event loop, and Django's ORM refuses to work in one."""
    if _started.cache_info().currsize:
        playwright, browser = _started()
        _started.cache_clear()
        browser.close()
        playwright.stop()


@lru_cache(maxsize=1)
def _started():
    playwright = sync_playwright().start()
    return playwright, playwright.chromium.launch(executable_path=path(), args=SWITCHES)
