from pathlib import Path


class EmbeddedError(RuntimeError):
    """The embedded servers cannot be used; the message says what to do."""


def last_lines(log: Path, count: int = 5) -> str:
    """The end of a server's log, for an error message."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"The last lines of {log}:", *lines[-count:]])
