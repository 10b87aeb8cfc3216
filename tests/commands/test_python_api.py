"""`autotune.tune` from Python: the command's options, errors and manners, whoever calls it."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import autotune
from autotune import secrets
from autotune.bursts.hosts.cleanup import RUN_VARIABLE
from autotune.commands import tune as tune_module
from autotune.errors import AutotuneError, TargetError, UsageError
from autotune.sessions.options import FOR_SCRIPTS, Options
from tests.inside import run_inside
from tests.processes import ROOT, budget, has_measured, temporary_of

SCRIPT = """
import sys, torch, autotune
from pathlib import Path
Path("imported.txt").open("a").write("x")
data = torch.utils.data.TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
class Net(torch.nn.Linear):
    pass
def build():
    def loss(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    return Net(16, 4), data, loss
"""


def options_of_command(arguments: list[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Options:
    """What the command makes of what is typed."""
    seen: list[Options] = []
    monkeypatch.setattr(tune_module, "tune_and_tell", lambda wanted, **_: seen.append(wanted) or 0)
    finished = run_inside(["--model", "train:build", *arguments], folder)
    assert finished.status == 0, finished.err
    return seen[0]


def test_a_call_draws_no_random_number_of_the_script(tmp_path: Path) -> None:
    """What a script shuffles later keeps its order."""
    code = "import random, autotune; random.seed(0); state = random.getstate()\n"
    code += "try: autotune.tune('nowhere.py:build')\nexcept autotune.AutotuneError: print(random.getstate() == state)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "True\n"


def test_there_is_no_option_that_only_one_of_both_has() -> None:
    """Names and defaults are the command's."""
    command = inspect.signature(tune_module.tune).parameters
    called = inspect.signature(autotune.tune).parameters
    own = {"target", "quiet"}
    lacking = {"context", "model", "dry_run", "json", "quiet", "version"} | FOR_SCRIPTS
    assert called.keys() - own == command.keys() - lacking
    for name in called.keys() - own:
        assert called[name].default == command[name].default


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({}, []),
        ({"budget": 90}, ["--budget", "90s"]),
        ({"pin": {"num_workers": 4, "compile_mode": None}}, ["--pin", "num_workers=4", "--pin", "compile_mode=none"]),
        ({"pin": "num_workers=4"}, ["--pin", "num_workers=4"]),
        ({"only": ["precision", "num_workers"]}, ["--only", "precision,num_workers"]),
        ({"explore": {"width": (8, 16)}}, ["--explore", "width=8,16"]),
        ({"effective_batch": 64, "seed": 7}, ["--effective-batch", "64", "--seed", "7"]),
        ({"memory_target": 0.5, "pin": {"num_workers": "<=4"}}, ["--memory-target", "0.5", "--pin", "num_workers<=4"]),
        ({"out": "a.json", "warm_start": "b.json"}, ["--out", "a.json", "--warm-start", "b.json"]),
        ({"resume": True, "device": None}, ["--resume"]),
    ],
)
def test_values_mean_what_is_typed(
    given: dict[str, Any], arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Numbers, lists and mappings as Python writes them."""
    assert Options.parse(given, target="train:build") == options_of_command(arguments, monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"objective": "speed"}, ["--objective", "speed"]),
        ({"budget": "soon"}, ["--budget", "soon"]),
        ({"memory_target": 1.5}, ["--memory-target", "1.5"]),
        ({"pin": {"num_worker": 4}}, ["--pin", "num_worker=4"]),
        ({"sampler": "best"}, ["--sampler", "best"]),
        ({"pin": {"num_workers": "<=-1"}}, ["--pin", "num_workers<=-1"]),
        ({"effective_batch": "all"}, ["--effective-batch", "all"]),
        ({"explore": {"width": []}}, ["--explore", "width="]),
        ({"device": "tpu"}, ["--device", "tpu"]),
    ],
)
def test_what_is_wrong_is_said_in_the_commands_sentence(
    given: dict[str, Any], arguments: list[str], tmp_path: Path
) -> None:
    """As an exception instead of a status."""
    with pytest.raises(UsageError) as raised:
        autotune.tune("train:build", **given)
    told = " ".join(run_inside(["--model", "train:build", *arguments], tmp_path).err.split())
    assert " ".join(str(raised.value).split()) in told


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"resume": "yes"}, "expected True or False, got 'yes'; pass one"),
        ({"out": 3}, "expected the path of a file, got 3; pass one"),
        ({"warm_start": 3}, "expected paths of files, got 3; pass one"),
        ({"warm_start": [1]}, r"expected paths of files, got \[1\]; pass one"),
        ({"storage": 5}, "expected a text, got 5; pass one"),
        ({"only": {"precision": 1}}, "expected a text, a number or a list of them, got .*; pass one"),
        ({"pin": 5}, "--pin: expected knob=value, or knob<=number, got 5; pass a text"),
        ({"pin": [5]}, "--pin: expected knob=value, or knob<=number, got '5'; pass it in this form"),
        ({"explore": 3}, "--explore: expected name=a,b, got 3; pass a text"),
        ({"effective_batch": True}, "expected a whole number from 1 to 2147483647 or 'free', got True"),
        ({"seed": True}, "expected a whole number from 0 to 4294967295, got True"),
        ({"nproc_per_node": True}, "expected a whole number from 1 to 256 or 'auto', got True"),
    ],
)
def test_a_value_without_words_is_refused(given: dict[str, Any], words: str) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError, match=words):
        autotune.tune("train:build", **given)


def test_an_unknown_option_is_an_error_of_the_call() -> None:
    """With the name that was probably meant."""
    with pytest.raises(TypeError, match=r"no option 'budgte'; did you mean 'budget'\?"):
        autotune.tune("train:build", budgte="10m")
    with pytest.raises(UsageError, match="--network is for scripts"):
        autotune.tune("train:build", network=True)


def test_a_target_is_a_text_or_a_function() -> None:
    """Nothing else."""
    with pytest.raises(TargetError, match="expected a function or a text such as 'train:build', got 3"):
        autotune.tune(3)  # type: ignore[arg-type]


def test_secrets_of_the_environment_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under the command: an error, and with it a result and its page, may quote one."""
    monkeypatch.setattr(secrets, "_remembered", {})
    monkeypatch.setenv("HF_TOKEN", "Zx81-abcd-9911")
    with pytest.raises(TargetError, match=r"got \['invalid key \*\*\*'\]"):
        autotune.tune(["invalid key Zx81-abcd-9911"])  # type: ignore[arg-type]


def test_it_does_not_run_inside_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that calls it while it is imported would start itself without end."""
    monkeypatch.setenv(RUN_VARIABLE, "somewhere")
    with pytest.raises(UsageError, match="would never end; put the call under"):
        autotune.tune("train:build")


def test_what_cannot_be_sent_is_named() -> None:
    """And nothing is started or left."""
    lock = threading.Lock()

    def build() -> object:
        return lock

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(UsageError, match="what it uses as 'lock' cannot be sent there"):
        autotune.tune(build, budget="30s")
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A script of its own, to its end."""
    (folder / "train.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary_of(folder))}
    return subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )


@pytest.mark.slow
def test_a_script_may_tune_its_own_function_without_a_guard(tmp_path: Path) -> None:
    """Bursts do not import the script: it runs once, shows nothing by itself, and its classes work in bursts."""
    ends = f"result = autotune.tune(build, budget={budget(12)!r}, out='a.json')\nprint(result.status, repr(result))\n"
    finished = run_script(SCRIPT + ends, tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("complete <autotune result: train.py:build")
    assert finished.stderr == ""
    assert (tmp_path / "imported.txt").read_text() == "x"
    result = json.loads((tmp_path / "a.json").read_text())
    assert result["workload"]["target"] == "train.py:build"
    assert result["search"]["outcomes"].get("unsupported", 0) == 0  # what compiles does, though it is no module's
    assert [*(tmp_path / "tmp").resolve().glob("autotune-*")] == []


@pytest.mark.slow
def test_a_script_that_names_itself_is_told_of_the_guard(tmp_path: Path) -> None:
    """Bursts import what a text names, so that it must be importable."""
    finished = run_script(SCRIPT + "autotune.tune('train:build', budget='30s')\n", tmp_path)
    assert finished.returncode == 1
    assert 'put the call under `if __name__ == "__main__":`' in finished.stderr.splitlines()[-1]
    assert (tmp_path / "imported.txt").read_text() == "xx"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_keeps_what_was_measured(number: signal.Signals, status: int, tmp_path: Path) -> None:
    """Ctrl-C returns it, and the script goes on; what ends the process does so once that is written."""
    (tmp_path / "train.py").write_text(SCRIPT + "print(autotune.tune(build, budget='10m', out='a.json').status)\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary_of(tmp_path))}
    process = subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    while not has_measured(tmp_path / "a.journal"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert out.strip() == ("partial" if status == 0 else "")
    assert json.loads((tmp_path / "a.json").read_text())["stopped_by"] == "interrupted"
    assert psutil.wait_procs(below, timeout=5)[1] == []


def test_errors_of_a_call_are_autotunes_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that a process of its own reports: never an exit."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AutotuneError, match="there is no module 'nowhere'"):
        autotune.tune("nowhere:build", budget="30s")
