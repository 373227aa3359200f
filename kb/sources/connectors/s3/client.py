"""A client of S3 that connects only where it may: botocore makes, signs and reads the requests, httpcore sends them.

boto3, which the extra `s3` brings, is imported when a client is made.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpcore
import httpx

from kb.base.net.addresses import FetchError, Guard
from kb.base.net.client import MIB, Deadline, GuardedBackend, bounded, mapped_errors, public_tls

LISTING_SECONDS: Final = 60.0
OBJECT_SECONDS: Final = 600.0
# A page of a listing holds 1,000 keys, percent-encoded, of at most 1,024 bytes each.
_ANSWER_BYTES: Final = 8 * MIB
_REFUSED: Final = frozenset(
    {
        *("AccessDenied", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAccessKeyId"),
        *("InvalidSecurity", "InvalidToken", "RequestTimeTooSkewed", "SignatureDoesNotMatch"),
    }
)
_THROTTLED: Final = frozenset(
    {"SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}
)
# The bucket is at no endpoint of this region.
_ELSEWHERE: Final = frozenset(
    {"NoSuchBucket", "PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException"}
)


class Body:
    """What botocore reads an answer's content from."""

    def __init__(self, response: httpcore.Response, host: str, deadline: Deadline) -> None:
        self._response, self._host, self._deadline = response, host, deadline
        self._pieces = response.iter_stream()
        self._rest = b""

    def read(self, amount: int) -> bytes:
        """The next bytes; b"" at the end. Raises FetchError."""
        while len(self._rest) < amount and (piece := self._next()):
            self._rest += piece
        read, self._rest = self._rest[:amount], self._rest[amount:]
        return read

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        """An answer that is held in memory as a whole."""
        return bounded(iter(self._next, b""), _ANSWER_BYTES)

    def _next(self) -> bytes:
        with mapped_errors(self._host, self._deadline):
            return next(filter(None, self._pieces), b"")

    def close(self) -> None:
        self._response.close()


class Sender:
    """Sends what botocore has signed, to hosts of the endpoint alone and only to addresses that the guard lets through.

    As botocore's event "before-send" it takes the place of its own HTTP client, with its proxies and redirects.
    """

    def __init__(self, guard: Guard) -> None:
        self.deadline, self.domain = Deadline(LISTING_SECONDS), ""
        self._pool = httpcore.ConnectionPool(
            ssl_context=public_tls(),
            network_backend=GuardedBackend(guard, self.deadline),
            keepalive_expiry=20.0,
            retries=0,
        )

    def __call__(self, request: Any, **_: Any) -> Any:
        from botocore.awsrequest import AWSResponse  # noqa: PLC0415 - an optional extra
        from botocore.compat import HTTPHeaders  # noqa: PLC0415

        url = httpx.URL(request.url)
        if url.host != self.domain and not url.host.endswith(f".{self.domain}"):
            raise FetchError("off_site", url=str(url.copy_with(query=None)))
        fields = [
            (name.encode(), value if isinstance(value, bytes) else str(value).encode())
            for name, value in request.headers.items()
        ]
        sent = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=[(b"Host", url.netloc), *(each for each in fields if each[0].lower() != b"host")],
            content=request.body or b"",
        )
        with mapped_errors(url.host, self.deadline):
            response = self._pool.handle_request(sent)
        headers = HTTPHeaders()
        for name, value in response.headers:
            headers.add_header(name.decode("latin-1"), value.decode("latin-1"))
        return AWSResponse(request.url, response.status, headers, Body(response, url.host, self.deadline))

    def close(self) -> None:
        self._pool.close()


def client_of(sender: Sender, *, endpoint: str, region: str, access_key: str, secret_key: str, addressing: str) -> Any:
    """A client of botocore that reads no setting and no credentials of this server; without a key it asks as anybody may."""
    import botocore.session  # noqa: PLC0415 - an optional extra
    from botocore import UNSIGNED  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    # As in botocore.configprovider: the name in a file, in the environment, the default and the conversion.
    own = {
        "profile": (None, None, None, None),
        "config_file": (None, None, os.devnull, None),
        "credentials_file": (None, None, os.devnull, None),
    }
    client = botocore.session.Session(session_vars=own).create_client(
        "s3",
        region_name=region,
        endpoint_url=endpoint or None,
        aws_access_key_id=access_key or None,
        aws_secret_access_key=secret_key or None,
        config=Config(
            signature_version="s3v4" if access_key else UNSIGNED,
            s3={"addressing_style": addressing},
            retries={"total_max_attempts": 1},  # the run comes back by itself
            ignore_configured_endpoint_urls=True,
            proxies={},
        ),
    )
    amazons = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    sender.domain = httpx.URL(endpoint).host if endpoint else amazons
    client.meta.events.register("before-send.s3", sender)
    return client


@contextmanager
def mapped_faults(host: str, bucket: str) -> Iterator[None]:
    """Raises the library's errors as FetchError."""
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError  # noqa: PLC0415 - an optional extra

    try:
        yield
    except ClientError as error:
        raise _fault(error, host, bucket) from error
    except HTTPClientError as error:
        raise FetchError("unreachable", host=host) from error
    except BotoCoreError as error:
        raise FetchError("broken_response", host=host) from error


def _fault(error: Any, host: str, bucket: str) -> FetchError:
    response = error.response
    code, metadata = str(response.get("Error", {}).get("Code", "")), response.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode", 0))
    if code in _THROTTLED or status in {429, 503}:
        after = str(metadata.get("HTTPHeaders", {}).get("retry-after", ""))[:5]
        return FetchError(
            "too_many_requests", host=host, status=status, **({"retry_after": int(after)} if after.isdecimal() else {})
        )
    if code == "InvalidObjectState":
        return FetchError("archived", storage_class=str(response["Error"].get("StorageClass", "GLACIER"))[:40])
    if code == "AccessDenied" and error.operation_name == "GetObject":
        return FetchError("forbidden", status=status)  # this object only
    if code in _REFUSED or status in {401, 403}:
        return FetchError("bad_credentials", host=host, reason=code[:60] or status)
    if code in _ELSEWHERE:
        return FetchError("no_bucket", host=host, bucket=bucket)
    return FetchError("gone" if status in {404, 410} else "bad_status", status=status)
