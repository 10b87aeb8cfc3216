"""Library calls that bursts leave out: one table of modules, their functions, and the replacements.

Trackers, progress bars and event writers are silenced because they take time, and start threads, which cannot be
forked. Uploads to object stores and deletions there are left out because the network is open until the first optimizer
step, and a burst's checkpoints are empty. A function is replaced as soon as its module has been imported.
"""

from __future__ import annotations

import functools
import inspect
import io
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..sandbox.redirect import writes
from .importing import after_import

if TYPE_CHECKING:
    from concurrent.futures import Future

Action = Callable[[Any], Any]
"""Takes an attribute of a module, and returns its replacement."""


def leave_out() -> None:
    """Changes each library in the table when it is imported."""
    for module in dict.fromkeys(module for module, _, _ in TABLE):
        after_import(module, functools.partial(_change, module))


def _change(name: str) -> None:
    for module, attribute, action in TABLE:
        if module != name:
            continue
        owner: Any = sys.modules[module]
        *path, last = attribute.split(".")
        for part in path:
            owner = getattr(owner, part, None)
        if hasattr(owner, last):
            setattr(owner, last, action(getattr(owner, last)))


def _nothing(original: Any) -> Any:
    """A function that does nothing, and returns None."""
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def later(*_: Any, **__: Any) -> None:
            pass

        return later

    @functools.wraps(original)
    def nothing(*_: Any, **__: Any) -> None:
        pass

    return nothing


def _finished() -> Future[None]:
    """A finished future."""
    from concurrent.futures import Future

    future: Future[None] = Future()
    future.set_result(None)
    return future


def _disabled(original: Any) -> Any:
    """Passes the mode as an argument: a script's own argument would override the environment (``WANDB_MODE``)."""

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "mode": "disabled"})

    return init


def _called_once(original: Any) -> Any:
    """Makes a sweep's agent call its function here, once, instead of for each run that it takes from a server."""

    @functools.wraps(original)
    def agent(*args: Any, **kwargs: Any) -> None:
        function = args[1] if len(args) > 1 else kwargs.get("function")
        if function is not None:
            function()

    return agent


class _NoRun:
    """A run of a tracker that has no offline mode: it keeps settings in memory, and discards everything else."""

    hash = name = id = "autotune"  # scripts name folders after them

    def __init__(self, *_: Any, config: Any = None, **__: Any) -> None:
        self.config: dict[str, Any] = dict(config or {})

    def __setitem__(self, name: str, value: Any) -> None:
        self.config[name] = value

    def __getitem__(self, name: str) -> Any:
        return self.config[name]

    def __enter__(self) -> _NoRun:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class _NoThread:
    """A library's thread that writes or draws. It does nothing: a process with threads cannot be forked."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    start = stop = write = flush = close = _nothing


def _in_temporary_folder(original: Any) -> Any:
    """Makes MLflow, which cannot be disabled, log into the run's temporary folder instead of the script's server."""
    original(_place())
    return functools.wraps(original)(lambda *_, **__: original(_place()))


def _client_in_temporary_folder(original: Any) -> Any:
    @functools.wraps(original)
    def construct(self: Any, *_: Any, **__: Any) -> None:
        original(self, _place(), _place())  # the second one is the registry of models

    return construct


def _place() -> str:
    from pathlib import Path
    from tempfile import gettempdir

    return Path(gettempdir(), "mlflow").as_uri()


def _unsent(original: Any) -> Any:
    """Replaces a method of the Hub that would change a repository."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("run_as_future"):
            return _finished()
        if original.__name__ != "create_repo":
            return None
        repo_id = args[0] if args else kwargs["repo_id"]
        whole = repo_id if "/" in repo_id else f"user/{repo_id}"  # the hub would put the user's name there
        hub: Any = sys.modules["huggingface_hub.hf_api"]
        return hub.RepoUrl(f"{self.endpoint}/{whole}", endpoint=self.endpoint)

    return method


def _of_default_client(original: Any) -> Any:
    """Rebinds a function of the Hub's module, which is a method of one client, after the class was changed."""
    hub: Any = sys.modules["huggingface_hub.hf_api"]
    return getattr(hub.api, original.__name__)


def _s3(original: Any) -> Any:
    """Answers writes; all operations of boto3 pass through here."""

    @functools.wraps(original)
    def call(self: Any, operation: str, arguments: Any) -> Any:
        if operation == "DeleteObjects":
            return {"Deleted": arguments["Delete"]["Objects"]}
        if operation in _S3_WRITES:
            return {"ETag": "", "UploadId": "", "CopyObjectResult": {"ETag": ""}}
        return original(self, operation, arguments)

    return call


