"""The image of the Dockerfile, built with buildah where there is neither a daemon nor a registry.

A Debian that debootstrap makes stands in for the official Python image. pip and apt use the settings of this machine,
which are mounted for the build and are no part of the image.
"""

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.deployment.compose import ROOT

# The release of Debian whose Python Zhiku runs on.
DEBIAN, PYTHON = "bookworm", "3.11"
BASE = f"docker.io/library/python:{PYTHON}-slim-{DEBIAN}"
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Of the base; the official image has none of these either.
LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists", "var/log")
APT_SETTINGS = re.compile(r"^Acquire::(?:https?::|Check-|Retries|ForceIPv).*$", re.MULTILINE)
PIP_SETTING = re.compile(r"^(?P<section>[^.]+)\.(?P<name>[^=]+)=(?P<value>.+)$", re.MULTILINE)
PATHS_OF_PIP = {"constraint", "find-links", "index-url", "extra-index-url", "cert", "client-cert"}


class Store:
    """Images and containers in a folder of their own.

    Args:
        folder: outside the repository; the base is cached in it.
    """

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # On vfs every container is a whole copy of its image.
        self._driver = "overlay" if self._works("overlay") else "vfs"

    def _works(self, driver):
        return self._buildah(driver, "images", check=False).returncode == 0

    def _buildah(self, driver, *arguments, check=True, log=None):
        place = ("--root", str(self.folder / driver), "--runroot", str(self.folder / f"{driver}-run"))
        command = ["buildah", "--storage-driver", driver, *place, *arguments]
        if log:
            return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
        stderr = None if check else subprocess.DEVNULL
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=check)

    def buildah(self, *arguments, check=True):
        """What it printed, without white space around it."""
        return self._buildah(self._driver, *arguments, check=check).stdout.strip()

    def build(self, tag):
        """Builds the Dockerfile as it stands."""
        self._make_base()
        settings = self.folder / "settings"
        shutil.rmtree(settings, ignore_errors=True)
        settings.mkdir()
        mounts = [*_settings_of_pip(settings), *_settings_of_apt(settings)]
        arguments = {"PYTHON_VERSION": PYTHON, "DEBIAN": DEBIAN}
        if not _index_of_torch_answers():
            print("The index of TORCH_INDEX does not answer: PyTorch comes from where pip finds it here.", flush=True)
            arguments["TORCH_INDEX"] = ""
        command = ["build", "--format", "docker", "--isolation", "chroot", "--pull=never", "--tag", tag]
        for name, value in arguments.items():
            command += ["--build-arg", f"{name}={value}"]
        for mount in mounts:
            command += ["--volume", f"{mount}:ro"]
        with (self.folder / "build.log").open("w") as log:
            try:
                self._buildah(self._driver, *command, str(ROOT), log=log)
            except subprocess.CalledProcessError:
                print((self.folder / "build.log").read_text(), file=sys.stderr)
                raise

    def _make_base(self):
        if BASE in self.buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
            return
        root = self.folder / "base"
        shutil.rmtree(root, ignore_errors=True)
        packages = "--include=python3,python3-venv,ca-certificates"
        keyring = (f"--keyring={KEYRING}",) if Path(KEYRING).exists() else ()
        sources = _sources_of_apt()
        _quietly("debootstrap", "--variant=minbase", *keyring, packages, DEBIAN, str(root), sources[0].split()[0])
        for each in LEFT_OUT:
            shutil.rmtree(root / each)
            (root / each).mkdir()
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        (root / "etc/apt/sources.list").write_text("".join(f"deb {source}\n" for source in sources))
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, str(root), "/")
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.buildah("config", "--env", f"PATH={path}", "--env", "LANG=C.UTF-8", "--cmd", "python3", container)
        self.buildah("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(root)

    @contextlib.contextmanager
    def mounted(self, image):
        """An image's files, as a folder, and its configuration."""
        container = self.buildah("from", *(["--pull=never"] if image.startswith("localhost/") else []), image)
        try:
            configuration = json.loads(self.buildah("inspect", "--type", "container", container))["OCIv1"]["config"]
            yield Path(self.buildah("mount", container)), configuration
        finally:
            self.buildah("rm", container)

    def size_of(self, image):
        return self.buildah("images", "--format", "{{.Size}}", image)

    def remove(self, image):
        """Removes an image and what a build that broke off left; the base stays."""
        self.buildah("rm", "--all", check=False)
        self.buildah("rmi", image, check=False)
        self.buildah("rmi", "--prune", check=False)


def _quietly(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    done.check_returncode()


def _sources_of_apt():
    """Lines of sources.list: those of this machine where it is a Debian of the same release, else Debian's own."""
    form = "$(REPO_URI) $(CODENAME) $(COMPONENT) $(ORIGIN)"
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    entries = [line.split() for line in listed.splitlines()]
    found = [f"{uri} {name} {part}" for uri, name, part, *origin in entries if origin == ["Debian"] and DEBIAN in name]
    found.sort(key=lambda line: line.split()[1] != DEBIAN)  # the release itself first, then its updates
    return found if found and found[0].split()[1] == DEBIAN else [f"{MIRROR} {DEBIAN} main"]


def _settings_of_apt(folder):
    dumped = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    (folder / "apt.conf").write_text("\n".join([*APT_SETTINGS.findall(dumped), ""]))
    return [f"{folder / 'apt.conf'}:/etc/apt/apt.conf.d/99host"]


def _settings_of_pip(folder):
    """One file of what pip goes by here, and the files and folders that it names."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = {}
    # Last come those of the environment, which go before the others.
    for found in sorted(PIP_SETTING.finditer(listed), key=lambda found: found["section"] == ":env:"):
        section = "global" if found["section"] == ":env:" else found["section"]
        settings.setdefault(section, {})[found["name"]] = str(ast.literal_eval(found["value"])).split()
    lines = []
    for section, values in settings.items():
        lines += [f"[{section}]", *(f"{name} = {' '.join(words)}" for name, words in values.items())]
    (folder / "pip.conf").write_text("\n".join([*lines, ""]))
    words = {
        word.removeprefix("file://")
        for values in settings.values()
        for name in PATHS_OF_PIP & set(values)
        for word in values[name]
    }
    # An index of files refers to files beside it.
    paths = {Path(word).parent if Path(word).name == "simple" else Path(word) for word in words if word.startswith("/")}
    return [f"{folder / 'pip.conf'}:/etc/pip.conf", *(f"{path}:{path}" for path in sorted(paths) if path.exists())]


def _index_of_torch_answers():
    index = re.search(r"^ARG TORCH_INDEX=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1]
    if "PIP_NO_INDEX" in os.environ:
        return False
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=15):
            return True
    except (urllib.error.URLError, OSError):
        return False
