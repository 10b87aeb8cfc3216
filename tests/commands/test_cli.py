"""The command as a person uses it: real processes, another folder, wrong arguments, interruptions."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import autotune
from autotune.results.files import write_document
from autotune.results.result import read_result
from autotune.results.summary import verdict
from tests.factories import make_result
from tests.inside import run_inside
from tests.processes import BUDGET_OVERRUN_SECONDS, ROOT, Command, budget, run, slowness

TINY = "tests.workloads.tiny:build"
BASELINE_ALONE = "--only cudnn_benchmark"
"""On a CPU that leaves nothing to search."""


def test_tuning_writes_a_result_that_training_can_use(tmp_path: Path) -> None:
    """One command yields a complete result inside its budget, leaves nothing behind, and its config trains."""
    out = tmp_path / "tiny.json"
    finished = run(["--model", TINY, "--budget", budget(10), "--out", str(out)], tmp_path)
    assert finished.status == 0, finished.err
    assert finished.left == ()
    assert finished.seconds <= 10 * slowness() + BUDGET_OVERRUN_SECONDS
    result = read_result(out)
    assert result.status == "complete"
    assert result.search.outcomes["ok"] >= 1
    assert finished.out == ""
    assert "baseline" in finished.err
    assert ("autotune.load" in finished.err) == (bool(result.changed_knobs) and verdict(result).confirmed)
    assert "<html" in out.with_suffix(".html").read_text()
    assert "tiny.html" in finished.err
    assert "samples/s" in run_inside(["show", str(out)], tmp_path).out
    tuned = autotune.load(out)
    assert len(next(iter(tuned.dataloader(list(range(256)), shuffle=True)))) == tuned.batch_size  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_dry_run_of_a_model_tunes_nothing(tmp_path: Path) -> None:
    """It says what would be tried and what would not, each with its reason, and writes nothing."""
    finished = run(["--model", TINY, "--only", "num_workers", "--dry-run", "--json"], tmp_path)
    assert finished.status == 0, finished.err
    look = json.loads(finished.out)
    assert look["choices"].keys() == {"num_workers"}
    assert "--only" in look["skipped"]["batch_size"]
    assert not list(tmp_path.glob("**/*.json"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_a_baseline_that_does_not_fit_is_tuned_all_the_same(tmp_path: Path) -> None:
    """Neither the look at it nor its burst fits; the result says what was changed, and compares with that."""
    out = tmp_path / "fitted.json"
    arguments = ["--model", "tests.workloads.too_large:build", "--budget", budget(30), "--out", str(out)]
    finished = run(arguments, tmp_path)
    assert finished.status == 0, finished.err
    result = read_result(out)
    assert result.baseline.config.batch_size < 64
    assert result.baseline.config.effective_batch == result.best.config.effective_batch == 64
    assert result.baseline.measurement is not None
    assert any("it trains: tuning starts from there" in note for note in result.search.notes)


@pytest.mark.slow
def test_the_budget_counts_from_the_command_not_from_the_shell(tmp_path: Path) -> None:
    """A shell that executes its last command in its own place does not make the budget older than the command."""
    tuning = f"{sys.executable} -m autotune --model {TINY} {BASELINE_ALONE} --budget {budget(10)} --json --quiet"
    began, environment = tmp_path / "began", {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"sleep 2 && touch {began} && exec {tuning}"
    finished = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    took = time.time() - began.stat().st_mtime
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["search"]["seconds"] <= took + 1


@pytest.mark.slow
def test_a_model_in_another_folder_is_found_by_path(tmp_path: Path) -> None:
    """`folder/train.py:build` needs no package and no installation, and modules beside it can be imported."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "helper.py").write_text("WIDTH = 8\n")
    (folder / "train.py").write_text(
        "import torch\nfrom torch.nn import functional\nfrom helper import WIDTH\n"
        "def build():\n"
        "    data = torch.utils.data.TensorDataset(torch.randn(256, WIDTH), torch.randn(256, 1))\n"
        "    def loss(model, batch):\n        return functional.mse_loss(model(batch[0]), batch[1])\n"
        "    return torch.nn.Linear(WIDTH, 1), data, loss\n"
    )
    finished = run(["--model", "project/train.py:build", *BASELINE_ALONE.split(), "--budget", budget(10)], tmp_path)
    assert finished.status == 0, finished.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", TINY, "--memory-target", "2"], "fraction"),
        (["--model", TINY, "--device", "tpu"], "expected one of cpu"),
        (["--model", TINY, "--sampler", "luck"], "tpe, random"),
        (["--model", TINY, "--pin", "precision"], "knob=value"),
        (["--model", TINY, "--pin", "precision=fp8"], "expected one of fp32"),
        (["--model", TINY, "--only", "speed"], "is not a knob"),
        (["--model", TINY, "--effective-batch", "-4"], "whole number"),
        (["--model", TINY, "--explore", "width="], "name=a,b"),
        (["--model", TINY, "--dry-run", "--warm-start", __file__], "is not a result file: it is not valid JSON"),
        (["--json", "show", "a.json"], "--json stands before 'show', where it means nothing"),
        (["compare"], "PATHS"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(arguments: list[str], words: str, tmp_path: Path) -> None:
    """Usage errors end with status 2 before any process is started, and no file is written."""
    finished = run_inside(arguments, tmp_path)
    assert finished.status == 2, finished.err
    assert words.lower() in " ".join(finished.err.lower().split())
    assert not list(tmp_path.glob("**/*.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", TINY, "--explore", "depth=1,2"], "takes no argument"),
        (["--model", TINY, "--out", "."], "is a folder"),
        (["--model", TINY, "--resume"], "expected an earlier run"),
        (["--model", TINY, "--device", "cuda"], "cuda"),
        (["--model", TINY, "--storage", "sqlite:////no/such/folder/x.db"], "cannot be opened"),
    ],
)
def test_a_mistake_that_the_workload_shows_costs_seconds(arguments: list[str], words: str, tmp_path: Path) -> None:
    """Those that only a process with the user's module can find end the same way, and nothing is left."""
    finished = run(arguments, tmp_path, seconds=30)
    assert finished.status == 2, finished.err
    assert words.lower() in " ".join(finished.err.lower().split())
    assert "Traceback" not in finished.err
    assert finished.left == ()
    assert not list(tmp_path.glob("**/*.json"))


