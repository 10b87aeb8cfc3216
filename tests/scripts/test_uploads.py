"""What a script would upload in a burst stays here: a left-out checkpoint is an empty file, and replaces no real one.

None of these libraries but fsspec is installed here. Small packages of their names stand in for them.
"""

from __future__ import annotations

import json
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
    def _make_api_call(self, operation, arguments): print(operation)
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


FAR = "far = fsspec.filesystem('far'); "
CASES: dict[str, tuple[str, list[str]]] = {
    "file": ("from boto3.s3 import inject; inject.upload_file(0, 'best.pt', 'mine', Key='a')", []),
    "opened file": ("from boto3.s3 import inject; inject.upload_fileobj(0, None, Bucket='mine', Key='a')", []),
    "object": (
        "from botocore.client import BaseClient as C; C().put_object(Bucket='mine', Key='a', Body=b'')\n"
        "C().get_object(Bucket='mine', Key='a')",
        ["GetObject"],
    ),
    "removed objects": (
        "from botocore.client import BaseClient as C\n"
        "print(C()._make_api_call('DeleteObjects', {'Bucket': 'b', 'Delete': {'Objects': [{'Key': 'a'}]}}))",
        ["{'Deleted': [{'Key': 'a'}]}"],
    ),
    "blob of Google": ("from google.cloud.storage.blob import Blob; Blob().upload_from_filename('best.pt')", []),
    "bucket of Google": (
        "from google.cloud.storage.bucket import Bucket as B; B().delete_blob('a'); B().delete_blobs(['a'])\n"
        "print(B().get_blob('a'))",
        ["got"],
    ),
    "blob of Azure": (
        "from azure.storage.blob._blob_client import BlobClient as B; B().upload_blob(b''); B().delete_blob()\n"
        "print(B().download_blob())",
        ["got"],
    ),
    "asynchronous blob of Azure": (
        "import asyncio\nfrom azure.storage.blob.aio._blob_client_async import BlobClient as B\n"
        "asyncio.run(B().upload_blob(b''))",
        [],
    ),
    "object of MinIO": (
        "from minio.api import Minio as M; M().fput_object('b', 'a', 'best.pt'); M().remove_object('b', 'a')",
        [],
    ),
    "fsspec": (FAR + "far.put('best.pt', 'mine/a')", []),
    "a file of fsspec": (FAR + "far.put_file('best.pt', 'mine/a')", []),
    "an opened file of fsspec": ("with fsspec.open('far://mine/a', 'wb') as file: file.write(b'a')", []),
    "text of fsspec": ("with fsspec.open('far://mine/a', 'a') as file: file.write('a')", []),
    "reading by fsspec": ("with fsspec.open('far://mine/a', 'r') as file: print(file.read())", ["opened rb", "there"]),
    "changes by fsspec": (FAR + "far.rm('a'); far.pipe('b', b''); far.mkdir('c'); far.copy('a', 'd')", []),
    "files of this machine": ("fsspec.filesystem('file').put('best.pt', 'copy.pt')", []),
}
"""What a script does with each library, and what is printed then: by the library, where the recorder lets it act."""
ONE_BY_ONE = f"""
import contextlib, io, json, sys
{FILE_SYSTEM}
printed = {{}}
for name, code in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code)
    printed[name] = out.getvalue().splitlines()
print(json.dumps(printed))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages, in which a script runs."""
    folder = tmp_path_factory.mktemp("uploads")
    for name, text in PACKAGES.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "best.pt").touch()
    return folder


def run(place: Path, role: str) -> dict[str, list[str]]:
    """What a script prints in each case."""
    words = (sys.executable, "-c", ONE_BY_ONE, json.dumps({name: code for name, (code, _) in CASES.items()}))
    variables = Script(words).environment({"role": role}, {**os.environ, "PYTHONPATH": str(place)})
    done = subprocess.run(words, env=variables, cwd=place, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def in_a_look(place: Path) -> dict[str, list[str]]:
    """What is printed in a look."""
    return run(place, "look")


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_uploaded_or_removed(case: str, in_a_look: dict[str, list[str]]) -> None:
    """What is downloaded arrives."""
    assert in_a_look[case] == CASES[case][1]


def test_files_of_this_machine_are_put_and_a_whole_training_uploads(
    place: Path, in_a_look: dict[str, list[str]]
) -> None:
    """Each library acts then."""
    assert in_a_look["files of this machine"] == []
    assert (place / "copy.pt").exists()
    in_training = run(place, "launch")
    libraries = CASES.keys() - {"reading by fsspec", "files of this machine"}
    assert [name for name in libraries if in_training[name] == in_a_look[name]] == []
