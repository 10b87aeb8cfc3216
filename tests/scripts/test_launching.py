"""A result's settings for a whole training: what is ordered, and the line in the script that orders it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.errors import ResultFileError
from autotune.results.files import write_document
from autotune.scripts import Script
from autotune.scripts.launching import orders_of
from tests.forked import Forked
from tests.scripts.patching import written


@pytest.mark.parametrize(("updates_itself", "samples"), [(False, 64.0), (True, None)])
def test_samples_of_a_step_are_known_only_where_the_look_counted_steps(
    updates_itself: bool, samples: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere it counted backward passes, of which LBFGS makes twenty in a step."""
    monkeypatch.chdir(tmp_path)
    loop: dict[str, Any] = {"loaders": [], "models": [], "device": "cpu", "step_samples": 64, "accumulation": 1}
    result = written(b"", {"num_threads": 1})
    assert result.workload.script is not None
    script = result.workload.script.model_copy(
        update={"loop": {**loop, "optimizers": 1 - updates_itself, "updates_itself": updates_itself}}
    )
    result = result.model_copy(update={"workload": result.workload.model_copy(update={"script": script})})
    assert orders_of(result, "result.json", realised=True)["realised"]["step_samples"] == samples


WHOLE = {"device": "cpu", "loaders": [], "models": [], "accumulation": 1, "optimizers": 1}


@pytest.mark.parametrize(
    ("loop", "missing"),
    [
        ({}, "device, loaders, models, accumulation, optimizers"),
        ({"loaders": [], "models": [], "device": "cpu", "step_samples": 4}, "accumulation, optimizers"),
        ({**WHOLE, "loaders": None}, "loaders"),
        ({**WHOLE, "device": 3, "optimizers": "1"}, "device, optimizers"),
    ],
)
def test_a_result_without_a_whole_loop_is_refused(
    loop: dict[str, Any], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign or damaged file, of which the script would know no training."""
    monkeypatch.chdir(tmp_path)
    result = written(b"", {"num_threads": 1})
    assert result.workload.script is not None
    script = result.workload.script.model_copy(update={"loop": loop})
    result = result.model_copy(update={"workload": result.workload.model_copy(update={"script": script})})
    words = f"result.json is broken: workload.script.loop lacks a valid {missing}; tune"
    with pytest.raises(ResultFileError, match=words):
        orders_of(result, "result.json", realised=False)


APPLIES = """
import autotune, torch
from torch.utils.data import DataLoader

def replaced():
    iterate, depth = DataLoader.__iter__, 0
    while hasattr(iterate, "__wrapped__"):
        iterate, depth = iterate.__wrapped__, depth + 1
    return depth

for name in ("first", "first", "second"):
    autotune.apply(f"{name}.json")
    print(replaced(), torch.get_num_threads())
"""


def test_a_result_that_is_applied_again_takes_the_place_of_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: Forked
) -> None:
    """As in a notebook whose cell is run twice: hooks, reports and notes are never doubled."""
    monkeypatch.chdir(tmp_path)
    for name, threads in (("first", 2), ("second", 3)):
        write_document(written(b"", {"num_threads": threads}), Path(f"{name}.json"))
    Path("train.py").write_text(APPLIES)
    done = forked.run(["train.py"], tmp_path)
    assert done.stdout.split() == ["1", "2", "1", "2", "1", "3"], done.stderr


def test_a_result_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: Forked) -> None:
    """A patched script names it as seen from the folder of the tuning; schedulers start trainings elsewhere."""
    monkeypatch.chdir(tmp_path)
    for folder in ("results", "code", "elsewhere"):
        Path(folder).mkdir()
    write_document(written(b"", {"num_threads": 3}), Path("results/first.json"))
    script = tmp_path / "code" / "train.py"
    script.write_text("import autotune, torch; autotune.apply('results/first.json'); print(torch.get_num_threads())")
    done = forked.run([str(script)], tmp_path / "elsewhere")
    assert done.stdout.split() == ["3"], done.stderr


@pytest.mark.parametrize("wrong", [None, {}, 3])
def test_what_is_no_path_is_told(wrong: Any) -> None:
    """As `autotune.load` says it."""
    with pytest.raises(ResultFileError, match="expected the path of a result file, got"):
        autotune.apply(wrong)


def test_a_launch_imports_no_more_than_it_needs_into_each_interpreter(tmp_path: Path) -> None:
    """Asyncio would come before gevent replaces parts of it, and takes time in processes that train nothing."""
    script = Script((sys.executable, "-c", "import sys; print('asyncio' in sys.modules)"))
    environment = script.environment({"role": "launch"}, os.environ)
    done = subprocess.run(script.command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize(
    ("words", "name", "place"),
    [
        ("python -mpkg.train 3", "train", "pkg.train"),
        ("python -um pkg.train", "train", "pkg.train"),
        ("python -m torch.distributed.run --module=pkg.train", "train", "pkg.train"),
        ("torchrun --module pkg.train -m other", "train", "pkg.train"),
        ("python3.12 -u src/train.py -m fast", "train", "src/train"),
        ("python3.12", "python3.12", "python3.12"),
        ("mpirun -mca btl self python -um pkg.train", "train", "pkg.train"),
        ("numactl -m0 python train.py", "train", "train"),
        ("screen -dmS name python -u train.py", "train", "train"),
    ],
)
def test_a_script_has_the_name_of_its_file_or_module(words: str, name: str, place: str) -> None:
    """However the module is named."""
    script = Script(tuple(words.split()))
    assert (script.name, script.place) == (name, place)
