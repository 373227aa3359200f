"""Where uploads lie: on the disk, or in an object store that several hosts share."""

from typing import Any

import environ


def file_storage(env: environ.Env) -> dict[str, Any]:
    """Django's default storage; S3 where S3_BUCKET is set. Credentials are boto3's: AWS_ACCESS_KEY_ID and its kin."""
    bucket = env.str("S3_BUCKET", default="")
    if not bucket:
        # Not by FILE_UPLOAD_PERMISSIONS, which the static files have too: another user may serve those.
        modes = {"file_permissions_mode": 0o600, "directory_permissions_mode": 0o700}
        return {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": modes}
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
