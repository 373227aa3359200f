"""A bucket of an object store that speaks S3, or the objects below a prefix of it."""

import base64
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, ClassVar

import httpx
from django.conf import settings
from django.utils.translation import gettext as _, gettext_lazy

from kb.base.errors import Rejected
from kb.base.net.addresses import AllowList, FetchError, Guard, Owner, nobody, open_to, parse_url
from kb.base.net.client import MIB, bounded, too_large
from kb.sources.connectors.protocol import MOST_FILES, Connector, Item, Portion
from kb.sources.connectors.s3.client import LISTING_SECONDS, OBJECT_SECONDS, Sender, client_of, mapped_faults
from kb.sources.connectors.selection import SELECTION_FIELDS, Selection
from kb.sources.fields import Field


class S3(Connector):
    """Objects of a bucket, with their ETags as versions."""

    fields: ClassVar[tuple[Field, ...]] = (
        Field(
            "endpoint",
            gettext_lazy("endpoint"),
            gettext_lazy("Such as https://s3.example.org. Blank: Amazon S3 of the region."),
            pattern=r"[!-~]{0,500}",
        ),
        Field("region", gettext_lazy("region"), default="us-east-1", pattern=r"[a-z0-9-]{1,40}"),
        Field(
            "bucket", gettext_lazy("bucket"), pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]", is_required=True
        ),
        Field(
            "prefix",
            gettext_lazy("prefix"),
            gettext_lazy("Only objects whose keys begin like this, such as manuals/. Blank: all of the bucket."),
            pattern=r"[^\x00]{0,900}",
            is_filter=True,
        ),
        Field(
            "access_key",
            gettext_lazy("access key"),
            gettext_lazy("Of a user who may only list and read. Blank: the bucket is public."),
            pattern=r"[!-~]{0,200}",
        ),
        Field("secret_key", gettext_lazy("secret key"), pattern=r"[!-~]{0,500}", is_secret=True),
        Field(
            "addressing",
            gettext_lazy("bucket is named in"),
            gettext_lazy(
                "“virtual” is the name of the host, “path” the path of an address. “auto” is right for Amazon and MinIO; Alibaba "
                "and Tencent Cloud want “virtual”."
            ),
            default="auto",
            choices=("auto", "path", "virtual"),
        ),
        *SELECTION_FIELDS,
    )

    def __init__(self, values: Mapping[str, Any], guard: Guard | None = None, *, owner: Owner = nobody) -> None:
        """Raises Rejected where the settings do not go together."""
        if endpoint := values.get("endpoint", ""):
            try:
                url = parse_url(endpoint)
            except FetchError as error:
                raise Rejected(
                    "endpoint_invalid", _("The endpoint is no web address: give its https:// address.")
                ) from error
            if url.path.strip("/") or url.query or url.fragment:
                raise Rejected(
                    "endpoint_invalid",
                    _(
                        "The endpoint ends with its host or port: give the bucket and the prefix in fields of their own."
                    ),
                )
        if bool(values.get("access_key")) != bool(values.get("secret_key")):
            raise Rejected("secret_key_invalid", _("Give both the access key and the secret key, or neither."))
        self._values = values
        self._bucket, self._prefix = str(values["bucket"]), str(values.get("prefix", ""))
        self._host = httpx.URL(values.get("endpoint", "")).host or "Amazon S3"
        self._selection = Selection.parse(
            values.get("include", ""), values.get("exclude", ""), hidden=values.get("hidden", False)
        )
        self._guard = guard or Guard(AllowList.parse(open_to(owner, settings.WEB_ALLOWED_HOSTS)))

    @staticmethod
    def installed() -> bool:
        """Whether the client library, an extra, is there."""
        return importlib.util.find_spec("botocore") is not None

    def __enter__(self) -> "S3":
        values = self._values
        self._sender = Sender(self._guard)
        with mapped_faults(self._host, self._bucket):
            self._client = client_of(
                self._sender,
                endpoint=values.get("endpoint", ""),
                region=values.get("region") or "us-east-1",
                access_key=values.get("access_key", ""),
                secret_key=values.get("secret_key", ""),
                addressing=values.get("addressing") or "auto",
            )
        return self

    def __exit__(self, *exception: object) -> None:
        self._sender.close()
        self._client.close()

    def portions(self, position: Any) -> Iterator[Portion]:
        token, count = position or ("", 0)
        while True:
            self._sender.deadline.restart(LISTING_SECONDS)
            after = {"ContinuationToken": token} if token else {}
            with mapped_faults(self._host, self._bucket):
                page = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, **after)
            if "IsTruncated" not in page:
                raise FetchError(
                    "broken_response", host=self._host
                )  # the page of some other service is no empty bucket
            count += max(1, len(page.get("Contents", ())))  # a listing of empty pages ends too
            if count > MOST_FILES:
                raise FetchError("too_many_items", most=MOST_FILES)
            following = page.get("NextContinuationToken", "") if page["IsTruncated"] else ""
            if page["IsTruncated"] and following in {"", token}:
                raise FetchError("broken_response", host=self._host)  # it would go round in a circle
            token = following
            yield Portion(list(self._taken(page.get("Contents", ()))), (token, count) if token else None)
            if not token:
                return

    def _taken(self, found: Iterable[Any]) -> Iterator[Item]:
        for each in found:
            key = each["Key"]
            # A key that ends with a slash is a folder to programs that show folders.
            if "\x00" not in key and self._selection.takes(key.removeprefix(self._prefix).lstrip("/") or key):
                name = key.rpartition("/")[2]
                yield Item(key=key, version=each["ETag"], name=name, size=each["Size"], modified=each["LastModified"])

    def fetch(self, item: Item, into: BinaryIO, most: int) -> Item:
        """As `Connector.fetch`; an answer is of one version throughout, whatever is stored meanwhile, and names it."""
        self._sender.deadline.restart(OBJECT_SECONDS)
        with mapped_faults(self._host, self._bucket):
            answer = self._client.get_object(Bucket=self._bucket, Key=item.key, ChecksumMode="ENABLED")
            with closing(answer["Body"]) as body:
                if answer["ContentLength"] > most:
                    raise too_large(most)
                size = sum(map(into.write, bounded(iter(partial(body.read, MIB), b""), most)))
        # Of an object in parts it is a checksum of checksums, and ends with their number.
        checksum = answer.get("ChecksumSHA256", "")
        digest = base64.b64decode(checksum).hex() if len(checksum) == 44 else ""
        return replace(item, version=answer["ETag"], digest=digest, size=size, modified=answer["LastModified"])
