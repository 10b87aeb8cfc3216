"""What a look makes of what it has seen, how models are found again, and what a script's files are called."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.bursts.hosts.protocol import Request
from autotune.recorder import ending, hooks
from autotune.recorder.importing import after_import
from autotune.scripts import Script
from autotune.scripts.isolation import Course
from autotune.timing.loop import holders_of, merged, names_of
from autotune.timing.protocol import Command
from autotune.torch_settings.naming import find_models, loader_kind, model_key


class Net(nn.Module):
    """With weights of a shape that no other test has."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.inner = nn.Linear(3, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize(
    ("drawn", "told"),
    [
        ([1, 1, 2, 2, 3], [1, 1, 1, 1, 1]),
        ([1, 2, 1, 2], [1, 2, 1, 2]),
        ([1, 2, 1, 2, 3, 4, 3, 4], [1, 2, 1, 2, 1, 2, 1, 2]),
        ([1, 9, 2, 9], [1, 9, 1, 9]),
    ],
    ids=["made again", "zipped", "zipped and made again", "beside another"],
)
def test_loaders_that_were_made_again_are_told_as_the_first(drawn: list[int], told: list[int]) -> None:
    """All are alike, but for the ninth."""
    keys = {loader: "other" if loader == 9 else "alike" for loader in drawn}
    assert [loader for loader, _ in merged([(one, 4) for one in drawn], keys)] == told


def test_of_models_that_are_alike_those_are_found_that_are_trained() -> None:
    """An average of the weights is as old as they are; two that are trained are both found."""
    average, first, second = Net(11), Net(11), Net(11)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()])
    key = model_key(average)
    assert find_models([key])[0] is not average
    assert {id(one) for one in find_models([key, key])} == {id(first), id(second)}
    assert len(find_models([key] * 4)) == 0
    assert optimizer.param_groups


def test_the_outermost_model_is_found_that_an_optimizer_steps() -> None:
    """In compiled code nobody sees it called."""
    wrapper, other = nn.Sequential(Net(17)), Net(17)
    assert holders_of([torch.optim.SGD(wrapper.parameters())]) == [wrapper]
    assert other.inner.out_features == 17


def test_a_lazy_model_has_a_name_too() -> None:
    """Its weights have no shapes yet, and asking for them raises."""
    assert model_key(nn.LazyLinear(4)) == model_key(nn.LazyLinear(8))


def test_a_model_is_found_within_the_one_that_wraps_it() -> None:
    """As under several ranks, where the wrapper is called; once found, nothing looks on any more."""
    model = Net(13)
    wrapper = nn.Sequential(nn.ReLU(), model)
    found: list[Any] = []
    hooks.when_called([model_key(model)], found.append)
    with torch.no_grad():
        wrapper(torch.ones(1, 3))
    assert found == []
    wrapper(torch.ones(1, 3))
    wrapper(torch.ones(1, 3))
    assert found == [[model]]


def test_a_loader_of_several_ranks_is_known_again_by_what_one_shuffles() -> None:
    """Each draws its share."""
    assert loader_kind("a.Data 64 8 DistributedSampler False") == loader_kind("a.Data 64 8 RandomSampler False")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("python train.py --lr 1", "train"),
        ("env A=1 nohup python run/fit.py", "fit"),
        ("bash train.sh", "train"),
        ("python -m package.train -m more", "train"),
        ("python -m torch.distributed.run --standalone -m package.train", "train"),
        ("torchrun --nproc-per-node 1 fit.py", "fit"),
        ("python -m package.train configs/a.py", "train"),
        ("accelerate launch --module package.train a.py", "train"),
        ("python -m coverage run train.py -m resnet", "train"),
        ("make train", "make"),
    ],
)
def test_a_script_is_called_by_its_file_or_module(words: str, name: str) -> None:
    """Whatever launches it, and whatever it is given: two trainings with one config must not share a result file."""
    assert Script(tuple(words.split())).name == name


def test_a_few_models_are_named_and_the_rest_counted() -> None:
    """Their names stand in tables."""
    assert names_of([]) == "unknown"
    assert names_of(["A", "B"]) == "A and B"
    assert names_of(["A", "B", "C", "D", "E"]) == "A and B and C and 2 more"


