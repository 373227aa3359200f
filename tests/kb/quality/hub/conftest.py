"""The fixtures of pages of the admin."""

from tests.kb.admin_fixtures import *  # noqa: F403
