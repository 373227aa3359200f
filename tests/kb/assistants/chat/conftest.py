from tests.kb.assistants.chat.visiting import *  # noqa: F403
from tests.kb.assistants.making import *  # noqa: F403 - its fixtures
