"""The file of `autotune cross`: written whole, read with an error for each way to fail, and put into words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ResultFileError
from autotune.measuring.records import Outcome
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.results.cross_file import Cross, default_cross_path, gain_or_loss
from autotune.results.files import read_document, write_document
from autotune.results.summary import ratio_with_interval
from tests.crosses import make_cross, on_gpu
from tests.factories import make_result


def changed(folder: Path, **changes: Any) -> Path:
    """A cross file with some of its content replaced."""
    data = json.loads(make_cross().model_dump_json(by_alias=True))
    path = folder / "cross.json"
    path.write_text(json.dumps(data | changes))
    return path


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    """Whole, under its schema."""
    path = tmp_path / "a" / "b.json"
    write_document(make_cross(), path)
    assert read_document(path, Cross) == make_cross()
    assert json.loads(path.read_text())["schema"] == "autotune.cross/2"
    assert [file.name for file in path.parent.iterdir()] == ["b.json"]


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """With the option that names another place."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultFileError, match="--out"):
        write_document(make_cross(), tmp_path / "file" / "cross.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "autotune.cross/3"}, "is a cross file of another autotune"),
        ({"schema": "autotune.cross/1"}, "or run 'autotune cross' again"),
        ({"schema": "autotune.result/2"}, "is not a cross file of autotune"),
        ({"schema": ["autotune.cross/2"]}, "is not a cross file of autotune"),
        ({"rounds": -1}, "is broken: rounds: "),
        ({"over_own": {"ratio": 0, "ci95": [1, 1], "pairs": 2}}, "is broken: over_own.ratio: "),
        ({"outcome": "fine"}, "is broken: outcome: "),
    ],
)
def test_each_way_to_be_wrong_has_a_sentence_that_names_the_file(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """A person knows which file it is, and what to do."""
    path = changed(tmp_path, **changes)
    with pytest.raises(ResultFileError) as caught:
        read_document(path, Cross)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_what_is_not_json_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    """Cut off, binary, or nested beyond measure."""
    path = tmp_path / "cross.json"
    path.write_bytes(content)
    with pytest.raises(ResultFileError, match=r"is not a cross file: .*; name a cross file: "):
        read_document(path, Cross)


def test_missing_file_is_told(tmp_path: Path) -> None:
    """By name."""
    with pytest.raises(ResultFileError, match="there is none"):
        read_document(tmp_path / "cross.json", Cross)


def test_fields_of_a_later_version_are_ignored_and_told(tmp_path: Path) -> None:
    """A file of the same schema stays readable."""
    cross = read_document(changed(tmp_path, weather="fine"), Cross)
    assert cross.model_dump() == make_cross().model_dump()
    assert str(cross.ignored).endswith(": weather")


def test_default_path_names_both_machines_and_the_workload() -> None:
    """Under the folder of the machine where it was measured; the other one by its hardware and its host."""
    assert default_cross_path(make_cross()) == Path(
        "results/intel-xeon-gold-6338-2-cpus/cross/"
        "train-build-cpu-from-NVIDIA-GeForce-RTX-4070-2-CPUs-workstation-cuda-3c3343c2.json"
    )


def test_configs_of_two_hosts_with_one_gpu_have_files_of_their_own() -> None:
    """`compare` shows both."""
    names = {default_cross_path(make_cross(on_gpu(hostname=host))) for host in ("node-1", "node.1", "node2")}
    assert len(names) == 3


@pytest.mark.parametrize(
    ("ratio", "low", "high", "words"),
    [
        (0.83, 0.79, 0.87, "loses 17 % (13 – 21 %)"),
        (1.5, 1.4, 1.62, "gains 50 % (40 – 62 %)"),
        (0.97, 0.955, 0.985, "loses 3.0 % (1.5 – 4.5 %)"),
        (0.99, 0.95, 1.031, "shows no certain gain or loss"),
    ],
)
def test_a_ratio_is_a_loss_a_gain_or_neither(ratio: float, low: float, high: float, words: str) -> None:
    """Whose interval includes 1 is no claim."""
    assert gain_or_loss(Speedup(ratio=ratio, ci95=Interval(low, high), pairs=4)) == words


def test_a_ratio_has_its_interval() -> None:
    """As everywhere else."""
    assert ratio_with_interval(Speedup(ratio=0.83, ci95=Interval(0.79, 0.87), pairs=4)) == "0.830× (0.790 – 0.870)"


def finding(**changes: Any) -> str:
    """What came of a cross."""
    cross: Cross = make_cross(**changes)
    return cross.finding


def test_a_gain_in_energy_names_its_unit() -> None:
    """The rate needs none."""
    told = finding(objective="samples_per_joule")
    assert told.startswith("loses 17 % (13 – 21 %) in samples/J with the config of")
    assert told.endswith("over the baseline it is 1.20× (1.10 – 1.30) in samples/J")


def test_a_config_that_cannot_run_is_told_with_its_end() -> None:
    """Nothing else is known of it."""
    told = finding(outcome=Outcome.OOM, failure="it ended as oom: 12 GiB were asked for", over_own=None)
    assert told == (
        "cannot train with the config of NVIDIA GeForce RTX 4070, 2 CPUs: it ended as oom: 12 GiB were asked for"
    )


def test_a_cross_without_a_result_of_its_own_says_why() -> None:
    """What it is over the baseline is known all the same."""
    told = finding(own=None, over_own=None, over_own_reason="there is no result of this machine")
    assert "but not against its own: there is no result of this machine; over the baseline it is 1.20× (" in told


def test_two_machines_may_have_come_to_the_same_config() -> None:
    """There is nothing to lose."""
    same = make_result(best=on_gpu().best)
    assert not make_cross().same_config
    assert make_cross(own=same, over_own=None).finding.startswith("has the same config as NVIDIA")
