"""`autotune run`, `launch` and `check` of a script, as a person types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.knobs.config import TrainConfig
from autotune.scripts import Script
from autotune.sessions.tuning import _require_changeable
from tests.inside import run_inside
from tests.processes import budget, run

REPORTING = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())

class Rows(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.002)
        return super().__getitem__(index)

loader = DataLoader(Rows(torch.randn(256, 8), torch.randn(256, 1)), batch_size=16, shuffle=True)
for epoch in range(int(sys.argv[1])):
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
print("threads", torch.get_num_threads(), "fused", optimizer.param_groups[0]["fused"], "argv", sys.argv[1:])
print("main", __name__, "place", sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
"""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--effective-batch", "64", "--", sys.executable, "x.py"], "expected 'free' for a script"),
        (["launch", "nothing.json", "--", sys.executable], "nothing.json"),
    ],
)
def test_wrong_arguments_are_told(arguments: list[str], told: str, tmp_path: Path) -> None:
    """Exit status 2, and one sentence."""
    done = run_inside(arguments, tmp_path)
    assert done.status == 2
    assert told in " ".join(done.err.split())


def test_the_recorder_leaves_the_interpreter_as_it_was(tmp_path: Path) -> None:
    """Another `sitecustomize` still runs, the path is the script's own, and without torch nothing else happens."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("MINE = True\n")
    (tmp_path / "look.py").write_text("import sys, sitecustomize\nprint(sitecustomize.MINE, sys.path[:2])\n")
    script = Script((sys.executable, "look.py"))
    environment = script.environment({"role": "look"}, {**os.environ, "PYTHONPATH": str(own)})
    done = subprocess.run(script.command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == f"True {[str(tmp_path), str(own)]}\n", done.stderr


@pytest.mark.alone  # where other tests keep the CPUs busy, workers gain nothing
def test_a_script_is_tuned_launched_and_checked(tmp_path: Path) -> None:
    """From `run` over `launch`, whose settings are in force in the script, to `check`; its start is as ever."""
    (tmp_path / "train.py").write_text(REPORTING)
    words = ["--", sys.executable, "train.py"]
    done = run(["run", "--budget", budget(40), "--only", "num_workers", *words, "5000"], tmp_path)
    assert done.status == 0, done.err
    (file,) = (tmp_path / "results").rglob("train-cpu.json")
    result = json.loads(file.read_text())
    assert result["workload"]["script"]["command"] == [sys.executable, "train.py", "5000"]
    assert f"autotune launch {file.relative_to(tmp_path)} -- {sys.executable} train.py 5000" in " ".join(
        done.err.split()
    )
    result["best"]["config"] |= {"num_threads": 1, "optimizer_impl": "fused"}
    file.write_text(json.dumps(result))
    launched = run(["launch", str(file), *words, "2"], tmp_path)
    assert launched.status == 0, launched.err
    assert "threads 1 fused True argv ['2']" in launched.out
    assert "main __main__ place True" in launched.out
    checked = run(["check", str(file), "--budget", budget(25)], tmp_path)
    assert checked.status in {0, 1}, checked.err


def test_a_command_from_elsewhere_is_run_with_trust_alone(tmp_path: Path) -> None:
    """A file may not make somebody run what it likes."""
    from tests.factories import make_result

    result = make_result()
    source = {"main": None, "folder": "."}
    script = {"command": ["bash", "-c", "touch harm"], "loop": {}, "source": source}
    content = json.loads(result.model_dump_json(by_alias=True))
    content["workload"]["script"] = script
    (tmp_path / "result.json").write_text(json.dumps(content))
    done = run_inside(["check", "result.json"], tmp_path)
    assert done.status == 2
    assert "pass --trust" in " ".join(done.err.split())
    assert not (tmp_path / "harm").exists()


def test_a_pin_that_nothing_would_come_of_is_refused() -> None:
    """A script accumulates by itself: another batch would be another step, and nobody asked for that."""
    baseline, held = TrainConfig(batch_size=64), {"batch_size": "a step would hold more samples"}
    for pin in (64, "<=64", "<=128"):
        _require_changeable({"batch_size": pin, "precision": "bf16"}, baseline, held)
    for pin, words in ((32, "=32"), ("<=32", "<=32")):
        with pytest.raises(UsageError, match=f"--pin batch_size{words}: a step would hold more samples"):
            _require_changeable({"batch_size": pin}, baseline, held)
