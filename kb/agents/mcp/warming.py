import threading

from kb.search.wiring import warm_up


def warm_up_beside() -> None:
    """Loads tokenizers and models beside the first requests, once a process."""
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
