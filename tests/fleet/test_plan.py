"""A fleet's file: what it may say, and a sentence for each thing that it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.fleet import read_plan

RAY = 'engine = "ray"\n'


def written(text: str, folder: Path) -> Path:
    """A fleet's file with a text."""
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def test_machines_are_read_in_their_order_with_their_prices(tmp_path: Path) -> None:
    """What a person writes of two kinds is what the engine is asked for."""
    text = (
        f'{RAY}wait = "2m"\n[machines.big]\ndollars_per_hour = 2.5\ngpus = 1\nlabels = {{ kind = "a100" }}\n'
        '[machines.small]\noptions = ["--device=cpu"]\n'
    )
    plan = read_plan(written(text, tmp_path))
    assert list(plan.machines) == ["big", "small"]
    assert (plan.machines["big"].dollars_per_hour, plan.machines["big"].labels) == (2.5, {"kind": "a100"})
    assert plan.machines["small"].options == ("--device=cpu",)
    assert plan.wait_seconds == 120


def test_an_engine_that_is_a_list_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Also beside an address."""
    with pytest.raises(UsageError, match="engine: expected 'ray', 'slurm' or 'local', got"):
        read_plan(written("engine = ['ray']\n[machines.any]\n", tmp_path), address="auto")


def test_an_engine_and_an_address_may_be_named_outside_of_the_file(tmp_path: Path) -> None:
    """A cluster of today is tried with the file of always."""
    plan = read_plan(written("[machines.any]\n", tmp_path), engine="ray", address="10.0.0.7:6379")
    assert (plan.engine, plan.address) == ("ray", "10.0.0.7:6379")


def test_a_file_of_a_cluster_can_be_tried_on_this_machine(tmp_path: Path) -> None:
    """The engine local, named outside of the file, ignores the cluster's keys."""
    text = f'{RAY}address = "auto"\nexcludes = ["data"]\nwait = "2h"\n[machines.any]\n'
    plan = read_plan(written(text, tmp_path), engine="local")
    assert (plan.engine, plan.address, plan.excludes, plan.wait) == ("local", None, (), None)


def test_an_engine_named_outside_of_the_file_ignores_what_it_does_not_use(tmp_path: Path) -> None:
    """A file that was written for Ray is sent to Slurm."""
    text = f'{RAY}address = "auto"\nexcludes = ["data"]\nwait = "2h"\n[machines.any]\n'
    plan = read_plan(written(text, tmp_path), engine="slurm")
    assert (plan.engine, plan.address, plan.excludes, plan.wait) == ("slurm", None, (), "2h")
    with pytest.raises(UsageError, match="got 'pbs'"):
        read_plan(written(text, tmp_path), engine="pbs")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[machines.a]\n", "engine is missing: expected one of ray, slurm, local"),
        (RAY, "machines is missing: expected a table for each machine"),
        (f"{RAY}[machines]\n", "at least 1"),
        (f"{RAY}[machines.a]\ngpu = 1\n", "expected one of dollars_per_hour, cpus, gpus"),
        (f"{RAY}[machines.a]\ndollars_per_hour = 0\n", "machines.a.dollars_per_hour"),
        (f"{RAY}[machines.a]\npartition = 'x'\n", "means nothing to the engine ray"),
        (f"{RAY}[machines.a]\nresources = {{ GPU = 1 }}\n", "machines.a.resources: GPU has a key of its own; use gpus"),
        (f"{RAY}[machines.a]\nresources = {{ ssd = -1 }}\n", "machines.a.resources.ssd: .* greater than or equal to 0"),
        ("engine = 'slurm'\n[machines.a]\nlabels = { a = 'b' }\n", "means nothing to the engine slurm"),
        (f"{RAY}[machines.'a b']\n[machines.a-b]\n", "would share the folder results/a-b"),
        (f"{RAY}wait = 'soon'\n[machines.a]\n", "expected a duration"),
        ("engine = 'pbs'\n[machines.a]\n", "engine: expected 'ray', 'slurm' or 'local', got 'pbs'; write engine = "),
        ("engine = ", "cannot be read as TOML: .*; correct it, as in engine = "),
        (f"{RAY}[machines.a]\ngpus = 'two'\n", "a.gpus: expected a valid integer.*, got 'two'; write gpus = 1"),
        (f"{RAY}[machines.a]\nlabels = {{ a = 1 }}\n", "labels.a: expected a valid string, got 1; write labels = "),
        (f"{RAY}machines = 1\n", "machines: expected .*, got 1; write engine = .ray. and"),
        (f"{RAY}[machines]\na = 1\n", "machines.a: expected .*, got 1; write engine = .ray. and"),
        (f"{RAY}excludes = [1]\n[machines.a]\n", "excludes.0: expected a valid string, got 1; write excludes = "),
        (f"{RAY}folder = 'x'\n[machines.a]\n", "folder means nothing to the engine ray; leave it out"),
        ("engine = 'slurm'\naddress = 'auto'\n[machines.a]\n", "address means nothing to the engine slurm"),
        ("engine = 'slurm'\nexcludes = ['x']\n[machines.a]\n", "excludes means nothing to the engine slurm"),
        ("engine = 'local'\naddress = 'auto'\n[machines.a]\n", "address means nothing to the engine local"),
        ("engine = 'local'\nwait = '2h'\n[machines.a]\n", "wait means nothing to the engine local"),
    ],
)
def test_what_is_wrong_is_told_by_name(text: str, told: str, tmp_path: Path) -> None:
    """One sentence that names the place, before anything is sent anywhere."""
    with pytest.raises(UsageError, match=told):
        read_plan(written(text, tmp_path))


def test_a_missing_file_is_told_with_what_belongs_into_it(tmp_path: Path) -> None:
    """Whoever has none yet learns how one begins."""
    with pytest.raises(UsageError, match=r"there is none; write engine = .ray. and \[machines"):
        read_plan(tmp_path / "fleet.toml")
