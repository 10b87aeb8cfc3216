"""Other tools beside ours: each is really asked, and what is made of their answers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.knobs.config import TrainConfig
from benchmarks import output
from benchmarks.peers import run
from benchmarks.peers.choose import choices_in
from benchmarks.peers.run import OURS, OURS_FREE, ask, end, ours_over, summary
from tests.processes import slowness

TINY = "tests.workloads.tiny:build"
BASELINE = TrainConfig(batch_size=32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "package", "expected"),
    [
        ("Accelerate find_executable_batch_size", "accelerate", {"batch_size": 128}),
        ("Lightning scale_batch_size", "lightning", {}),
        ("pytorch-autotune", "pytorch_autotune", {}),
        ("autotrainer", "autotrainer", {}),
        ("loadtune", "loadtune", {}),
        ("Optuna random", "optuna", {}),
    ],
)
def test_each_tool_chooses(tool: str, package: str, expected: dict[str, Any]) -> None:
    """On a workload of milliseconds, by the tool's own package."""
    pytest.importorskip(package)
    choice = ask(tool, TINY, 12.0 * slowness(), BASELINE)
    assert choice.trouble is None
    changed = {knob: now for knob, (_, now) in choice.config.changes_from(BASELINE).items()}
    assert expected.items() <= changed.items()


@pytest.mark.slow
def test_a_tool_that_fails_leaves_the_baseline_and_says_why() -> None:
    """Here, because there is none of this name."""
    choice = ask("no such tool", TINY, 10.0, BASELINE)
    assert choice.config == BASELINE
    assert "exit status 1" in (choice.trouble or "")
    assert "no such tool" in (choice.trouble or "")


def test_the_last_choice_counts() -> None:
    """Whatever the tool prints in between."""
    told = [BASELINE, BASELINE.replace(num_workers=2)]
    text = "\n".join(["Epoch 1", f"CHOICE {told[0].model_dump_json()}", "noise", f"CHOICE {told[1].model_dump_json()}"])
    assert choices_in(text) == told


def test_a_tool_ends_with_all_its_children() -> None:
    """Ray leaves a family behind, else."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 10
    while not (children := psutil.Process(process.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    end(process)
    _, alive = psutil.wait_procs(children, timeout=3)
    assert not alive


def test_the_same_config_is_exactly_as_fast() -> None:
    """It was trained once for both."""
    same = ours_over([100.0, 103.0], [100.0, 103.0])
    assert (same.ratio, same.ci95.low, same.ci95.high) == (1.0, 1.0, 1.0)


def test_the_summary_is_the_geometric_mean_over_workloads() -> None:
    """Of our rate over each tool's, and over the best tool's of each workload; the baseline is no tool."""

    def compared(**ratios: float) -> dict[str, Any]:
        rows = {OURS: 1.0, "baseline": 9.0, **ratios}
        return {"rows": [{"tool": tool, "ours_over_it": {"ratio": ratio}} for tool, ratio in rows.items()]}

    found = summary([compared(a=2.0, b=1.0), compared(a=8.0, b=4.0)])
    assert found["a"] == pytest.approx(4.0)
    assert found["best of them"] == pytest.approx(2.0)
    assert found["all of them"] == pytest.approx(64**0.25)


@pytest.mark.slow
def test_a_comparison_from_the_command_to_the_written_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our own command, another tool, and each one's config trained in the independent loop.

    The other tool changes the effective batch, so ours may too before the two are compared.
    """
    pytest.importorskip("accelerate")
    monkeypatch.setattr(output, "FOLDER", tmp_path / "benchmarks" / "output")
    (tmp_path / "benchmarks" / "output").mkdir(parents=True)
    arguments = [TINY, "--budget", f"{12 * slowness():.0f}", "--seconds", "1", "--rounds", "2"]
    assert run.main([*arguments, "--tools", "Accelerate find_executable_batch_size"]) in {0, 1}
    printed = capsys.readouterr().out
    assert "batch_size=128" in printed
    (compared,) = run.known()
    tools = [row["tool"] for row in compared["rows"]]
    assert tools == [OURS, "baseline", "Accelerate find_executable_batch_size", OURS_FREE]
