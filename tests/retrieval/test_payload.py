import hmac
import pickle
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from retrieval.errors import RetrievalError
from retrieval.payload import PayloadCodec, PayloadError

SECRET = b"the installation's secret"
KEY = "installation|7|42|jieba|f00d"

states = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.fixture
def codec():
    return PayloadCodec(SECRET)


class RunsCode:
    """Pickled, it creates a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def seal_bytes(compressed, secret=SECRET, key=KEY):
    """The documented layout around any bytes, as someone who knows the secret could make it."""
    mac_key = hmac.digest(secret, b"zhiku/retrieval/payload", "sha256")
    name = key.encode()
    covered = b"\x01" + len(name).to_bytes(8, "little") + name + compressed
    return b"\x01" + hmac.digest(mac_key, covered, "sha256") + compressed


@given(state=states)
def test_a_state_survives_sealing(state):
    codec = PayloadCodec(SECRET)

    assert codec.open(KEY, codec.seal(KEY, state)) == state


def test_the_layout_is_the_documented_one(codec):
    assert codec.seal(KEY, {"a": 1}) == seal_bytes(zlib.compress(pickle.dumps({"a": 1}, protocol=5), 1))


def test_repetitive_states_shrink(codec):
    assert len(codec.seal(KEY, b"0" * 100_000)) < 2_000


def test_a_payload_signed_with_another_secret_is_refused(codec):
    with pytest.raises(PayloadError, match="signature"):
        codec.open(KEY, PayloadCodec(b"another secret").seal(KEY, 1))


def test_a_payload_moved_from_another_kb_is_refused(codec):
    with pytest.raises(PayloadError, match="signature"):
        codec.open(KEY, codec.seal("installation|8|42|jieba|f00d", 1))


def test_a_key_cannot_borrow_bytes_from_the_payload(codec):
    payload = codec.seal("ab", 1)

    with pytest.raises(PayloadError, match="signature"):
        codec.open("a", payload[:33] + b"b" + payload[33:])


@pytest.mark.parametrize("size", [0, 1, 32, 33, 40])
def test_a_truncated_payload_is_refused(codec, size):
    with pytest.raises(PayloadError, match=r"truncated|signature"):
        codec.open(KEY, codec.seal(KEY, list(range(100)))[:size])


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_payload_with_any_bit_changed_is_refused(place, bit):
    codec = PayloadCodec(SECRET)
    payload = bytearray(codec.seal(KEY, {"terms": b"12345678"}))
    payload[place % len(payload)] ^= 1 << bit

    with pytest.raises(PayloadError):
        codec.open(KEY, bytes(payload))


@given(payload=st.binary(max_size=200))
def test_garbage_is_refused(payload):
    with pytest.raises(PayloadError):
        PayloadCodec(SECRET).open(KEY, payload)


def test_an_older_format_is_refused(codec):
    with pytest.raises(PayloadError, match="format 00, not 01"):
        codec.open(KEY, b"\x00" + codec.seal(KEY, 1)[1:])


def test_a_pickle_that_would_run_code_does_not_run_without_the_secret(codec, tmp_path):
    marker = tmp_path / "ran"

    with pytest.raises(PayloadError, match="signature"):
        codec.open(KEY, PayloadCodec(b"attacker").seal(KEY, RunsCode(marker)))

    assert not marker.exists()


def test_a_pickle_that_would_run_code_does_not_run_with_the_secret(codec, tmp_path):
    marker = tmp_path / "ran"
    payload = codec.seal(KEY, RunsCode(marker))

    with pytest.raises(PayloadError, match="refers to"):
        codec.open(KEY, payload)

    assert not marker.exists()
    pickle.loads(zlib.decompress(payload[33:]))
    assert marker.exists(), "the pickle was harmless, so this test showed nothing"


def test_an_unsigned_pickle_is_not_even_decompressed(codec):
    not_zlib = b"\x01" + bytes(32) + b"not zlib at all"

    with pytest.raises(PayloadError, match="signature"):
        codec.open(KEY, not_zlib)


def test_a_persistent_id_is_refused(codec):
    with pytest.raises(PayloadError, match="persistent id"):
        codec.open(KEY, seal_bytes(zlib.compress(b"Psomewhere\n.")))


@given(pickled=st.binary(max_size=40))
def test_any_signed_bytes_give_builtins_or_a_payload_error(pickled):
    with suppress(PayloadError):
        state = PayloadCodec(SECRET).open(KEY, seal_bytes(zlib.compress(pickled)))
        assert type(state).__module__ == "builtins"


@pytest.mark.parametrize(
    ("compressed", "reason"),
    [(b"not zlib", "does not decompress"), (zlib.compress(pickle.dumps("text"))[:-6], "ends early")],
)
def test_signed_bytes_that_are_no_compressed_pickle_are_refused(codec, compressed, reason):
    with pytest.raises(PayloadError, match=reason):
        codec.open(KEY, seal_bytes(compressed))


def test_a_decompression_bomb_stops_at_the_limit():
    bomb = PayloadCodec(SECRET).seal(KEY, bytes(1_000_000))

    with pytest.raises(PayloadError, match="more than 1000 bytes"):
        PayloadCodec(SECRET, max_bytes=1000).open(KEY, bomb)


def test_a_state_over_the_limit_is_not_sealed():
    with pytest.raises(PayloadError, match="over the limit of 1000"):
        PayloadCodec(SECRET, max_bytes=1000).seal(KEY, bytes(1001))


def test_a_state_at_the_limit_is_sealed_and_opened():
    state = bytes(1000)
    codec = PayloadCodec(SECRET, max_bytes=len(pickle.dumps(state, protocol=5)))

    assert codec.open(KEY, codec.seal(KEY, state)) == state


def test_an_empty_secret_is_refused():
    with pytest.raises(ValueError, match="secret key"):
        PayloadCodec(b"")


def test_payload_errors_are_retrieval_errors():
    assert issubclass(PayloadError, RetrievalError)
