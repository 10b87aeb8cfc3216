"""`autotune launch` changes what was measured and nothing else below it; it warns where it cannot come in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch import nn

from autotune.hardware.host import read_cpu
from autotune.knobs.config import TrainConfig
from autotune.recorder.arrival import CAME
from autotune.results.files import write_document
from autotune.results.result import ScriptRecord, SourceRecord
from autotune.scripts import Script
from autotune.scripts.looking import trains_unseen
from autotune.scripts.training import Forwarding
from autotune.torch_settings.naming import shapes_hash
from tests.processes import Finished, heed_signals, run, wait_for_file
from tests.scripts.patching import result_of

TRAINS = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

class Rows(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones(4)

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(4, width)
    def forward(self, x):
        return self.layer(x)

torch.set_num_threads(2)
torch.backends.cudnn.benchmark = False
model = Net(WIDTH)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(DATA, batch_size=4, shuffle=True)
batches = iter(loader)
for batch in batches:
    x = batch[0] if isinstance(batch, list) else batch
    model(x).mean().backward()
    optimizer.step()
print(__file__.rpartition("/")[2], batches._num_workers, optimizer.param_groups[0]["fused"],
      torch.get_num_threads(), torch.get_float32_matmul_precision(), len(loader), flush=True)
"""
MEASURED = TRAINS.replace("WIDTH", "3").replace("DATA)", "Rows())").replace("(DATA,", "(Rows(),")
OTHER_MODEL = MEASURED.replace("Net(3)", "Net(5)")
TUNED = "1 True 1 high 4"
PLAIN = "0 None 2 highest 2"
BEST: dict[str, Any] = {
    "num_workers": 1, "batch_size": 2, "optimizer_impl": "fused", "num_threads": 1, "precision": "tf32",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"train": MEASURED, "model": OTHER_MODEL}.items():
        Path(f"{name}.py").write_text(text)


def write_result(**best: Any) -> None:
    """A result of a script that trains `MEASURED`."""
    loop = {
        "loaders": ["__main__.Rows 8 4 RandomSampler False"],
        "models": [f"__main__.Net {shapes_hash(nn.Linear(4, 3))}"],
        "device": "cpu",
        "accumulation": 1,
        "optimizers": 1,
    }
    source = SourceRecord(main=None, folder=".")
    script = ScriptRecord(command=("python", "train.py"), loop=loop, source=source)
    baseline = TrainConfig(batch_size=4)
    result = result_of(script, baseline, baseline.replace(**(best or BEST)))
    here = result.hardware.model_copy(update={"cpu": read_cpu({})})
    write_document(result.model_copy(update={"hardware": here}), Path("result.json"))


def launch(*command: str, strict: bool = False) -> Finished:
    """Its end; what it told stands in one line."""
    return run(["launch", *(["--strict"] if strict else []), "result.json", "--", *command], Path.cwd())


def told(done: Finished) -> str:
    """What it told, in one line."""
    return " ".join(done.err.split())


def test_only_what_was_measured_is_changed_and_the_others_are_listed() -> None:
    """Another model below the same launch: loader, its length, optimizer and process stay its own."""
    write_result()
    done = launch("bash", "-c", f"{sys.executable} model.py && {sys.executable} train.py && exit 7")
    assert done.status == 7
    assert done.out.splitlines() == [f"model.py {PLAIN}", f"train.py {TUNED}"]
    assert "1 other process trained as it is, since it was not measured: " in told(done)
    assert "model.py" in told(done)


@pytest.mark.slow
def test_a_training_that_comes_after_another_in_one_process_is_changed() -> None:
    """The settings that were put back for the first are set again at the first step of the second."""
    write_result()
    Path("both.py").write_text(
        "import runpy\nfor name in ('model', 'train'):\n    runpy.run_path(f'{name}.py', run_name='__main__')\n"
    )
    done = launch(sys.executable, "both.py")
    first, second = done.out.splitlines()
    assert first == f"model.py {PLAIN}"
    assert second.split()[2:5] == ["True", "1", "high"]
    assert "other process" not in told(done)


