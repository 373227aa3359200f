"""Installs the checkout with some extras into the interpreter's environment: install.py EXTRA,EXTRA.

On Linux without an NVIDIA GPU torch comes from TORCH_INDEX, PyTorch's index of CPU builds; PyPI's build brings gigabytes of
CUDA along. Only torch comes from there, so that no package of another name can. An index that pip is told of goes before.
"""

import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 5
SILENT_SECONDS = 15
WORTH_SAYING = re.compile(r"\((?:\d{2,}(?:\.\d+)? MB|[\d.]+ GB)\)")
NVIDIA = "0x10de"
OWN_INDEX = re.compile(r"^(?:global|install|:env:)\.(?:extra-)?index-url=", re.MULTILINE)


def main(extras: str) -> int:
    torch = _torch_requirement() if "models" in extras.split(",") else ""
    if torch and (index := _cpu_index()):
        _say(f"No NVIDIA GPU: installing the CPU build of {torch} from {index} (about 200 MB).")
        if _pip("--index-url", index, "--no-deps", torch, env=_only_this_index()):
            _say("That failed: taking torch from the default index, which may be gigabytes larger.")
    _say("Installing the other packages; large downloads are listed.")
    return _pip("--constraint", "constraints.txt", "--editable", f".[{extras}]")


def _torch_requirement() -> str:
    """The pinned version, or nothing where it is installed."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["models"]
    found = next(each for each in required if each.startswith("torch=="))
    try:
        installed = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        installed = ""
    return "" if found == f"torch=={installed}" else found


def _cpu_index() -> str:
    """The index to take torch from; empty for the default one."""
    chosen = os.environ.get("TORCH_INDEX")
    if chosen is not None:
        return chosen
    if sys.platform != "linux" or _has_gpu():
        return ""
    if _has_own_index():
        _say("pip has an index of its own, so torch comes from it. TORCH_INDEX=URL names one of CPU builds.")
        return ""
    try:
        context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
        urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=PROBE_SECONDS, context=context).close()
    except OSError as error:
        _say(
            f"{CPU_INDEX} is out of reach ({error}), so torch comes from the default index; "
            "its build may bring gigabytes for GPUs. TORCH_INDEX=URL names another index of CPU builds."
        )
        return ""
    return CPU_INDEX


def _has_gpu() -> bool:
    devices = Path("/sys/bus/pci/devices").glob("*/vendor")
    return (
        shutil.which("nvidia-smi") is not None
        or Path("/proc/driver/nvidia").exists()
        or any(path.read_text().strip() == NVIDIA for path in devices)
    )


def _has_own_index() -> bool:
    command = [sys.executable, "-m", "pip", "config", "list"]
    return bool(OWN_INDEX.search(subprocess.run(command, capture_output=True, text=True, check=False).stdout))


def _only_this_index() -> dict[str, str]:
    """Without an index that would be asked besides --index-url."""
    return {name: value for name, value in os.environ.items() if name != "PIP_EXTRA_INDEX_URL"}


def _pip(*arguments: str, env: dict[str, str] | None = None) -> int:
    """Runs `pip install`, which draws bars at a terminal; elsewhere large downloads are lines, and silence is broken."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    environment = {**(env or os.environ), "PYTHONWARNINGS": "ignore"}
    if sys.stdout.isatty():
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        latest, done = ["starting"], threading.Event()
        threading.Thread(target=_break_silence, args=(latest, done), daemon=True).start()
        for line in process.stdout or ():
            if line.strip()[:1].isalpha():  # no bar
                latest[0] = line.strip()[:120]
            if WORTH_SAYING.search(line) and "Downloading" in line:
                _say(latest[0])
        done.set()
    return process.returncode


def _break_silence(latest: list[str], done: threading.Event) -> None:
    started = time.monotonic()
    while not done.wait(SILENT_SECONDS):
        _say(f"... {time.monotonic() - started:.0f} s: {latest[0]}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
