"""Compiled code outlives a run."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.bursts.hosts.compiler_cache import WRITING_SECONDS, compiler_cache, share_headers
from autotune.bursts.hosts.isolation import Isolation
from autotune.scripts import Script
from autotune.scripts.isolation import ScriptIsolation


def test_the_cache_is_torchs_own() -> None:
    """The training then finds what was compiled for it."""
    found = pytest.importorskip("torch._inductor.runtime.cache_dir_utils")
    assert str(compiler_cache()) == found.default_cache_dir()


@pytest.mark.skipif(sys.platform == "win32", reason="precompiled headers are GCC's and Clang's")
@pytest.mark.parametrize("begin", [lambda: Isolation("a:build"), lambda: ScriptIsolation(Script(("python", "x.py")))])
def test_headers_that_were_compiled_once_serve_later_runs(begin: Callable[[], Isolation]) -> None:
    """Torch looks for them in the temporary folder, which goes with the run."""
    codecache = pytest.importorskip("torch._inductor.codecache")
    looked_at = Path(codecache._HEADER_DIR).relative_to(tempfile.gettempdir())
    with begin() as isolation:
        temporary = Path(isolation._environment()["TMPDIR"])
        assert (temporary / looked_at).resolve() == (compiler_cache() / "autotune_headers").resolve()


def test_what_a_killed_compiler_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what another one is still writing, nor what is complete."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept, old = compiler_cache() / "autotune_headers", time.time() - 2 * WRITING_SECONDS
    kept.mkdir(parents=True)
    for name, begins, written in (
        ("left", b"gpcWrite--", old),
        ("empty", b"", old),
        ("being written", b"gpcWrite--", time.time()),
        ("complete", b"gpch+014--", old),
    ):
        (kept / f"{name}.h.gch").write_bytes(begins)
        os.utime(kept / f"{name}.h.gch", (written, written))
    run = tmp_path / "run"
    run.mkdir()
    share_headers(run)
    assert {path.name for path in kept.iterdir()} == {"being written.h.gch", "complete.h.gch"}
    assert (run / compiler_cache().name / "precompiled_headers").resolve() == kept.resolve()
