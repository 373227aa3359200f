import atexit
import gc

# With Python's own threshold of 700, a quarter of what a process takes to start would go into the search for garbage among
# modules, and half a second of what it takes to end.
gc.set_threshold(10_000)
atexit.register(gc.freeze)

from config.celery import app as celery_app  # noqa: E402 - a good part of the start is this import

__all__ = ["celery_app"]
