"""Loading a result file into training: on the machine that was measured, and on others."""

from __future__ import annotations

import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import autotune
from autotune.errors import ConfigError, ResultFileError, WorkloadError
from autotune.hardware.host import read_cpu
from autotune.knobs.config import TrainConfig
from autotune.knobs.facts import ModelFacts
from autotune.knobs.registry import KNOBS
from autotune.results.files import write_document
from autotune.results.result import Result, Side
from autotune.results.trainings import Note
from autotune.timing.loop import model_facts
from autotune.training.load_result import load
from autotune.workload.fingerprint import fingerprint
from tests.factories import make_gpu, make_hardware, make_measurement, make_result, make_software
from tests.inside import run_inside
from tests.workloads import mistakes


def write(tmp_path: Path, **changes: Any) -> tuple[Path, Result]:
    """A result file of this very machine, with some changes."""
    cpu = {"cpu": read_cpu({}), "software": make_software(torch=str(torch.__version__))}
    fields = {"hardware": make_hardware(**cpu), "software": cpu["software"]}
    result = make_result(**{**fields, **changes})
    path = tmp_path / "result.json"
    write_document(result, path)
    return path, result


def test_a_result_file_is_loaded(tmp_path: Path) -> None:
    """It holds the best config, on the kind of device that was measured; on the same machine nothing is warned of."""
    path, result = write(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = autotune.load(str(path))
    assert loaded.config == result.best.config
    assert (loaded.batch_size, loaded.accumulation_steps) == (32, 2)
    assert loaded.device == torch.device("cpu")
    assert loaded.result == result


@pytest.mark.parametrize("path", [3, None, b"result.json"])
def test_what_is_no_path_is_told(path: Any) -> None:
    """A number would be read as the number of an open file."""
    with pytest.raises(ResultFileError, match=f"^expected the path of a result file, got {path!r}; pass one"):
        load(path)


def test_another_machine_is_warned_of(tmp_path: Path) -> None:
    """What differs is named, since another machine has another best config."""
    path, _ = write(tmp_path, hardware=make_hardware(), software=make_software(torch="2.7.0"))
    told = r"measured elsewhere \(torch 2.7.0 there, .*; CPU Intel.* there.*autotune check"
    with pytest.warns(UserWarning, match=told):
        load(path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_result_of_a_gpu_is_told_on_a_machine_without(tmp_path: Path) -> None:
    """Rather than trained slowly on the CPU; but a device can be named on purpose."""
    constraints = make_result().constraints.model_copy(update={"device": "cuda"})
    path, _ = write(tmp_path, hardware=make_hardware(make_gpu()), constraints=constraints)
    with pytest.raises(ConfigError, match=f"{path} was measured on cuda, which torch does not find here; tune on"):
        load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert load(path, device="cpu").device == torch.device("cpu")


def test_another_machine_is_refused_when_strict(tmp_path: Path) -> None:
    """The error names what differs, and the command that checks."""
    path, _ = write(tmp_path, software=make_software(torch="2.7.0"))
    with pytest.raises(ConfigError, match=r"torch 2\.7\.0 there.*autotune check"):
        load(path, strict=True)


@pytest.mark.parametrize(
    ("knob", "value", "beside", "here", "needs"),
    [
        ("batched_grad_copy", True, {"ranks": 2}, "2.12.1", "torch 2.13 or later"),
        ("fsdp_own_group", True, {"ranks": 2, "strategy": "fsdp"}, "2.12.1", "torch 2.13 or later"),
        ("fsdp_keep_storage", True, {"ranks": 2, "strategy": "fsdp"}, "2.14.0", "torch 2.15 or later"),
        ("sdpa_backend", "flash_attention_3", {"precision": "bf16"}, "2.14.0", "the package flash_attn_interface"),
        ("fp8_linear", True, {"precision": "bf16", "compile_mode": "default"}, "2.14.0", "the package torchao"),
    ],
)
def test_a_setting_that_cannot_be_used_here_is_left_out(
    knob: str, value: Any, beside: dict[str, Any], here: str, needs: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """Else torch itself would fail, with an error that names neither the setting nor the file."""
    config = TrainConfig(**{knob: value, **beside})
    path, _ = write(tmp_path, best=Side(config=config, measurement=make_measurement(40.0)))
    monkeypatch.setattr("torch.__version__", here)
    monkeypatch.setattr("autotune.training.load_result.installed", list)
    default = KNOBS[knob].default
    told = f"^{knob}={value} needs {needs}.*, which is not here"
    with pytest.warns(UserWarning, match=f"{told}; {default} is used instead$"):
        assert load(path).config == config.replace(**{knob: default})
    with pytest.raises(ConfigError, match=told) as raised:
        load(path, strict=True)
    assert "is used" not in str(raised.value)


def test_packages_are_looked_for_only_where_a_setting_needs_one(tmp_path: Path, monkeypatch: Any) -> None:
    """A module without a spec, such as a stub, makes the search fail; it counts as installed."""
    monkeypatch.setitem(sys.modules, "torchao", types.ModuleType("torchao"))
    path, _ = write(tmp_path)
    fp8 = TrainConfig(precision="bf16", compile_mode="default", fp8_linear=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(path)
        path, _ = write(tmp_path, best=Side(config=fp8, measurement=make_measurement(40.0)))
        assert load(path).config == fp8


def test_a_missing_result_is_told(tmp_path: Path) -> None:
    """As wherever result files are read."""
    with pytest.raises(ResultFileError):
        load(tmp_path / "none.json")


def build_linear(features: int = 4) -> torch.nn.Module:
    """A small model."""
    return torch.nn.Sequential(torch.nn.Linear(features, 8), torch.nn.Linear(8, 2))


def measured_with(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """The workload of a result that was measured with this model."""
    record = make_result().workload
    return {"workload": record.model_copy(update={"model": ModelFacts(**model_facts([model], optimizer))})}


def test_the_measured_model_is_silent(tmp_path: Path) -> None:
    """Also inside another module, as frameworks wrap it."""
    path, _ = write(tmp_path, **measured_with(build_linear()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (build_linear(), torch.nn.Sequential(build_linear())):
            load(path).prepare(model, torch.optim.AdamW(model.parameters()))


def test_another_model_is_warned_of(tmp_path: Path) -> None:
    """With what differs and the command that checks, when the model is known."""
    model = build_linear(5)
    path, _ = write(tmp_path, **measured_with(build_linear()))
    told = r"another workload \(the model is Sequential with 58 .* there, Sequential with 66 .* here\).*autotune check"
    with pytest.warns(UserWarning, match=told):
        load(path).prepare(model)


def test_another_optimizer_is_warned_of(tmp_path: Path) -> None:
    """Its state and its step are part of what was measured."""
    model = build_linear()
    path, _ = write(tmp_path, **measured_with(model, torch.optim.AdamW(model.parameters())))
    with pytest.warns(UserWarning, match="the optimizer is AdamW there, SGD here"):
        load(path).prepare(model, torch.optim.SGD(model.parameters(), momentum=0.9))


def test_another_model_is_refused_when_strict(tmp_path: Path) -> None:
    """Before anything is changed in place."""
    path, _ = write(tmp_path, **measured_with(build_linear()))
    with pytest.raises(ConfigError, match=r"another workload.*tune this workload"):
        load(path, strict=True).prepare(build_linear(5))


def test_a_model_that_was_explored_is_not_compared(tmp_path: Path) -> None:
    """Arguments of build() that the search chose make another model on purpose."""
    best = make_result().best.model_copy(update={"parameters": {"features": 5}})
    path, _ = write(tmp_path, best=best, **measured_with(build_linear()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(path).prepare(build_linear(5))


def test_a_workload_is_compared_at_once(tmp_path: Path) -> None:
    """By its fingerprint: data set and effective batch too."""
    same = mistakes.workload()
    print_ = fingerprint(same, same.make_optimizer(), same.dataset[0])
    record = make_result().workload.model_copy(update={"fingerprint": print_})
    path, _ = write(tmp_path, workload=record)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(path, workload=same)
    words = r"another workload \(it is not digits \(train:build\) .* --model TARGET"
    with pytest.warns(UserWarning, match=words) as told:
        load(path, workload=mistakes.workload(dataset=mistakes.dataset(32)))
    assert not [warning for warning in told if "elsewhere" in str(warning.message)]  # the machine is the same


def test_another_kind_of_device_is_warned_of(tmp_path: Path) -> None:
    """Settings of a GPU say little about the CPU beside it."""
    constraints = make_result().constraints.model_copy(update={"device": "cuda"})
    path, _ = write(tmp_path, constraints=constraints)
    with pytest.warns(UserWarning, match="device cuda there, cpu here"):
        load(path, device="cpu")


def test_a_second_model_is_not_compared(tmp_path: Path) -> None:
    """A teacher, or an average of the weights, was not measured."""
    path, _ = write(tmp_path, **measured_with(build_linear()))
    tuned = load(path, strict=True)
    tuned.prepare(build_linear())
    tuned.prepare(build_linear(5))


def test_a_lazy_model_is_not_compared(tmp_path: Path) -> None:
    """It has no weights before its first batch."""
    path, _ = write(tmp_path, **measured_with(build_linear()))
    load(path, strict=True).prepare(torch.nn.LazyLinear(2))


@pytest.mark.parametrize("built", [3, (torch.nn.Linear(1, 1), [], None)])
def test_what_is_no_workload_is_refused(built: object, tmp_path: Path) -> None:
    """As where it is tuned, with what was expected."""
    path, _ = write(tmp_path)
    with pytest.raises(WorkloadError):
        load(path, workload=built)


LOOP = """
import time
import torch
import autotune
from autotune.integrations import common

tuned = autotune.load("result.json", realised=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters())
loader = tuned.dataloader(torch.utils.data.TensorDataset(torch.ones(160, 4)))
PREPARE
for batches in tuned.accumulate(loader):
    for (batch,) in batches:
        model(batch).mean().backward()
    optimizer.step()
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param("tuned.prepare(model, optimizer)", id="loop"),
        pytest.param("common.apply(tuned, model, [optimizer], device=tuned.device)", id="integration"),
    ],
)
def test_a_training_notes_what_it_reaches_and_show_tells_it(prepare: str, tmp_path: Path) -> None:
    """In a plain loop and under a framework; the report tells it, too."""
    config = TrainConfig(batch_size=2, accumulation_steps=2)
    write(tmp_path, best=Side(config=config, measurement=make_measurement(40.0)))
    done = subprocess.run(
        [sys.executable, "-c", LOOP.replace("PREPARE", prepare)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    note = Note.model_validate_json((tmp_path / "result.realised.jsonl").read_text())
    assert note.samples == 4 * (40 - 10)
    assert note.rate < 80
    shown = run_inside(["show", "result.json"], tmp_path)
    assert (
        f"in 1 training: {note.rate / make_measurement(40.0).samples_per_second:.2f} of the claimed rate" in shown.out
    )
    assert run_inside(["report", "result.json"], tmp_path).status == 0
    assert "in 1 training: " in (tmp_path / "result.html").read_text()
