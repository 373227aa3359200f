"""Builds the image and uses it as an operator and a user do: python -m tests.deployment.image [IMAGE]

It migrates, starts web, MCP, worker and beat as compose.yaml has them, uploads, searches, asks, backs up, stops and
restores. IMAGE is one that is there already (docker-archive:zhiku.tar, docker-daemon:zhiku:latest) and is not built.
It runs as root on Linux, with buildah, debootstrap and iproute2; ZHIKU_IMAGE_WORK is its folder, in which the base stays.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.deployment.compose import ROOT
from tests.deployment.image.building import Store

TAG = "localhost/zhiku-of-the-test:latest"
WORK = "/var/cache/zhiku-image"
# A network with nothing but a loopback, and processes that all end with the first.
ALONE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "/bin/sh", "-c")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.deployment.image", description=__doc__.partition("\n")[0])
    parser.add_argument("image", nargs="?", help="of one that is not to be built")
    given = parser.parse_args().image
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is made is removed
    store = Store(Path(os.environ.get("ZHIKU_IMAGE_WORK") or WORK))
    store.remove(TAG)  # of a run that was killed
    with contextlib.ExitStack() as stack:
        stack.callback(store.remove, TAG)
        if not given:
            with _timed("built"):
                store.build(TAG)
            print(f"  {store.size_of(TAG)}", flush=True)
        root, configuration = stack.enter_context(store.mounted(given or TAG))
        for name in ("opt/zhiku", "app", "usr"):
            print(f"  /{name}: {_megabytes(root / name)} MB", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="use-", dir=store.folder))
        stack.callback(shutil.rmtree, folder)
        command = [
            sys.executable,
            "-m",
            "tests.deployment.image.use",
            str(root),
            json.dumps(configuration),
            str(folder),
        ]
        with _timed("used"):
            subprocess.run([*ALONE, f"ip link set lo up && exec {shlex.join(command)}"], cwd=ROOT, check=True)


@contextlib.contextmanager
def _timed(what):
    began = time.monotonic()
    yield
    print(f"The image was {what} in {time.monotonic() - began:.0f} s.", flush=True)


def _megabytes(folder):
    listed = subprocess.run(["du", "-s", "--block-size=MB", str(folder)], capture_output=True, text=True, check=True)
    return int(listed.stdout.split("MB")[0])


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{shlex.join(map(str, error.cmd[:4]))} … ended with {error.returncode}")
