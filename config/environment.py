"""What settings are made of: variables of the environment, in the forms that Django and the libraries want."""

import re
from types import NoneType
from typing import Any, Literal, get_args, get_origin
from urllib.parse import parse_qs, urlencode, urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

from retrieval.settings import Setting


class NamingEnv(environ.Env):  # type: ignore[misc] # the package has no types
    """The environment, whose faults name the variable."""

    def get_value(self, var: str, *args: Any, **kwargs: Any) -> Any:
        """As `environ.Env`; ImproperlyConfigured where the value is not of the kind that the variable wants."""
        try:
            return super().get_value(var, *args, **kwargs)
        except ValueError as error:
            is_secret = any(word in var for word in ("KEY", "PASSWORD", "TOKEN", "URL"))
            why = "it is not of the kind that is wanted" if is_secret else str(error)
            raise ImproperlyConfigured(
                f"{var} cannot be read: {why}. Correct it in the environment, or leave it out."
            ) from error

    def setting(self, declared: Setting) -> Any:
        """The installation's value of a retrieval setting; what may be None is None where its variable is empty."""
        kind, default = declared.kind, declared.default
        name = next((each for each in (declared.env, declared.alias) if each in self.ENVIRON), declared.env)
        if get_origin(kind) is tuple:
            return tuple(self.list(name, default=list(default)))
        if get_origin(kind) is Literal:
            return self.str(name, default=default)
        kinds = get_args(kind) or (kind,)
        if NoneType in kinds and not self.str(name, default=""):
            return None if name in self.ENVIRON else default
        return {bool: self.bool, int: self.int, float: self.float}[kinds[0]](name, default=default)


def checked_colour(text: str) -> str:
    """A colour such as #7c3aed; ImproperlyConfigured for anything else, which would stand in a style sheet."""
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        raise ImproperlyConfigured(f"SITE_COLOR is no colour: {text!r}. Write it as #7c3aed, or leave it out.")
    return text.lower()


def file_storage(env: environ.Env) -> dict[str, Any]:
    """Django's default storage: the disk, or an object store that several hosts share: S3 where S3_BUCKET is set. Credentials are boto3's: AWS_ACCESS_KEY_ID and its kin."""
    bucket = env.str("S3_BUCKET", default="")
    if not bucket:
        # Not by FILE_UPLOAD_PERMISSIONS, which the static files have too: another user may serve those.
        modes = {"file_permissions_mode": 0o600, "directory_permissions_mode": 0o700}
        return {"BACKEND": "kb.base.files.DiskStorage", "OPTIONS": modes}
    return {
        "BACKEND": "kb.base.object_storage.ObjectStorage",
        "OPTIONS": {
            "bucket_name": bucket,
            "location": env.str("S3_PREFIX", default=""),
            "endpoint_url": env.str("S3_ENDPOINT_URL", default="") or None,
            "region_name": env.str("S3_REGION", default="") or None,
            "addressing_style": env.str("S3_ADDRESSING_STYLE", default="auto"),
            # Never public: files are served by a view that checks who asks.
            "default_acl": None,
            "querystring_auth": True,
            "file_overwrite": False,
            "max_memory_size": 1024 * 1024,
        },
    }


def broker_url(redis_url: str) -> str:
    """The URL for Celery, which names a socket's database `virtual_host`."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return parts._replace(path=f"/{_database(redis_url)}").geturl()
    query = urlencode({"virtual_host": _database(redis_url)})
    return f"redis+socket://{parts.netloc}{parts.path}?{query}"


def cache_url(redis_url: str) -> str:
    """The URL for django-redis: the database after the broker's, which may be evicted from."""
    parts, database = urlsplit(redis_url), _database(redis_url) + 1
    if parts.scheme != "unix":
        return parts._replace(path=f"/{database}").geturl()
    return f"unix://{parts.netloc}{parts.path}?{urlencode({'db': database})}"


def _database(redis_url: str) -> int:
    parts = urlsplit(redis_url)
    if parts.scheme == "unix":
        return int(parse_qs(parts.query).get("db", ["0"])[0])
    return int(parts.path.strip("/") or 0)
