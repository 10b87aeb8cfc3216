"""Compiled code outlives a run."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.bursts.hosts.compiler_cache import WRITING_SECONDS, compiler_cache, share_headers
from autotune.bursts.hosts.isolation import Isolation
from autotune.sandbox.system import LINUX
from autotune.scripts import Script
from autotune.scripts.isolation import ScriptIsolation

pytestmark = pytest.mark.skipif(not LINUX, reason="headers are kept on Linux")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where headers are kept, in a folder for temporary files that holds nothing yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return compiler_cache() / "autotune_headers"


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """Where torch looks for them in a run."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / compiler_cache().name / "precompiled_headers"


def test_the_cache_is_torchs_own() -> None:
    """The training then finds what was compiled for it."""
    found = pytest.importorskip("torch._inductor.runtime.cache_dir_utils")
    assert str(compiler_cache()) == found.default_cache_dir()


@pytest.mark.parametrize("begin", [lambda: Isolation("a:build"), lambda: ScriptIsolation(Script(("python", "x.py")))])
def test_headers_that_were_compiled_once_serve_later_runs(begin: Callable[[], Isolation]) -> None:
    """Torch looks for them in the temporary folder, which goes with the run."""
    codecache = pytest.importorskip("torch._inductor.codecache")
    looked_at = Path(*Path(getattr(codecache, "_HEADER_DIR", "a/precompiled_headers")).parts[-2:])
    with begin() as isolation:
        temporary = Path(isolation._environment()["TMPDIR"])
        assert (temporary / looked_at).resolve() == (compiler_cache() / "autotune_headers").resolve()


def test_what_a_killed_compiler_has_left_is_removed(kept: Path, tmp_path: Path) -> None:
    """Not what another one is still writing, nor what is complete."""
    old = time.time() - 2 * WRITING_SECONDS
    kept.mkdir(parents=True)
    for name, begins, written in (
        ("left", b"gpcWrite--", old),
        ("empty", b"", old),
        ("being written", b"gpcWrite--", time.time()),
        ("complete", b"gpch+014--", old),
    ):
        (kept / f"{name}.h.gch").write_bytes(begins)
        os.utime(kept / f"{name}.h.gch", (written, written))
    share_headers(tmp_path)
    assert {path.name for path in kept.iterdir()} == {"being written.h.gch", "complete.h.gch"}


def test_a_cache_that_is_cleared_in_a_run_is_made_again(kept: Path, link: Path) -> None:
    """Torch could make no folder at the end of a link that leads nowhere."""
    for _ in range(2):
        share_headers(link.parents[1])
        (link / "h.gch").write_bytes(b"gpch+014")
        shutil.rmtree(compiler_cache())


@pytest.mark.parametrize("why", ["no room", "of another user", "Clang"])
def test_headers_that_cannot_be_kept_are_compiled_by_each_run(
    why: str, kept: Path, link: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from when on they cannot."""
    if why == "Clang":
        monkeypatch.setenv("CXX", "/usr/bin/clang++-18")
    else:
        share_headers(link.parents[1])
        assert link.is_symlink()
        if why == "no room":
            monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        else:
            monkeypatch.setattr(os, "access", lambda path, _: path != kept)
    share_headers(link.parents[1])
    assert not link.is_symlink()
