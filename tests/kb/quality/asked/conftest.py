"""The fixtures of assistants and of their pages."""

from tests.kb.assistants.admin.conftest import *  # noqa: F403
