"""What a script would upload in a burst stays here: a left-out checkpoint is an empty file, and replaces no real one.

boto3 and google-cloud-storage are not installed here. Small packages of their names stand in for them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.recorder.reverting import JOURNAL
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
    for name, text in [("boto3/s3/inject", INJECT), ("botocore/client", CLIENT), ("google/cloud/storage/blob", BLOB)]:
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "kept").mkdir()
    (tmp_path / "best.pt").touch()
    return tmp_path


def run(code: str, place: Path, role: str = "look") -> tuple[list[str], list[str]]:
    """What a script prints in a burst, and what it is told to have left out."""
    command = Script((sys.executable, "-c", code))
    keep = {"keep": str(place / "kept")} if role != "launch" else {}
    variables = command.environment({"role": role, **keep}, {**os.environ, "PYTHONPATH": str(place)})
    done = subprocess.run(command.command, env=variables, cwd=place, stdout=subprocess.PIPE, text=True, check=True)
    told = place / "kept" / JOURNAL
    entries = map(json.loads, told.read_text().splitlines() if told.exists() else ())
    return done.stdout.split("\n")[:-1], [one["path"] for one in entries if one.get("saved")]


@pytest.mark.parametrize(
    ("code", "printed", "left_out"),
    [
        ("from boto3.s3 import inject; inject.upload_file(0, 'best.pt', 'mine', Key='a')", [], ["s3://mine/a"]),
        ("from boto3.s3 import inject; inject.upload_fileobj(0, None, Bucket='mine', Key='a')", [], ["s3://mine/a"]),
        (
            "from botocore.client import BaseClient as C; C().put_object(Bucket='mine', Key='a', Body=b'')\n"
            "print(C().get_object(Bucket='mine', Key='a'))",
            ["GetObject"],
            ["s3://mine/a"],
        ),
        (
            "from google.cloud.storage.blob import Blob; Blob().upload_from_filename('best.pt')",
            [],
            ["gs://mine/best.pt"],
        ),
        (FILE_SYSTEM + "fsspec.filesystem('far').put('best.pt', 'mine/a')", [], ["far://mine/a"]),
        (FILE_SYSTEM + "fsspec.filesystem('far').put_file('best.pt', 'mine/a')", [], ["far://mine/a"]),
        (FILE_SYSTEM + "with fsspec.open('far://mine/a', 'wb') as file: file.write(b'a')", [], ["far://mine/a"]),
        (FILE_SYSTEM + "with fsspec.open('far://mine/a', 'a') as file: file.write('a')", [], ["far://mine/a"]),
        (
            FILE_SYSTEM + "with fsspec.open('far://mine/a', 'r') as file: print(file.read())",
            ["opened rb", "there"],
            [],
        ),
        (
            FILE_SYSTEM + "far = fsspec.filesystem('far')\nfar.rm('a')\nfar.pipe('b', b'')\nfar.mkdir('c')\n"
            "far.copy('a', 'd')",
            [],
            ["far://a", "far://b", "far://d"],
        ),
        (
            "from botocore.client import BaseClient as C\n"
            "C()._make_api_call('DeleteObjects', {'Bucket': 'mine', 'Delete': {'Objects': [{'Key': 'a'}]}})",
            [],
            ["s3://mine/a"],
        ),
    ],
    ids=[
        "file", "opened file", "object", "blob", "fsspec", "a file of fsspec", "an opened file of fsspec",
        "text of fsspec", "reading by fsspec", "changes by fsspec", "removed objects",
    ],
)  # fmt: skip
def test_nothing_is_uploaded(code: str, printed: list[str], left_out: list[str], place: Path) -> None:
    """Nor removed far away, and it is told; what is downloaded comes."""
    assert run(code, place) == (printed, left_out)


def test_files_of_this_machine_are_put_and_a_whole_training_uploads_as_ever(place: Path) -> None:
    """By fsspec, too."""
    run("import fsspec; fsspec.filesystem('file').put('best.pt', 'copy.pt')", place)
    assert (place / "copy.pt").exists()
    code = FILE_SYSTEM + "fsspec.filesystem('far').put_file('best.pt', 'mine/a')"
    assert run(code, place, "launch") == (["sent"], [])
