from ipaddress import ip_address

import pytest
from hypothesis import given, strategies as st

from kb.base.net.addresses import AllowList, FetchError, Guard, is_public, nobody, open_to, parse_url

NOT_PUBLIC = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",  # metadata of one provider
    "127.0.0.1",
    "127.8.8.8",
    "168.63.129.16",  # and of another
    "169.254.169.254",  # of most
    "172.16.0.1",
    "192.0.0.192",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:80ff:fffe",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(address):
    with pytest.raises(FetchError) as refusal:
        Guard(resolver=lambda host, port: [address]).addresses("example.org", 443)
    assert refusal.value.code == "forbidden_address"


@pytest.mark.parametrize(
    "address", ["93.184.215.14", "8.8.8.8", "2606:4700::6810:84e5", "::ffff:8.8.8.8", "2002:808:808::"]
)
def test_a_public_address_is_connected_to(address):
    assert Guard(resolver=lambda host, port: [address]).addresses("example.org", 443) == [str(ip_address(address))]


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_as_public_in_ipv6_as_it_is_by_itself(address):
    for disguise in (f"::ffff:{address}", f"64:ff9b::{int(address) >> 16:x}:{int(address) & 0xFFFF:x}"):
        assert is_public(ip_address(disguise)) == is_public(address)


def test_one_forbidden_address_among_several_refuses_the_host():
    with pytest.raises(FetchError) as refusal:
        Guard(resolver=lambda host, port: ["8.8.8.8", "10.0.0.1"]).addresses("example.org", 443)
    assert refusal.value.params["address"] == "10.0.0.1"


@pytest.mark.parametrize("port", [22, 25, 3306, 5432, 6379, 8000])
def test_a_port_of_another_service_is_refused(port):
    with pytest.raises(FetchError) as refusal:
        Guard(resolver=lambda host, port: ["8.8.8.8"]).addresses("example.org", port)
    assert refusal.value.code == "bad_port"


def test_a_host_without_an_address_is_unknown():
    with pytest.raises(FetchError) as refusal:
        Guard(resolver=lambda host, port: []).addresses("example.org", 443)
    assert refusal.value.code == "unknown_host"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("file:///etc/passwd", "bad_scheme"),
        ("gopher://example.org/", "bad_scheme"),
        ("ftp://example.org/", "bad_scheme"),
        ("javascript:alert(1)", "bad_scheme"),
        ("data:text/html,hello", "bad_scheme"),
        ("http://user:word@example.org/", "has_userinfo"),
        ("http://example.org@127.0.0.1/", "has_userinfo"),
        ("http://2130706433/", "numeric_host"),
        ("http://0x7f000001/", "numeric_host"),
        ("http://0177.0.0.1/", "bad_url"),
        ("http://127.1/", "numeric_host"),
        ("http://0x7f.1/", "numeric_host"),
        ("http://127.0.0.1./", "numeric_host"),
        ("http:\\\\127.0.0.1\\", "bad_url"),
        ("http://example.org\\@127.0.0.1/", "bad_url"),
        ("//example.org/", "bad_url"),
        ("example.org", "bad_url"),
        ("http://", "bad_url"),
        ("http://[::1", "bad_url"),
        ("https://example.org/" + "a" * 2_000, "bad_url"),
    ],
)
def test_an_address_of_another_form_is_refused(url, code):
    with pytest.raises(FetchError) as refusal:
        parse_url(url)
    assert refusal.value.code == code


def test_what_follows_a_fragment_is_no_host():
    assert parse_url("http://127.0.0.1#@example.org/").host == "127.0.0.1"


def test_digits_of_another_script_are_no_address():
    wide = "".join(chr(ord("\uff10") + int(digit)) for digit in "127")
    with pytest.raises(FetchError):
        parse_url(f"http://{wide}.0.0.1/")


class TestAllowList:
    def test_a_network_allows_its_addresses_at_any_port(self):
        guard = Guard(AllowList.parse(["10.1.0.0/16"]), lambda host, port: ["10.1.2.3"])
        assert guard.addresses("wiki", 8000) == ["10.1.2.3"]

    def test_a_network_allows_an_address_in_its_ipv6_form(self):
        guard = Guard(AllowList.parse(["10.1.0.0/16"]), lambda host, port: ["::ffff:10.1.2.3"])
        assert guard.addresses("wiki", 80) == ["::ffff:a01:203"]

    def test_a_name_allows_a_private_address(self):
        guard = Guard(AllowList.parse(["wiki.intranet"]), lambda host, port: ["10.1.2.3"])
        assert guard.addresses("WIKI.intranet", 8000) == ["10.1.2.3"]

    def test_a_name_with_a_port_allows_no_other_one(self):
        guard = Guard(AllowList.parse(["wiki.intranet:8000"]), lambda host, port: ["10.1.2.3"])
        with pytest.raises(FetchError):
            guard.addresses("wiki.intranet", 9000)

    @pytest.mark.parametrize("address", ["169.254.169.254", "168.63.129.16", "224.0.0.1", "0.0.0.0"])
    def test_a_name_allows_no_address_that_no_intranet_has(self, address):
        guard = Guard(AllowList.parse(["wiki.intranet"]), lambda host, port: [address])
        with pytest.raises(FetchError):
            guard.addresses("wiki.intranet", 80)

    def test_another_name_at_the_same_address_is_not_allowed(self):
        guard = Guard(AllowList.parse(["wiki.intranet"]), lambda host, port: ["10.1.2.3"])
        with pytest.raises(FetchError):
            guard.addresses("evil.example.org", 80)


@pytest.mark.parametrize(
    ("owner", "places"), [(nobody, ["wiki"]), (lambda: "mei", ["wiki", "notes"]), (lambda: "a@b", ["wiki", "files"])]
)
def test_what_is_open_to_one_user_is_open_to_neither_another_nor_nobody(owner, places):
    assert open_to(owner, ["wiki", " notes@mei", "files@a@b"]) == places
