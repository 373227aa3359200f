import pytest
from django.test import RequestFactory

from kb.base.net.client_address import client_address, client_network


def address(settings, proxies, forwarded=None):
    settings.TRUSTED_PROXIES = proxies
    headers = {} if forwarded is None else {"x-forwarded-for": forwarded}
    return client_address(RequestFactory(REMOTE_ADDR="10.0.0.1").get("/", headers=headers))


@pytest.mark.parametrize(
    ("proxies", "forwarded", "expected"),
    [
        (0, "198.51.100.7", "10.0.0.1"),
        (1, "198.51.100.7", "198.51.100.7"),
        (1, "203.0.113.9, 198.51.100.7", "198.51.100.7"),
        (2, "203.0.113.9, 198.51.100.7, 10.0.0.2", "198.51.100.7"),
        (2, "198.51.100.7", "10.0.0.1"),
        (1, "198.51.100.7:4711", "198.51.100.7"),
        (1, "[2001:db8::1]:4711", "2001:db8::1"),
        (1, "2001:DB8::1", "2001:db8::1"),
        (1, "::ffff:198.51.100.7", "198.51.100.7"),
        (1, "nonsense", ""),
        (1, None, "10.0.0.1"),
    ],
)
def test_the_address_is_what_the_outermost_proxy_of_ones_own_has_seen(settings, proxies, forwarded, expected):
    assert address(settings, proxies, forwarded) == expected


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::9", "2001:db8:1:2::"),
        ("2001:db8:1:3::9", "2001:db8:1:3::"),
        ("fe80::1%eth0", "fe80::"),
        ("nonsense", ""),
    ],
)
def test_a_network_of_ipv6_counts_as_one_client(settings, address, network):
    settings.TRUSTED_PROXIES = 0

    assert client_network(RequestFactory(REMOTE_ADDR=address).get("/")) == network
