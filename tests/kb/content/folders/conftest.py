"""The fixtures of the API."""

from tests.kb.api_fixtures import *  # noqa: F403
