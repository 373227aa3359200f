import pytest

from config.environment import broker_url, cache_url


@pytest.mark.parametrize(
    ("url", "broker", "cache"),
    [
        ("redis://h:6379/0", "redis://h:6379/0", "redis://h:6379/1"),
        ("redis://h", "redis://h/0", "redis://h/1"),
        ("rediss://:secret@h:6380/3?ssl_cert_reqs=none", "rediss://:secret@h:6380/3?ssl_cert_reqs=none",
         "rediss://:secret@h:6380/4?ssl_cert_reqs=none"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0", "unix:///run/redis.sock?db=1"),
        ("unix:///run/redis.sock?db=2", "redis+socket:///run/redis.sock?virtual_host=2", "unix:///run/redis.sock?db=3"),
    ],
)  # fmt: skip
def test_broker_and_cache_have_databases_of_their_own(url, broker, cache):
    assert (broker_url(url), cache_url(url)) == (broker, cache)
