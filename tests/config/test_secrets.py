"""No secret and no default password stands in the source."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----",
    "OpenAI or DeepSeek": r"\bsk-[A-Za-z0-9_-]{20,}",
    "Hugging Face": r"\bhf_[A-Za-z0-9]{30,}",
    "GitHub": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{50,})",
    "AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "Google": r"\bAIza[0-9A-Za-z_-]{35}",
    "Slack": r"\bxox[abprs]-[0-9A-Za-z-]{10,}",
    "API key of this project": r"\b[A-Za-z0-9]{8}\.[A-Za-z0-9]{40}\b",
    "password in an address": r"\b(?:postgres(?:ql)?|rediss?|amqp|https?)://[^\s/:@'\"{}<>$]*:[^\s/@'\"{}<>$]{3,}@",
    "assigned value": r"(?i)\b(?:secret_key|password|passwd|api_key|access_token)\b['\"]?\s*[:=]\s*['\"][A-Za-z0-9+/_=-]{16,}['\"]",
}
PLACEHOLDERS = re.compile(r"(?i)example|change[-_]?me|your[-_]|placeholder|xxxx|\.\.\.|PASSWORD|SECRET")
IN_TESTS = re.compile(r"^tests/")
MADE_FOR_TESTS = {"tests/config/test_secrets.py", "tests/data/tls/named.example.org.pem"}
"""This file, and the key of a server that runs on the loopback while a test does."""
MADE_UP_IN_TESTS = {"password in an address", "assigned value"}
"""Kinds of which tests hold invented ones."""
BINARY = {".png", ".pdf", ".docx", ".mo", ".zip", ".gz", ".npz", ".ico"}


def findings(text):
    for kind, pattern in KEYS.items():
        for match in re.finditer(pattern, text):
            if not PLACEHOLDERS.search(match[0].partition("=")[2] or match[0]):
                yield kind, match[0]


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("the source is no checkout")
    names = [name for name in listed.stdout.decode().split("\0") if name]
    return [name for name in names if Path(name).suffix not in BINARY and (ROOT / name).is_file()]


def test_no_file_holds_anything_like_a_key():
    found = {}
    for name in tracked():
        if name in MADE_FOR_TESTS:
            continue
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        kinds = [each for each in findings(text) if not (IN_TESTS.match(name) and each[0] in MADE_UP_IN_TESTS)]
        if kinds:
            found[name] = kinds
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN RSA PRIVATE KEY-----",
        "key = 'sk-" + "a1" * 12 + "'",
        "ghp_" + "a1" * 18,
        "AKIA" + "A1" * 8,
        "abcdefgh." + "a1" * 20,
        "postgres://zhiku:hunter22@db/zhiku",
        "SECRET_KEY = 'aaaaaaaaaaaaaaaaaaaaaaaa'",
    ],
)
def test_what_is_like_a_key_is_found(text):
    assert list(findings(text))


@pytest.mark.parametrize(
    "text", ["postgres://zhiku@db/zhiku", "postgres://zhiku:PASSWORD@db/zhiku", "SECRET_KEY=$(openssl rand -base64 48)"]
)
def test_placeholders_are_none(text):
    assert not list(findings(text))


def test_no_password_of_a_user_is_set_in_the_source():
    made = re.compile(r"(?:set_password|create_user|create_superuser)\([^)\n]*['\"]")
    sources = [name for name in tracked() if name.endswith(".py") and not IN_TESTS.match(name)]

    assert [name for name in sources if made.search((ROOT / name).read_text())] == []
