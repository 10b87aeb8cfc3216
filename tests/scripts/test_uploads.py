"""What a script would upload in a burst stays here: a left-out checkpoint is an empty file, and replaces no real one.

None of these libraries but fsspec is installed here. Small packages of their names stand in for them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.scripts import Script

INJECT = """
def upload_file(client, Filename, Bucket, Key, ExtraArgs=None): print("sent")
upload_fileobj = upload_file
"""
CLIENT = """
class BaseClient:
    def _make_api_call(self, operation, arguments): return operation
    def put_object(self, **arguments): return self._make_api_call("PutObject", arguments)
    def get_object(self, **arguments): return self._make_api_call("GetObject", arguments)
"""
BLOB = """
class Bucket: name = "mine"
class Blob:
    bucket, name = Bucket(), "best.pt"
    def upload_from_filename(self, filename): print("sent")
"""
BUCKET = """
class Bucket:
    def delete_blob(self, name): print("removed")
    def delete_blobs(self, names): print("removed")
    def get_blob(self, name): return "got"
"""
AZURE = """
class BlobClient:
    def upload_blob(self, data): print("sent")
    def delete_blob(self): print("removed")
    def download_blob(self): return "got"
"""
AZURE_ASYNC = """
class BlobClient:
    async def upload_blob(self, data): print("sent")
"""
MINIO = """
class Minio:
    def fput_object(self, *args): print("sent")
    def remove_object(self, *args): print("removed")
"""
PACKAGES = {
    "boto3/s3/inject": INJECT, "botocore/client": CLIENT, "google/cloud/storage/blob": BLOB, "minio/api": MINIO,
    "google/cloud/storage/bucket": BUCKET, "azure/storage/blob/_blob_client": AZURE,
    "azure/storage/blob/aio/_blob_client_async": AZURE_ASYNC,
}  # fmt: skip
FILE_SYSTEM = """
import fsspec
from fsspec.asyn import AsyncFileSystem
class Far(AsyncFileSystem):
    protocol = "far"
    async def _put_file(self, lpath, rpath, **kwargs): print("sent")
    async def _rm_file(self, path, **kwargs): print("removed")
    async def _pipe_file(self, path, value, **kwargs): print("sent")
    async def _cp_file(self, path1, path2, **kwargs): print("sent")
    async def _mkdir(self, path, **kwargs): print("made")
    def _open(self, path, mode="rb", **kwargs):
        print("opened", mode)
        return __import__("io").BytesIO(b"there")
    async def _info(self, path, **kwargs): return {"name": path, "type": "file", "size": 1}
fsspec.register_implementation("far", Far)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the packages, in which a script runs."""
    for name, text in PACKAGES.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "best.pt").touch()
    return tmp_path


def run(code: str, place: Path, role: str = "look") -> list[str]:
    """What a script prints in a burst."""
    command = Script((sys.executable, "-c", code))
    variables = command.environment({"role": role}, {**os.environ, "PYTHONPATH": str(place)})
    done = subprocess.run(command.command, env=variables, cwd=place, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("from boto3.s3 import inject; inject.upload_file(0, 'best.pt', 'mine', Key='a')", []),
        ("from boto3.s3 import inject; inject.upload_fileobj(0, None, Bucket='mine', Key='a')", []),
        (
            "from botocore.client import BaseClient as C; C().put_object(Bucket='mine', Key='a', Body=b'')\n"
            "print(C().get_object(Bucket='mine', Key='a'))",
            ["GetObject"],
        ),
        (
            "from botocore.client import BaseClient as C\n"
            "print(C()._make_api_call('DeleteObjects', {'Bucket': 'b', 'Delete': {'Objects': [{'Key': 'a'}]}}))",
            ["{'Deleted': [{'Key': 'a'}]}"],
        ),
        ("from google.cloud.storage.blob import Blob; Blob().upload_from_filename('best.pt')", []),
        (
            "from google.cloud.storage.bucket import Bucket as B; B().delete_blob('a'); B().delete_blobs(['a'])\n"
            "print(B().get_blob('a'))",
            ["got"],
        ),
        (
            "from azure.storage.blob._blob_client import BlobClient as B; B().upload_blob(b''); B().delete_blob()\n"
            "print(B().download_blob())",
            ["got"],
        ),
        (
            "import asyncio\nfrom azure.storage.blob.aio._blob_client_async import BlobClient as B\n"
            "asyncio.run(B().upload_blob(b''))",
            [],
        ),
        ("from minio.api import Minio as M; M().fput_object('b', 'a', 'best.pt'); M().remove_object('b', 'a')", []),
        (FILE_SYSTEM + "fsspec.filesystem('far').put('best.pt', 'mine/a')", []),
        (FILE_SYSTEM + "fsspec.filesystem('far').put_file('best.pt', 'mine/a')", []),
        (FILE_SYSTEM + "with fsspec.open('far://mine/a', 'wb') as file: file.write(b'a')", []),
        (FILE_SYSTEM + "with fsspec.open('far://mine/a', 'a') as file: file.write('a')", []),
        (FILE_SYSTEM + "with fsspec.open('far://mine/a', 'r') as file: print(file.read())", ["opened rb", "there"]),
        (
            FILE_SYSTEM + "far = fsspec.filesystem('far')\nfar.rm('a')\nfar.pipe('b', b'')\nfar.mkdir('c')\n"
            "far.copy('a', 'd')",
            [],
        ),
    ],
    ids=[
        "file", "opened file", "object", "removed objects", "blob of Google", "bucket of Google", "blob of Azure",
        "asynchronous blob of Azure", "object of MinIO", "fsspec", "a file of fsspec", "an opened file of fsspec",
        "text of fsspec", "reading by fsspec", "changes by fsspec",
    ],
)  # fmt: skip
def test_nothing_is_uploaded_or_removed(code: str, printed: list[str], place: Path) -> None:
    """What is downloaded arrives."""
    assert run(code, place) == printed


def test_files_of_this_machine_are_put_and_a_whole_training_uploads(place: Path) -> None:
    """By fsspec, too."""
    run("import fsspec; fsspec.filesystem('file').put('best.pt', 'copy.pt')", place)
    assert (place / "copy.pt").exists()
    code = FILE_SYSTEM + "fsspec.filesystem('far').put_file('best.pt', 'mine/a')"
    assert run(code, place, "launch") == ["sent"]
