"""Secrets in the database: what opens them, and what does not."""

import pytest

from kb.base.encryption import SecretsUnreadable, decrypted, encrypted

SECRETS = {"password": "correct horse", "key": "-----BEGIN\nprivate"}


def test_a_token_holds_nothing_of_the_secret_and_is_another_one_each_time():
    token = encrypted(SECRETS)
    assert decrypted(token) == SECRETS
    assert "horse" not in token
    assert encrypted(SECRETS) != token


def test_nothing_is_stored_of_no_secrets():
    assert (encrypted({}), decrypted("")) == ("", {})


def test_a_former_key_opens_what_it_closed_and_the_present_one_closes(settings):
    before = encrypted(SECRETS)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "the next one"
    assert decrypted(before) == SECRETS
    after = encrypted(SECRETS)
    settings.SECRET_KEY_FALLBACKS = []
    assert decrypted(after) == SECRETS
    with pytest.raises(SecretsUnreadable):
        decrypted(before)


def test_a_changed_token_is_refused():
    token = encrypted(SECRETS)
    with pytest.raises(SecretsUnreadable):
        decrypted(token[:-4] + "AAA=")
