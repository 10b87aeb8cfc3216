"""Leaves out what a script of a burst would upload or remove far away, and tells it.

A checkpoint that is not saved is an empty file, which must not take the place of a real one. Each library is changed as
soon as it has been imported. What is downloaded comes as ever.
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable
from typing import Any

from . import journal
from .audited import writes
from .importing import after_import

_S3_WRITES = (
    "PutObject", "CopyObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "DeleteObject",
)  # fmt: skip
"""Operations of S3 that make or remove an object."""
_BLOB_WRITES = ("upload_from_filename", "upload_from_file", "upload_from_string", "delete")
_FSSPEC_PUTS = ("put", "put_file", "upload", "copy", "cp", "cp_file", "mv", "move", "rename")
_FSSPEC_WRITES = (
    "pipe", "pipe_file", "touch", "write_text", "write_bytes", "rm", "rm_file", "rmdir", "delete",
)  # fmt: skip
"""Methods of a file system that change what lies there; those above name a source first."""
_FSSPEC_FOLDERS = ("mkdir", "makedir", "makedirs", "mkdirs")
"""Opening a file calls them, too; of an empty folder nobody needs to be told."""
_LEFT_OUT = "_left_out_by_autotune"
"""Attribute of what stands in for an upload."""
_HERE = {"file", "local", "memory"}
"""Protocols of fsspec whose files lie on this machine."""
_AROUND = {"dir", "filecache", "blockcache", "simplecache", "cached", "zip"}
"""Those that hand on to another file system, which is asked itself."""


def leave_out_uploads() -> None:
    """From here on whichever of these libraries is imported uploads nothing."""
    after_import("boto3.s3.inject", _of_boto3)
    after_import("botocore.client", _of_botocore)
    after_import("google.cloud.storage.blob", _of_google)
    after_import("fsspec.spec", _of_fsspec)


def _of_boto3() -> None:
    """Clients, buckets and objects get these functions as methods, when the first of them is made."""
    inject: Any = sys.modules["boto3.s3.inject"]
    for name in ("upload_file", "upload_fileobj"):
        _leave_out(inject, name, lambda _client, _file, Bucket, Key, *_, **__: f"s3://{Bucket}/{Key}")  # noqa: N803


def _of_botocore() -> None:
    """``put_object`` and its like are made of what a service says of itself, and come here."""
    client: Any = sys.modules["botocore.client"].BaseClient
    original = client._make_api_call

    @functools.wraps(original)
    def call(self: Any, operation: str, arguments: Any) -> Any:
        if operation == "DeleteObjects":
            removed = arguments["Delete"]["Objects"]
            for key in [one["Key"] for one in removed]:
                _tell(functools.partial("s3://{}/{}".format, arguments["Bucket"], key))
            return {"Deleted": removed}
        if operation not in _S3_WRITES:
            return original(self, operation, arguments)
        _tell(lambda: f"s3://{arguments['Bucket']}/{arguments['Key']}")
        return {"ETag": "", "UploadId": ""}

    client._make_api_call = call


def _of_google() -> None:
    blob: Any = sys.modules["google.cloud.storage.blob"].Blob
    for name in _BLOB_WRITES:
        _leave_out(blob, name, lambda self, *_, **__: f"gs://{self.bucket.name}/{self.name}")


def _of_fsspec() -> None:
    """Some file systems give each object methods of its own, so each object is changed."""
    maker: Any = type(sys.modules["fsspec.spec"].AbstractFileSystem)
    original = maker.__call__

    @functools.wraps(original)
    def make(kind: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(kind, *args, **kwargs)
        protocols = {made.protocol} if isinstance(made.protocol, str) else {*made.protocol}
        if not protocols & (_HERE | _AROUND):
            far = min(protocols)
            for name in _FSSPEC_PUTS:
                _leave_out(made, name, lambda _file, place, *_, **__: f"{far}://{place}")
            for name in _FSSPEC_WRITES:
                _leave_out(made, name, lambda place, *_, **__: f"{far}://{place}")
            for name in _FSSPEC_FOLDERS:
                _leave_out(made, name, None)
            _discard_what_is_opened(made, far)
        return made

    maker.__call__ = make


def _discard_what_is_opened(system: Any, protocol: str) -> None:
    """A file that is opened to be written is one in memory, which is forgotten."""
    original = system.open
    if hasattr(original, _LEFT_OUT):
        return

    @functools.wraps(original)
    def opened(path: Any, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        if not writes(mode):
            return original(path, mode, *args, **kwargs)
        _tell(lambda: f"{protocol}://{path}")
        return io.BytesIO() if "b" in mode else io.StringIO()

    setattr(opened, _LEFT_OUT, True)
    system.open = opened


def _leave_out(owner: Any, name: str, named: Callable[..., str] | None) -> None:
    """Has a function do nothing but tell.

    Args:
        owner: Of the function.
        name: Its name; nothing is done where there is none.
        named: Of its arguments: what would be written or removed; None where that is not told.
    """
    original = getattr(owner, name, None)
    if original is None or hasattr(original, _LEFT_OUT):  # fsspec hands out the same objects again
        return

    @functools.wraps(original)
    def upload(*args: Any, **kwargs: Any) -> None:
        if named is not None:
            _tell(lambda: named(*args, **kwargs))

    setattr(upload, _LEFT_OUT, True)
    setattr(owner, name, upload)


def _tell(named: Callable[[], str]) -> None:
    with contextlib.suppress(Exception):  # whatever it was called with, it is left out
        journal.begun().saved(named(), far=True)