def _remote_files(original: Any) -> Any:
    """Changes each fsspec object, since some file systems give each object methods of its own."""

    @functools.wraps(original)
    def make(kind: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(kind, *args, **kwargs)
        protocols = {made.protocol} if isinstance(made.protocol, str) else {*made.protocol}
        if not protocols & _NOT_REMOTE and not hasattr(made.open, "_is_left_out"):  # fsspec may return it again
            for name in _FSSPEC_WRITES:
                if hasattr(made, name):
                    setattr(made, name, _nothing(getattr(made, name)))
            made.open = _read_only(made.open)
        return made

    return make


def _read_only(original: Any) -> Any:
    """Opens a remote file for writing in memory, and discards it."""

    @functools.wraps(original)
    def opened(path: Any, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        if not writes(mode):
            return original(path, mode, *args, **kwargs)
        return io.BytesIO() if "b" in mode else io.StringIO()

    opened._is_left_out = True  # type: ignore[attr-defined]
    return opened


def _rows(module: str, owner: str, names: str, action: Action = _nothing) -> Iterable[tuple[str, str, Action]]:
    return ((module, f"{owner}.{name}".lstrip("."), action) for name in names.split())


_S3_WRITES = {
    "PutObject", "CopyObject", "CreateMultipartUpload", "UploadPart", "UploadPartCopy", "CompleteMultipartUpload",
    "AbortMultipartUpload", "DeleteObject", "DeleteBucket", "CreateBucket", "RenameObject", "PutObjectTagging",
}  # fmt: skip
"""Operations of S3 that make, change or remove an object."""
_NOT_REMOTE = {
    "file", "local", "memory", "dir", "filecache", "blockcache", "simplecache", "cached", "zip", "tar", "reference",
}  # fmt: skip
"""Protocols of fsspec whose files are on this machine, or that wrap another file system, which is changed."""
_FSSPEC_WRITES = (
    "put", "put_file", "upload", "copy", "cp", "cp_file", "mv", "mv_file", "move", "rename", "pipe", "pipe_file",
    "touch", "write_text", "write_bytes", "rm", "rm_file", "rmdir", "delete", "mkdir", "makedir", "makedirs", "mkdirs",
)  # fmt: skip
_HUB = (
    "create_commit create_repo delete_repo update_repo_settings update_repo_visibility move_repo upload_file "
    "upload_folder upload_large_folder delete_file delete_files delete_folder create_branch delete_branch create_tag "
    "delete_tag super_squash_history"
)
_BLOB = "upload_from_filename upload_from_file upload_from_string delete rewrite compose update_storage_class"
_AZURE_BLOB = (
    "upload_blob upload_blob_from_url delete_blob stage_block commit_block_list append_block upload_page clear_page "
    "start_copy_from_url set_blob_metadata create_append_blob create_page_blob"
)
_AZURE_FOLDER = "upload_blob delete_blob delete_blobs create_container delete_container"
_MINIO = (
    "put_object fput_object append_object copy_object compose_object remove_object remove_objects make_bucket "
    "remove_bucket"
)
_OSS = (
    "put_object put_object_from_file append_object copy_object delete_object batch_delete_objects upload_part "
    "init_multipart_upload"
)

TABLE: tuple[tuple[str, str, Action], ...] = (
    (
        "tqdm",
        "tqdm.monitor_interval",
        lambda _: 0,
    ),  # also of tqdm.auto and tqdm.asyncio; a bar starts a thread that watches
    ("rich.live", "_RefreshThread", lambda _: _NoThread),  # Lightning's bar; it draws itself when it changes, too
    ("tensorboard.summary.writer.event_file_writer", "_AsyncWriter", lambda _: _NoThread),
    ("tensorboardX.event_file_writer", "_EventLoggerThread", lambda _: _NoThread),
    ("tensorboardX.event_file_writer", "EventFileWriter.add_event", _nothing),
    ("wandb", "init", _disabled),
    ("wandb", "login", lambda _: lambda *_, **__: True),  # it starts a process and a thread, disabled or not
    ("wandb", "sweep", lambda _: lambda *_, **__: "autotune"),  # its id; the server would make one, disabled or not
    ("wandb", "agent", _called_once),
    ("swanlab", "init", _disabled),
    ("swanlab", "login", lambda _: lambda *_, **__: True),
    *_rows("trackio", "", "log log_system log_gpu log_cpu log_artifact alert save freeze sync finish"),
    ("trackio", "init", lambda _: _NoRun),
    ("aim.sdk.run", "Run", lambda _: _NoRun),
    ("mlflow", "set_tracking_uri", _in_temporary_folder),
    ("mlflow", "tracking.set_tracking_uri", lambda _: sys.modules["mlflow"].set_tracking_uri),  # the same function
    ("mlflow", "tracking.MlflowClient.__init__", _client_in_temporary_folder),
    *_rows("huggingface_hub.hf_api", "HfApi", _HUB, _unsent),
    *_rows("huggingface_hub.hf_api", "", _HUB, _of_default_client),
    *_rows("boto3.s3.inject", "", "upload_file upload_fileobj"),  # clients, buckets and objects take their methods here
    ("botocore.client", "BaseClient._make_api_call", _s3),
    *_rows("s3transfer.manager", "TransferManager", "upload copy delete", lambda _: lambda *_, **__: _finished()),
    *_rows("google.cloud.storage.blob", "Blob", _BLOB),
    *_rows("google.cloud.storage.bucket", "Bucket", "create delete delete_blob delete_blobs copy_blob rename_blob"),
    *_rows("azure.storage.blob._blob_client", "BlobClient", _AZURE_BLOB),
    *_rows("azure.storage.blob._container_client", "ContainerClient", _AZURE_FOLDER),
    *_rows("azure.storage.blob.aio._blob_client_async", "BlobClient", _AZURE_BLOB),
    *_rows("azure.storage.blob.aio._container_client_async", "ContainerClient", _AZURE_FOLDER),
    *_rows("minio.api", "Minio", _MINIO),
    *_rows("oss2.api", "Bucket", _OSS),
    ("fsspec.spec", "_Cached.__call__", _remote_files),
)
"""Module, attribute, and the action that makes its replacement."""