def test_a_failing_build_shows_the_users_own_frames(tmp_path: Path) -> None:
    """Status 1, one sentence, and a traceback that holds the user's file and none of ours."""
    (tmp_path / "broken.py").write_text("def inner():\n    return {}['missing']\n\ndef build():\n    return inner()\n")
    finished = run(["--model", "broken:build", "--budget", "30s"], tmp_path, seconds=30)
    assert finished.status == 1
    assert "broken.py" in finished.err
    assert "in inner" in finished.err
    assert str(ROOT / "autotune") not in "".join(finished.err.split())


@pytest.mark.slow
def test_a_baseline_that_crashes_is_the_users_error(tmp_path: Path) -> None:
    """There is no result, and what it raised is told."""
    finished = run(["--model", "tests.workloads.faults:raises", "--budget", budget(12)], tmp_path)
    assert finished.status == 1, finished.err
    assert "the loss went wrong" in " ".join(finished.err.split())
    assert finished.left == ()
    assert not list(tmp_path.glob("**/*.json"))


@pytest.mark.slow
def test_hanging_configs_do_not_hang_the_search(tmp_path: Path) -> None:
    """Every config with workers hangs here; the search gets past them, inside its budget."""
    out = tmp_path / "slow.json"
    arguments = [
        "--model",
        "tests.workloads.faults:slow_with_workers",
        "--budget",
        budget(30),
        "--only",
        "num_workers,allocator",
    ]
    finished = run([*arguments, "--out", str(out)], tmp_path)
    assert finished.status == 0, finished.err
    assert finished.seconds <= 30 * slowness() + BUDGET_OVERRUN_SECONDS
    assert finished.left == ()
    assert read_result(out).search.outcomes["timeout"] >= 1


@pytest.mark.slow
def test_a_build_that_hangs_ends_within_the_budget(tmp_path: Path) -> None:
    """The check has a deadline, says what hung, and names a budget that would do if it were only slow."""
    finished = run(["--model", "tests.workloads.faults:hang_in_build", "--budget", budget(10)], tmp_path)
    assert finished.status == 1
    assert finished.seconds <= 10 * slowness() + BUDGET_OVERRUN_SECONDS
    assert finished.left == ()
    told = " ".join(finished.err.split())
    assert "did not finish" in told
    assert re.search(r"try --budget \d+0s", told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("former", "name"), [(None, "tiny.json"), ("partial", "tiny.json"), ("complete", "tiny-partial.json")]
)
def test_an_interruption_writes_a_partial_result(former: str | None, name: str, tmp_path: Path) -> None:
    """Ctrl-C in the search ends it in good order, and replaces no complete result.

    `tests/faults` has each signal in each stage.
    """
    out = tmp_path / "tiny.json"
    if former is not None:
        write_document(make_result(status=former), out)
    before = out.read_bytes() if former is not None else b""
    command = Command(["--model", TINY, "--budget", "1m", "--out", str(out)], tmp_path)
    journal = out.with_suffix(".journal")
    command.wait_for(lambda: journal.exists() and journal.read_text().count('"burst"') >= 3)
    command.signal(signal.SIGINT)
    finished = command.finish(seconds=15)
    assert finished.status == 130, finished.err
    assert finished.left == ()
    result = read_result(tmp_path / name)
    assert (result.status, result.stopped_by) == ("partial", "interrupted")
    assert result.best.config == result.baseline.config
    is_kept = former == "complete"
    assert (out.read_bytes() == before, "stays as it is" in " ".join(finished.err.split())) == (is_kept, is_kept)


