""".ci/release, by which the workflow of a release checks, builds and starts what it publishes."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "release"
PYPROJECT = '[project]\nname = "zhiku"\nversion = "1.2.0"\n'
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n{unreleased}\n## [1.2.0] - 2026-01-31\n{released}\n## [1.1.0]\n\n- Older.\n"
)


def run(*arguments, **variables):
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


@pytest.fixture
def check(tmp_path):
    """Runs the check of a project with these lines under [Unreleased] and under [1.2.0]."""

    def check(tag, unreleased="", released="\n- New.\n", changelog=CHANGELOG):
        (tmp_path / "pyproject.toml").write_text(PYPROJECT)
        (tmp_path / "CHANGELOG.md").write_text(changelog.format(unreleased=unreleased, released=released))
        return run("check", *([tag] if tag else []), RELEASE_ROOT=str(tmp_path))

    return check


def test_a_tag_that_version_and_changelog_agree_with_passes(check):
    assert check("v1.2.0").returncode == 0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tag": "v1.3.0"}, "the tag of that is v1.2.0"),
        ({"tag": "1.2.0"}, "the tag of that is v1.2.0"),
        ({"tag": "v1.2.0", "released": ""}, "says nothing of 1.2.0"),
        ({"tag": "v1.2.0", "changelog": "# Changelog\n\n## [Unreleased]\n"}, "says nothing of 1.2.0"),
        ({"tag": "v1.2.0", "unreleased": "\n- Not moved.\n"}, "still has lines under [Unreleased]"),
        ({"tag": "v1.2.0", "changelog": "# Changelog\n\n## [1.2.0]\n\n- New.\n"}, "does not begin with a section [Unr"),
    ],
)
def test_what_does_not_agree_is_a_sentence_and_an_exit_code(check, given, sentence):
    done = check(**given)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_between_releases_lines_gather_under_unreleased(check):
    assert check("", unreleased="\n- To come.\n").returncode == 0


def test_this_checkout_passes():
    done = run("check")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """What git knows of this checkout, as it is now, so that a build leaves nothing in it."""
    folder = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode:
        pytest.skip("the source is no checkout")
    for name in listed.stdout.decode().split("\0"):
        if name and not name.startswith("tests/") and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def built(source, target):
    return run("build", target, RELEASE_ROOT=str(source), RELEASE_ISOLATION="no")


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    done = built(source, tmp_path_factory.mktemp("dist"))
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_the_wheel_holds_what_the_product_needs_and_no_more(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "kb/templates/admin/index.html",
        "kb/static/kb/admin.css",
        "kb/locale/zh_Hans/LC_MESSAGES/django.mo",
        "kb/migrations/0001_initial.py",
        "kb/demo/zh/faq.md",
        "kb/demo/en/warranty.docx",
        "config/__main__.py",
    ):
        assert name in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"config", "kb", "retrieval"}


def test_a_file_that_the_wheel_would_lack_is_named(source, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(source, copied)
    (copied / "kb" / "demo" / "zh" / "deeper").mkdir()
    (copied / "kb" / "demo" / "zh" / "deeper" / "forgotten.txt").write_text("?")
    subprocess.run(["git", "add", "-A"], cwd=copied, check=True)
    done = built(copied, tmp_path / "dist")
    assert done.returncode == 1
    assert "lacks 1 files of the source, such as kb/demo/zh/deeper/forgotten.txt" in done.stderr


def test_the_wheel_runs_where_it_is_installed(wheel):
    done = run("start", wheel, "--packages-of", sys.executable)
    assert done.returncode == 0, done.stderr


def test_the_workflow_publishes_only_what_it_has_tested_and_names_no_registry():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    tested = {"wheel", "image", "check-and-test"}
    for name in ("publish-wheel", "publish-image"):
        assert set(jobs[name]["needs"]) == tested
        assert "checkout" not in str(jobs[name]), "what is published is what was tested"
    commands = [step["run"] for name in tested for step in jobs[name]["steps"] if "run" in step]
    for step in (*(f".ci/release {name} " for name in ("check", "build", "start", "test")), "tests.deployment.image"):
        assert any(step in command for command in commands), step
    assert not re.search(r"\b(?:ghcr\.io|docker\.io|quay\.io|pypi\.org)\b", text)
    assert jobs["publish-wheel"]["permissions"] == {"id-token": "write"}
