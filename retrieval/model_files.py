"""Where a model's files are: in a folder, in an installed package, in the Hugging Face cache, on a hub, or nowhere.

Only `probe` and `download` touch the network, and only when called.

Opens models with sentence-transformers, from files on this machine only.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from pickle import UnpicklingError
from typing import Any, Literal

import httpx
from tqdm import tqdm

from retrieval.errors import DependencyMissing, ModelUnavailable, _, message_of
from retrieval.execution import Threads

DEFAULT_ENDPOINT = "https://huggingface.co"
# Read when the hub's client is imported: downloads by its other protocol cannot be cancelled.
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")

# Called with the bytes that have arrived and the bytes expected in all.
Progress = Callable[[int, int], None]

_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONFIGURATIONS = ("modules.json", "config.json")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TEXT_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.bpe")
_INDEXES = (".safetensors.index.json", ".bin.index.json")
_OTHER_RUNTIMES = {"onnx", "openvino", "coreml"}


@dataclass(frozen=True, slots=True)
class Probe:
    """Where a model was found."""

    found: Literal["local", "remote", "none"]
    size_bytes: int | None  # of the files that sentence-transformers reads; None when unknown
    reason: str  # where it was found, or why it was not
    revision: str | None = None  # the commit that the hub has now
    is_pickled: bool = False  # whether some of its weights can only be had as pickles, which run code when opened
    files: Mapping[str, int | None] | None = field(
        default=None, compare=False
    )  # that the hub lists of it and that are needed, with their sizes


def cache_folder() -> Path:
    """Where downloaded models are stored; raises DependencyMissing without huggingface_hub."""
    if find_spec("huggingface_hub") is None:
        raise DependencyMissing(_("huggingface_hub is not installed: run `pip install 'zhiku[models]'`"))
    from huggingface_hub import constants  # noqa: PLC0415 - optional, and slow to import

    return Path(constants.HF_HUB_CACHE)


def libraries_available() -> bool:
    """Whether local models can run here; imports nothing."""
    return find_spec("sentence_transformers") is not None and find_spec("torch") is not None


def local_path(model_id: str) -> Path | None:
    """The folder with the model's complete files on this machine, or None; never touches the network.

    A model id is a path, the name of an installed package that ships a `model` folder, or a Hugging Face id, whose
    files are in its cache (HF_HOME, HF_HUB_CACHE).
    """
    folder = _as_folder(model_id)
    return folder if folder is not None and _is_complete(folder) else installed_path(model_id)


def installed_path(model_id: str) -> Path | None:
    """As `local_path`, of a model that is installed under its id: a folder of the file system is none."""
    found = (find(model_id) for find in (_in_package, _in_cache))
    return next((path for path in found if path is not None and _is_complete(path)), None)


def probe(model_id: str, *, endpoint: str | None, timeout_s: float = 5.0, client: httpx.Client | None = None) -> Probe:
    """Looks for the model (as `local_path`) here, then on the hub; returns within `timeout_s` seconds in all.

    `endpoint` is a mirror; None for HF_ENDPOINT, or huggingface.co. `client` asks the hub, in another thread.
    """
    hub = _endpoint(endpoint)
    # A resolver or a server that hangs must hold up neither the caller nor the end of the process.
    found = Threads("model-probe").submit(_probe, model_id, hub, timeout_s, client)
    if wait([found], timeout=timeout_s).done:
        return found.result()
    return Probe("none", None, f"{hub} did not answer within {timeout_s:g} s: check the network, or set HF_ENDPOINT")


def download(
    model_id: str,
    *,
    endpoint: str | None,
    progress: Progress | None = None,
    revision: str | None = None,
    most_bytes: int | None = None,
    files: Mapping[str, int | None] | None = None,
) -> Path:
    """Fetches the files that sentence-transformers reads into the Hugging Face cache; a model that is here stays as is.

    They are those of the commit `revision`, or of the newest one; no others than `files` where `probe` has found these: a
    mirror may answer otherwise when it is asked again. Raises DependencyMissing without huggingface_hub, and
    ModelUnavailable where the model is unknown to the hub, the network fails, or more than `most_bytes` arrive whatever
    the hub has announced; the files that have arrived stay for the next try.
    """
    found = local_path(model_id)
    if found is not None:
        return found
    cache_folder()
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - optional, and slow to import

    hub = _endpoint(endpoint)
    # The base of the hub's errors is the HTTPError of whichever HTTP library this version of its client uses.
    network_errors: tuple[type[Exception], ...] = (
        ModelUnavailable,
        httpx.HTTPError,
        httpx.InvalidURL,
        OSError,
        ValueError,  # a path that the hub's client refuses
        *HfHubHTTPError.__bases__,
    )
    try:
        if files is None:
            files, _newest = _hub_files(model_id, hub, timeout_s=30.0, revision=revision)
        _fetch(model_id, files, hub, progress or (lambda _done, _total: None), revision, most_bytes)
    except network_errors as error:
        raise ModelUnavailable(
            _(
                "model '{model_id}' could not be downloaded from {hub} ({reason}): check the id and the "
                "network, set HF_ENDPOINT to a mirror (and HF_TOKEN for a gated model), then run the command "
                "again",
                model_id=model_id,
                hub=hub,
                reason=_one_line(error),
            )
        ) from error
    found = local_path(model_id)
    if found is None:
        raise ModelUnavailable(
            _("model '{model_id}' holds no weights that sentence-transformers reads: choose another", model_id=model_id)
        )
    return found


def _as_folder(name: str) -> Path | None:
    try:
        folder = Path(name).expanduser()
        return folder.resolve() if name and folder.is_dir() else None
    except (OSError, RuntimeError):  # a name too long for a file, an unknown home
        return None


def _in_package(name: str) -> Path | None:
    if not _PACKAGE_NAME.fullmatch(name):
        return None
    try:
        # No dot is left in the name: find_spec would import the parent package.
        spec = find_spec(re.sub(r"[-.]", "_", name))
    except ValueError:  # a module without a spec, such as one made by hand
        return None
    roots = (spec.submodule_search_locations if spec else None) or ()
    return next((Path(root) / "model" for root in roots if (Path(root) / "model").is_dir()), None)


def _in_cache(name: str) -> Path | None:
    if not HUB_ID.fullmatch(name) or find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - optional, and slow to import

    # Not snapshot_download: it calls a snapshot without the files that `download` leaves out incomplete.
    try:
        paths = [try_to_load_from_cache(name, each) for each in _CONFIGURATIONS]
    except ValueError:  # the client's own rules for an id
        return None
    return next((Path(path).parent for path in paths if isinstance(path, str)), None)


def _is_complete(folder: Path) -> bool:
    """Whether a configuration and all weights are there (an interrupted download leaves some out)."""
    files = _files_in(folder)
    first = _first_module(folder)
    if not any(name in files for name in _CONFIGURATIONS):
        return False
    if not any(_is_weights(name) and PurePosixPath(name).parent == first for name in files):
        return False
    return all(_has_all_shards(folder / name) for name in _needed(files) if name.endswith(_INDEXES))


def _first_module(folder: Path) -> PurePosixPath:
    """Where the first module of a sentence-transformers model lies, whose weights `download` fetches last."""
    try:
        return PurePosixPath(json.loads((folder / "modules.json").read_text(encoding="utf-8"))[0]["path"])
    except (OSError, ValueError, LookupError, TypeError):
        return PurePosixPath()


def _has_all_shards(index: Path) -> bool:
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return all((index.parent / shard).is_file() for shard in shards)


def _files_in(folder: Path) -> dict[str, int]:
    """Sizes in bytes by path; a module of a sentence-transformers model lies at most one folder deep."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for pattern in ("*", "*/*")
        for path in folder.glob(pattern)
        if path.is_file()
    }


def _is_weights(name: str) -> bool:
    return any(fnmatchcase(PurePosixPath(name).name, pattern) for pattern in _WEIGHTS)


def _needed(names: Mapping[str, Any]) -> list[str]:
    """The files that sentence-transformers reads: safetensors before PyTorch's pickles, no other runtime's copies."""
    safe_folders = {PurePosixPath(name).parent for name in names if name.endswith(".safetensors")}

    def is_needed(name: str) -> bool:
        path = PurePosixPath(name)
        if len(path.parts) > 2 or _OTHER_RUNTIMES & set(path.parts[:-1]):
            return False
        if path.parent in safe_folders and (path.suffix == ".bin" or path.name.endswith(".bin.index.json")):
            return False
        return _is_weights(name) or any(fnmatchcase(path.name, pattern) for pattern in _TEXT_FILES)

    return [name for name in names if is_needed(name)]


def _probe(model_id: str, hub: str, timeout_s: float, client: httpx.Client | None) -> Probe:
    path = local_path(model_id)
    if path is not None:
        here = _files_in(path)
        return Probe("local", sum(here[name] for name in _needed(here)), f"found in {path}")
    try:
        files, revision = _hub_files(model_id, hub, timeout_s, client=client)
    except (ModelUnavailable, httpx.HTTPError, httpx.InvalidURL) as error:
        return Probe("none", None, f"not on this machine, and not available from {hub}: {_one_line(error)}")
    if not any(_is_weights(name) for name in files):
        return Probe(
            "none", None, f"{hub} has it without weights that sentence-transformers reads: choose another model"
        )
    sizes = [size for size in files.values() if size is not None]
    return Probe(
        "remote",
        sum(sizes) if len(sizes) == len(files) else None,
        f"can be downloaded from {hub}",
        revision,
        is_pickled=any(_is_weights(name) and name.endswith(".bin") for name in files),
        files=files,
    )


def _hub_files(
    model_id: str, hub: str, timeout_s: float, revision: str | None = None, client: httpx.Client | None = None
) -> tuple[dict[str, int | None], str | None]:
    """Sizes in bytes of the needed files by path, at a commit or at the newest one; and the commit, where it is told.

    Raises ModelUnavailable offline, for what is no hub id and for what the hub does not know, and httpx.HTTPError where
    the hub cannot be reached.
    """
    flags = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    if any(os.environ.get(flag, "").upper() in {"1", "ON", "YES", "TRUE"} for flag in flags):
        raise ModelUnavailable(_("HF_HUB_OFFLINE is set: unset it to reach the hub"))
    if not HUB_ID.fullmatch(model_id):
        raise ModelUnavailable(
            _("'{model_id}' is no folder here and no Hugging Face id (organisation/name)", model_id=model_id)
        )
    token = os.environ.get("HF_TOKEN")
    response = (client or httpx).get(
        f"{hub}/api/models/{model_id}" + (f"/revision/{revision}" if revision else ""),
        params={"blobs": "true"},
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=timeout_s,
        follow_redirects=True,
    )
    if response.status_code in {401, 403, 404}:
        raise ModelUnavailable(
            _(
                "{hub} has no model '{model_id}', or not without a token (HTTP {status_code})",
                hub=hub,
                model_id=model_id,
                status_code=response.status_code,
            )
        )
    response.raise_for_status()
    try:
        listing = response.json()
        sizes = {sibling["rfilename"]: sibling.get("size") for sibling in listing["siblings"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelUnavailable(
            _("{hub} does not answer like a Hugging Face hub: check HF_ENDPOINT", hub=hub)
        ) from error
    commit = listing.get("sha")
    return {name: sizes[name] for name in _needed(sizes)}, commit if _COMMIT.fullmatch(str(commit)) else None


def _fetch(
    model_id: str,
    files: Mapping[str, int | None],
    hub: str,
    progress: Progress,
    revision: str | None,
    most_bytes: int | None,
) -> None:
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 - optional, and slow to import

    total = sum(size or 0 for size in files.values())
    done = 0

    def arrived(count: int) -> None:
        if most_bytes is not None and count > most_bytes:
            raise ModelUnavailable(_("more arrives than {most} bytes", most=most_bytes))
        progress(min(count, total), total)

    # Weights last, and after all others those of the first module, so that a snapshot with these is a whole one; the names
    # of the modules' folders begin with a number, and the first may have none of its own.
    by_module = sorted(files, key=lambda name: str(PurePosixPath(name).parent), reverse=True)
    for name in sorted(by_module, key=_is_weights):
        path = Path(
            hf_hub_download(model_id, name, revision=revision, endpoint=hub, tqdm_class=_byte_counter(arrived, done))
        )
        done += path.stat().st_size
        try:
            arrived(done)
        except ModelUnavailable:  # the client has passed over what its progress raised
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise
    if revision is not None and files:  # the client notes only branches, and a model is looked up by its branch
        snapshot = next(folder for folder in path.parents if folder.name == revision)
        branches = snapshot.parents[1] / "refs"
        branches.mkdir(exist_ok=True)
        (branches / "main").write_text(revision, encoding="utf-8")


def _byte_counter(arrived: Callable[[int], None], before: int) -> type[tqdm]:
    class ByteCounter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._arrived = int(kwargs.get("initial") or 0)
            super().__init__(*args, **(kwargs | {"disable": True}))

        def update(self, n: float | None = 1) -> None:
            self._arrived += int(n or 0)
            arrived(before + self._arrived)

    return ByteCounter


def _endpoint(endpoint: str | None) -> str:
    return (endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


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


def open_local(model_id: str, open_folder: Callable[[str], Any], *, kind: str, otherwise: str) -> Any:
    """What `open_folder` makes of the folder with a model's files; transformers draws no progress bar meanwhile.

    In messages `kind` is what the model is, as "reranker", and `otherwise` the way to go without it. Raises
    ModelUnavailable where the libraries or the files are not here, or the files cannot be loaded.
    """
    if not libraries_available():
        raise ModelUnavailable(
            _(
                "{kind} {model_id!r} needs sentence-transformers and torch: run `pip install 'zhiku[models]'`, "
                "or {otherwise}",
                kind=kind,
                model_id=model_id,
                otherwise=otherwise,
            )
        )
    path = local_path(model_id)
    if path is None:
        raise ModelUnavailable(
            _(
                "{kind} {model_id!r} is not on this machine: run `manage.py download_model {model_id}`, or {otherwise}",
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
            _(
                "the files of {kind} {model_id!r} in {path} cannot be loaded ({error}): delete that folder and "
                "run `manage.py download_model {model_id}`, or {otherwise}",
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
