from tests.kb.assistants.making import *  # noqa: F403 - its fixtures