@pytest.mark.parametrize(
    ("before", "steps"),
    [("loader =", "optimizer.step()"), ("batches =", "len(loader)\noptimizer.step()")],
    ids=["at first", "after the length"],
)
def test_a_step_before_any_data_is_read_decides_nothing(before: str, steps: str) -> None:
    """Some scripts take one without gradients, so that a scheduler does not warn."""
    write_result()
    Path("train.py").write_text(MEASURED.replace(before, f"{steps}\n{before}", 1))
    assert launch(sys.executable, "train.py").out.splitlines() == [f"train.py {TUNED}"]


def test_a_training_that_reads_no_loader_is_left_as_it_is() -> None:
    """As from tensors that are cached; it says so."""
    write_result()
    text = MEASURED.replace("DataLoader(Rows(), batch_size=4, shuffle=True)", "[torch.ones(4, 4)] * 12")
    Path("train.py").write_text(text.replace("batches._num_workers", "0"))
    done = launch(sys.executable, "train.py")
    assert done.out.splitlines() == ["train.py 0 None 2 highest 12"]
    assert "1 other process trained as it is, since it was not measured: train.py" in told(done)


def test_a_command_that_keeps_the_recorder_out_is_told_before_it_starts() -> None:
    """It trains as it is; with --strict it does not start."""
    write_result()
    Path("train.py").write_text("print('trained')\n")
    words = ["env", "-i", sys.executable, "train.py"]
    done = launch(*words)
    assert done.status == 0, done.err
    assert done.out == "trained\n"
    assert "keeps autotune out of the script, so that it trains as it is" in told(done)
    refused = launch(*words, strict=True)
    assert (refused.status, refused.out) == (2, "")
    assert "keeps autotune out of the script" in told(refused)


WAITS = "import time\n" + MEASURED.replace("model =", "time.sleep(2)\nmodel =", 1)


@pytest.mark.slow
def test_a_process_that_the_recorder_cannot_enter_is_told_as_soon_as_it_has_torch() -> None:
    """A shell script hides how Python is started; with --strict it is ended, and has not trained."""
    write_result()
    Path("wait.py").write_text(WAITS)
    Path("train.sh").write_text(f"echo begun\nPYTHONPATH=/nowhere {sys.executable} wait.py\n")
    done = launch("bash", "train.sh")
    assert done.out == f"begun\nwait.py {PLAIN}\n"
    assert "wait.py' loads torch where autotune is not, so that it trains as it is" in told(done)
    refused = launch("bash", "train.sh", strict=True)
    assert (refused.status, refused.out) == (2, "begun\n")
    assert "loads torch where autotune is not" in told(refused)


FORKS = """
import mmap, os, time
file = open("libtorch_python.so", "r+b")
memory = mmap.mmap(file.fileno(), 0)  # what the kernel lists of a process that has torch
worker = os.fork()
if worker:
    print(worker, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("came", [True, False])
def test_workers_whose_training_has_ended_are_not_taken_for_others(tmp_path: Path, came: bool) -> None:
    """A signal that ends the training leaves its workers for a moment."""
    (tmp_path / "libtorch_python.so").write_bytes(b"ELF")
    with subprocess.Popen([sys.executable, "-c", FORKS], cwd=tmp_path, stdout=subprocess.PIPE) as training:
        assert training.stdout is not None
        worker = psutil.Process(int(training.stdout.readline()))
        try:
            if came:
                (tmp_path / CAME.format(training.pid)).touch()
            assert trains_unseen(worker, tmp_path, training.pid) != came
            training.kill()
            os.waitid(os.P_PID, training.pid, os.WEXITED | os.WNOWAIT)
            assert not trains_unseen(worker, tmp_path, training.pid)  # not yet waited for
            training.wait()
            assert not trains_unseen(worker, tmp_path, training.pid)
        finally:
            training.kill()
            worker.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("may_change", "persists"), [(False, True), (True, False)])
def test_workers_persist_only_where_the_script_does_not_change_its_data(may_change: bool, persists: bool) -> None:
    """A line says so in the end."""
    write_result(num_workers=1, persistent_workers=True)
    document = json.loads(Path("result.json").read_text())
    document["workload"]["script"]["source"]["may_change_data"] = may_change
    Path("result.json").write_text(json.dumps(document))
    Path("train.py").write_text(MEASURED.replace("print(", "print(batches._persistent_workers, ", 1))
    done = launch(sys.executable, "train.py")
    assert done.out.split()[0] == str(persists)
    line = "workers do not persist: the script may change its data between epochs, which they would not see"
    assert (line in told(done)) is may_change


ASKED = """
import signal, sys, time
import torch
def asked(number, frame):
    print("asked", signal.Signals(number).name, flush=True)
    if number == signal.SIGINT:
        sys.exit(3)
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, asked)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def launched_with(text: str) -> subprocess.Popen[str]:
    """A launched script that has said that it is ready."""
    write_result()
    Path("asked.py").write_text(text)
    command = [sys.executable, "-m", "autotune", "launch", "result.json", "--", sys.executable, "asked.py"]
    launched = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed_signals
    )
    assert launched.stdout is not None
    assert launched.stdout.readline() == "ready\n"
    return launched


