"""How slow a client may be, for the web server and the MCP server alike; read without settings."""

import os
from typing import Final

CLIENT_SECONDS: Final = float(os.environ.get("CLIENT_SECONDS", "20"))
"""For a request's head; for each further piece of its body; and for a client to take a piece of the answer."""
CLIENT_MIN_RATE: Final = int(os.environ.get("CLIENT_MIN_RATE", "1000"))
"""Bytes a second that have to come of a body, over each CLIENT_SECONDS."""
