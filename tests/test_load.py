"""Loading a result file into training: on the machine that was measured, and on others."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import autotune
from autotune.errors import ConfigError, ResultFileError
from autotune.hardware.host import read_cpu
from autotune.result import Result, write_result
from autotune.runtime import load
from tests.factories import make_gpu, make_hardware, make_result, make_software


def write(tmp_path: Path, **changes: Any) -> tuple[Path, Result]:
    """A result file of this very machine, with some changes."""
    cpu = {"cpu": read_cpu({}), "software": make_software(torch=str(torch.__version__))}
    fields = {"hardware": make_hardware(**cpu), "software": cpu["software"]}
    result = make_result(**{**fields, **changes})
    path = tmp_path / "result.json"
    write_result(result, path)
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


def test_a_missing_result_is_told(tmp_path: Path) -> None:
    """As wherever result files are read."""
    with pytest.raises(ResultFileError):
        load(tmp_path / "none.json")