def test_an_interruption_while_importing_writes_nothing(tmp_path: Path) -> None:
    """Before the workload is known there is nothing to write, and nothing is left running."""
    command = Command(["--model", "tests.workloads.hangs_at_import:build", "--budget", "5m"], tmp_path)
    command.wait_for(lambda: len(command.tree()) > 0)
    command.signal(signal.SIGINT)
    finished = command.finish(seconds=15)
    assert finished.status == 130
    assert finished.left == ()


@pytest.mark.slow
def test_a_killed_run_resumes_without_repeating_a_burst(tmp_path: Path) -> None:
    """After SIGKILL, --resume goes on from the journal; the killed run's children are gone by then."""
    out = tmp_path / "tiny.json"
    command = Command(["--model", TINY, "--budget", "1m", "--out", str(out)], tmp_path)
    journal = out.with_suffix(".journal")
    # The end of the fifth may not be stored yet when the signal comes.
    command.wait_for(lambda: journal.exists() and journal.read_text().count('"burst"') >= 5)
    command.signal(signal.SIGKILL)
    killed = command.finish(seconds=15)
    assert killed.left == ()
    assert not out.exists()
    finished = run(["--model", TINY, "--budget", budget(15), "--out", str(out), "--resume"], tmp_path)
    assert finished.status == 0, finished.err
    result = read_result(out)
    assert result.search.resumed_bursts >= 4
    assert "not run again" in " ".join(finished.err.split())


def test_show_and_compare_read_what_was_written(tmp_path: Path) -> None:
    """A result can be shown and compared, as text and as JSON."""
    out = tmp_path / "tiny.json"
    write_document(make_result(name="tiny"), out)
    assert "samples/s" in run_inside(["show", str(out)], tmp_path).out
    assert json.loads(run_inside(["show", str(out), "--json"], tmp_path).out)["status"] == "complete"
    assert "tiny" in run_inside(["compare", str(tmp_path)], tmp_path).out
    assert json.loads(run_inside(["compare", str(tmp_path), "--format", "json"], tmp_path).out)


def run_without_torch(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process that fails where it has imported torch itself."""
    code = (
        "import sys\nfrom autotune.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip


def test_probe_tells_the_machine_as_json(tmp_path: Path) -> None:
    """The probe names the processor, torch's version and a measured peak; torch is only imported in its child."""
    finished = run_without_torch(["probe", "--json"], tmp_path)
    assert finished.returncode == 0, finished.stderr
    machine = json.loads(finished.stdout)
    assert machine["cpu"]["budget"] >= 1
    assert machine["software"]["torch"]
    assert machine["peaks"]["matmul_flops_per_second"]["fp32"] > 1e8


@pytest.mark.slow
def test_json_is_the_only_thing_on_stdout(tmp_path: Path) -> None:
    """With --json and --quiet stdout is one JSON document and stderr empty; the parent does not import torch for it."""
    words = ["--model", TINY, *BASELINE_ALONE.split(), "--budget", budget(10), "--json", "--quiet"]
    finished = run_without_torch(words, tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["schema"] == "autotune.result/2"
    assert finished.stderr == ""
    written = list(tmp_path.glob("results/*/*.json"))
    assert [read_result(path).workload.target for path in written] == [TINY]


def test_the_command_starts_without_what_only_some_commands_need() -> None:
    """Its help imports what reads options, and nothing else that takes time."""
    code = (
        "import sys\nfrom autotune.cli import app\n"
        "try:\n    app(['--help'])\nfinally:\n    print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    imported = {name.partition(".")[0] for name in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"matplotlib", "numpy", "optuna", "psutil", "pynvml", "rich", "torch"}
    assert "autotune.hardware" not in done.stderr.splitlines()


def test_the_options_are_the_promised_ones(tmp_path: Path) -> None:
    """A script that calls the command goes on working: no option disappears unseen."""
    from typer.main import get_command

    from autotune.cli import app

    options = {option for parameter in get_command(app).params for option in parameter.opts}
    assert options >= {
        "--model", "--budget", "--device", "--out", "--effective-batch", "--memory-target", "--utilization-target",
        "--pin", "--only", "--explore", "--sampler", "--seed", "--storage", "--resume", "--json",
        "--quiet",
    }  # fmt: skip