def test_signals_reach_the_script_and_its_exit_status_is_told() -> None:
    """As if the script had been started by itself, where no terminal sends them to both."""
    launched = launched_with(ASKED)
    assert launched.stdout is not None
    for name in ("SIGTERM", "SIGUSR1", "SIGINT"):
        launched.send_signal(signal.Signals[name])
        assert launched.stdout.readline() == f"asked {name}\n"
    assert launched.wait(20.0) == 3


LIVES_ON = """
import os, time, torch
parent = os.getppid()
print("ready", flush=True)
while os.getppid() == parent:
    time.sleep(0.05)
open("went on", "w").close()
"""


def test_a_signal_before_the_script_has_started_reaches_it() -> None:
    """It does not end the command alone."""
    with Forwarding() as forwarding:
        os.kill(os.getpid(), signal.SIGTERM)
        with subprocess.Popen(["sleep", "600"]) as script:
            forwarding.to(script.pid)
            assert script.wait() == -signal.SIGTERM


def test_a_training_goes_on_when_launch_is_killed() -> None:
    """The kernel's memory killer may choose the command."""
    launched = launched_with(LIVES_ON)
    launched.kill()
    launched.wait()
    wait_for_file(Path("went on"))


def test_a_script_in_a_group_of_its_own_gets_the_signals_of_the_command() -> None:
    """As after `os.setpgrp()`: a terminal, or `timeout`, sends them to the group of the command alone."""
    launched = launched_with(ASKED.replace("import torch", "import os, torch\nos.setpgrp()"))
    assert launched.stdout is not None
    os.killpg(launched.pid, signal.SIGINT)
    assert launched.stdout.read() == "asked SIGINT\n"
    assert launched.wait(20.0) == 3


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_to_all_processes_of_the_command_reaches_the_script_once(name: str) -> None:
    """As `timeout` and schedulers send it: scripts save at the first one, and leave at once at the second."""
    launched = launched_with(ASKED)
    assert launched.stdout is not None
    for _ in range(8):  # two that come at the same moment count as one
        os.killpg(launched.pid, signal.Signals[name])
        assert launched.stdout.readline() == f"asked {name}\n"
        time.sleep(0.1)
    time.sleep(1.0)  # by then, what was sent to all is forgotten
    launched.send_signal(signal.Signals[name])
    assert launched.stdout.readline() == f"asked {name}\n"
    launched.send_signal(signal.SIGINT)
    assert launched.stdout.read() == "asked SIGINT\n"
    assert launched.wait(20.0) == 3


def test_a_script_that_a_signal_ends_is_told_as_a_shell_tells_it() -> None:
    """128 and the number of the signal."""
    write_result()
    assert launch("bash", "-c", "kill -KILL $$").status == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("python -I t.py", "python -I"),
        ("env -i python t.py", "env -i"),
        ("python -uE t.py", "python -uE"),
        ("python3 -W error -S t.py", "python3 -S"),
        ("python -Wignore::E t.py", None),
        ("python t.py -I", None),
        ("python -m x -I", None),
        ("env -u PYTHONPATH python t.py", "env -u PYTHONPATH"),
        ("env A=1 python -E t.py", "python -E"),
        ("env PYTHONPATH=/x python t.py", None),
        ("bash t.sh -I", None),
    ],
)
def test_the_word_that_keeps_the_recorder_out_is_found(command: str, word: str | None) -> None:
    """Among the interpreter's own options, or env's; not among the script's."""
    assert Script(tuple(command.split())).closed_by == word
