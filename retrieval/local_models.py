"""Opens models with sentence-transformers, from files on this machine only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from retrieval.errors import ModelUnavailable
from retrieval.messages import Message, gettext_noop, message_of
from retrieval.model_files import libraries_available, local_path

# What foreign files make the libraries raise.
_LOAD_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    ImportError,
    EOFError,
    UnpicklingError,
)


def open_local(
    model_id: str, open_folder: Callable[[str], Any], *, kind: str, otherwise: str, cache_dir: Path | None = None
) -> Any:
    """What `open_folder` makes of the folder with a model's files; transformers draws no progress bar meanwhile.

    Args:
        model_id: as for `local_path`.
        open_folder: called only where the libraries are installed.
        kind: what messages call the model, as "reranker".
        otherwise: what messages name as the way to go without it.
        cache_dir: the Hugging Face cache; None for its usual place.

    Raises:
        ModelUnavailable: the libraries or the files are not here, or the files cannot be loaded.
    """
    if not libraries_available():
        raise ModelUnavailable(
            Message(
                gettext_noop(
                    "{kind} {model_id!r} needs sentence-transformers and torch: run `pip install 'zhiku[models]'`, "
                    "or {otherwise}"
                ),
                kind=kind,
                model_id=model_id,
                otherwise=otherwise,
            )
        )
    path = local_path(model_id, cache_dir=cache_dir)
    if path is None:
        raise ModelUnavailable(
            Message(
                gettext_noop(
                    "{kind} {model_id!r} is not on this machine: run `manage.py download_model {model_id}`, or "
                    "{otherwise}"
                ),
                kind=kind,
                model_id=model_id,
                otherwise=otherwise,
            )
        )
    from safetensors import SafetensorError  # noqa: PLC0415 - optional

    try:
        with _no_loading_bars():
            return open_folder(str(path))
    except (*_LOAD_ERRORS, SafetensorError) as error:
        raise ModelUnavailable(
            Message(
                gettext_noop(
                    "the files of {kind} {model_id!r} in {path} cannot be loaded ({error}): delete that folder and "
                    "run `manage.py download_model {model_id}`, or {otherwise}"
                ),
                kind=kind,
                model_id=model_id,
                path=str(path),
                error=message_of(error),
                otherwise=otherwise,
            )
        ) from error


@contextmanager
def _no_loading_bars() -> Iterator[None]:
    """Keeps transformers' "Loading weights" bar out of logs and of the commands' own progress."""
    from transformers.utils import logging  # noqa: PLC0415 - optional

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