def test_a_job_that_begins_again_trains_the_block_that_it_was_asked_for() -> None:
    """From where the block before had ended, and with all players that play."""
    course = Course(Request(job="host"))
    assert course.again() == []
    course.note(Command(action="train", start=10, until=20))
    assert course.again() == [Command(action="train", start=10, until=20)]
    joins = [Command(action="join", player=number, seat=course.request) for number in (1, 2)]
    for join in joins:
        course.note(join)
    assert course.again() == joins
    course.note(Command(action="train", player=1, start=10, until=20))
    course.note(Command(action="train", player=2, start=10, until=20))
    course.note(Command(action="train", player=1, until=35, leads_in=True))
    assert course.again() == [*joins, Command(action="train", player=1, start=20, until=35, leads_in=True)]
    assert course.note(Command(action="train", player=2, until=35)).start == 20  # its stream has begun anew
    assert course.note(Command(action="train", player=2, until=50)).start is None
    course.note(Command(action="leave", player=1))
    course.without(0)
    course.note(Command(action="train", player=2, until=60))
    leave = Command(action="leave", player=0)
    assert course.again() == [joins[1], leave, Command(action="train", player=2, start=50, until=60)]


def test_a_module_that_is_only_looked_for_is_still_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many libraries look for torch before anybody imports it; its loader answers as ever."""
    (tmp_path / "looked_for_at_first.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    came: list[bool] = []
    after_import("looked_for_at_first", lambda: came.append(True))
    for _ in range(2):
        spec = importlib.util.find_spec("looked_for_at_first")
        assert spec is not None
        assert spec.loader is not None
        assert "VALUE" in spec.loader.get_source("looked_for_at_first")  # type: ignore[attr-defined]
    assert came == []
    module = importlib.import_module("looked_for_at_first")
    assert (came, module.VALUE) == ([True], 1)
    assert "Telling" not in type(module.__loader__).__name__


@pytest.mark.parametrize("fails", [False, True], ids=["", "fails at first"])
def test_a_module_that_is_being_imported_is_waited_for(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the one of safetensors, which imports torch, upon which the recorder begins."""
    module = f"begins_with_torch_{fails}"
    (tmp_path / f"{module}.py").write_text("import sys\nsys.begins()\nVALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    came: list[int] = []

    def begins() -> None:
        monkeypatch.setattr(sys, "begins", lambda: None)
        for _ in range(2):
            after_import(module, lambda: came.append(sys.modules[module].VALUE))
        if fails:
            raise ImportError

    monkeypatch.setattr(sys, "begins", begins, raising=False)
    with pytest.raises(ImportError) if fails else contextlib.nullcontext():
        importlib.import_module(module)
    assert came == ([] if fails else [1, 1])
    spec = importlib.import_module(module).__spec__
    assert (came, type(spec), capsys.readouterr().err) == ([1, 1], ModuleSpec, "")


def test_an_error_that_another_hook_has_taken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not the end of a burst, nor what it caused."""
    monkeypatch.setattr(sys, "last_value", ValueError("no"), raising=False)
    assert isinstance(ending.last_error(), ValueError)
    caused = ValueError("while leaving")
    caused.__context__ = ending.BurstEnded()
    monkeypatch.setattr(sys, "last_value", caused, raising=False)
    assert ending.last_error() is None


@pytest.mark.parametrize(("status", "is_told"), [(1, True), ("failed", True), (0, False), (None, False)])
def test_an_error_that_the_script_had_caught_when_it_left_is_found(
    status: object, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it calls that a success: out of memory is no crash by ``sys.exit(1)``."""
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.setattr(ending, "_caught", [])
    ending.note_exits()
    with pytest.raises(SystemExit):
        _leave_with_an_error(status)
    found = ending.last_error()
    assert isinstance(found, MemoryError) if is_told else found is None


def _leave_with_an_error(status: Any) -> None:
    try:
        raise MemoryError("all of it")
    except MemoryError:
        sys.exit(status)
