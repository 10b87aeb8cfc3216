"""Whatever keeps the recorder from tuning, the script trains as it is."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from autotune.recorder.arrival import ORDERS
from autotune.recorder.live import training
from autotune.scripts.script import Script
from autotune.torch_settings import undo
from autotune.training import live

OLD_TORCH = '__version__ = "1.0"\n'


def test_a_torch_that_is_too_old_ends_no_script(tmp_path: Path) -> None:
    """One line says why nothing is tuned; a folder that is gone is no reason either."""
    (tmp_path / "torch.py").write_text(OLD_TORCH)
    (tmp_path / "train.py").write_text("import torch\nprint('trained')\n")
    command = (sys.executable, "train.py")
    orders = {"role": "train", "socket": str(tmp_path / "nobody"), "shared": str(tmp_path / "gone"), "allowed": []}
    environment = Script(command).environment(orders, os.environ)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "expected torch 2.7 or newer, got 1.0; training continues unchanged" in done.stderr


@pytest.mark.parametrize(
    ("role", "lines"),
    [
        ("train", ["the script's own tuning stays off: 'autotune train' tunes this process"]),
        ("launch", ["the script's own tuning stays off: 'autotune launch' trains with a result here"]),
        ("job", []),
    ],
)
def test_a_script_under_a_command_does_not_tune_itself(
    role: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so once, however often a framework's callback asks."""
    monkeypatch.setenv(ORDERS, json.dumps({"role": role}))
    monkeypatch.setattr(training, "_active", [])
    live._stay_off.cache_clear()
    for _ in range(2):
        live.begin()
    assert training._active == []
    told = capsys.readouterr().err.splitlines()
    assert len(told) == len(lines)
    assert all(line in one for line, one in zip(lines, told, strict=True))


def test_the_recorder_and_the_script_keep_values_apart() -> None:
    """A script that imports autotune has two copies of this module, as the recorder has a package name of its own."""
    spec = importlib.util.spec_from_file_location("_autotune.torch_settings.undo", undo.__file__)
    assert spec is not None
    assert spec.loader is not None
    other, model = importlib.util.module_from_spec(spec), nn.Linear(1, 1)
    spec.loader.exec_module(other)
    undo.kept_on(model)["key"], other.kept_on(model)["key"] = "ours", "the recorder's"
    assert (undo.kept_on(model)["key"], other.kept_on(model)["key"]) == ("ours", "the recorder's")
