"""`autotune train` with a real script: one run, the same learning, whatever happens to the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.results.result import read_result
from tests.processes import ROOT, Finished, run, wait_for_file

pytestmark = pytest.mark.slow
SCRIPT = """
import json, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 512
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((16,), index / 512), index % 4

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(Slow(), batch_size=16, shuffle=True)
losses = []
open("began", "w").close()
try:
    for epoch in range(int(sys.argv[1])):
        for values, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(values), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        open(f"epoch-{epoch}", "w").close()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(5)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
json.dump(losses, open("losses.json", "w"))
"""


def script(folder: Path) -> Path:
    """A folder with the script."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    return folder


def training(folder: Path, epochs: int) -> list[str]:
    """The command."""
    return [
        sys.executable,
        "-m",
        "autotune",
        "train",
        "--out",
        "result.json",
        "--",
        sys.executable,
        "train.py",
        str(epochs),
    ]


def started(command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """A process, in a session of its own, that is given time to train."""
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_for_file(folder / "epoch-0", 240.0)
    return process


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """A training of some epochs, tuned; and the same untuned in the folder ``untuned`` of it."""
    folder = script(tmp_path_factory.mktemp("trained"))
    untuned = script(folder / "untuned")
    subprocess.run([sys.executable, "train.py", "12"], cwd=untuned, check=True)
    return folder, run(["train", "--out", "result.json", "--", sys.executable, "train.py", "12"], folder)


def test_the_same_is_learned_in_one_run(trained: tuple[Path, Finished]) -> None:
    """Each loss but for rounding, and a checkpoint of the same keys, flags and strides."""
    import torch

    folder, done = trained
    assert (done.status, done.left) == (0, ()), done.err
    tuned, untuned = (json.loads((one / "losses.json").read_text()) for one in (folder, folder / "untuned"))
    assert tuned == pytest.approx(untuned, abs=1e-3)
    kept, plain = (torch.load(one / "checkpoint.pt") for one in (folder, folder / "untuned"))
    assert kept["optimizer"]["param_groups"] == plain["optimizer"]["param_groups"]
    for own, other in zip(kept["optimizer"]["state"].values(), plain["optimizer"]["state"].values(), strict=True):
        assert {name: (value.dtype, value.stride()) for name, value in own.items()} == {
            name: (value.dtype, value.stride()) for name, value in other.items()
        }


def test_the_result_starts_the_next_training(trained: tuple[Path, Finished]) -> None:
    """As one of `autotune run` does."""
    folder, _ = trained
    result = read_result(folder / "result.json")
    assert result.workload.script is not None
    assert len(result.workload.script.loop["loaders"]) == 1
    assert result.baseline.config.num_workers == 0
    launched = run(["launch", "result.json", "--", sys.executable, "train.py", "1"], folder)
    assert launched.status == 0, launched.err


def test_training_goes_on_when_the_command_is_killed(tmp_path: Path) -> None:
    """To its end."""
    process = started(training(script(tmp_path), 6), tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for_file(tmp_path / "losses.json", 240.0)
    assert len(json.loads((tmp_path / "losses.json").read_text())) == 6 * 32


def test_ctrl_c_ends_the_script_as_untuned(tmp_path: Path) -> None:
    """The script hears it, and its exit status is the command's; nothing is left."""
    process = started(training(script(tmp_path), 1000), tmp_path)
    process.send_signal(signal.SIGINT)  # no terminal sends it to the script as well, so that the command does
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (5, "interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
