"""The observer of a real training sees what a look sees, and changes nothing that the training computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.scripts.facts import baseline_of, loop_of
from autotune.scripts.seen import SeenScript
from autotune.timing.loop import UNKNOWN_READING
from tests.example_scripts import EXAMPLES, script
from tests.forked import Forked
from tests.scripts.conftest import SeenIn

MEASURED_OTHERWISE = {"sample_seconds", "sample_wait_fraction", "small_operators_fraction"}
SEEN_BY_A_LOOK = {"classes", "score_bytes"}
"""Functions of torch are replaced in a look alone."""
OF_THE_PROCESS = {"seconds_to_loop", "first_argv", "fork_unsafe_reason"}
"""The last because a look leaves out Lightning's logger, which runs a thread."""

OBSERVED = """
import json, os, runpy, sys, warnings
import torch
from torch.utils.data import DataLoader
from autotune.knobs.registry import READS
from autotune.recorder.observer import Observer

PLACES = (
    (DataLoader, "__iter__"), (DataLoader, "__init__"), (torch.optim.Optimizer, "__init__"), (torch.Tensor, "backward"),
    (torch.autocast, "__enter__"), (torch.nn.functional, "scaled_dot_product_attention"),
    (torch.distributed, "init_process_group"),
)
before, report = [vars(owner)[name] for owner, name in PLACES], {"seen": [], "failures": []}

def write():
    report["changed"] = [name for (owner, name), was in zip(PLACES, before) if vars(owner)[name] is not was]
    with open("report.json", "w") as file:
        json.dump(report, file)

def enough(seen):
    report["seen"].append(seen)
    if how == "ends":
        write()
        os._exit(0)
    if how == "fails":
        raise KeyError("enough")

warnings.filterwarnings("error", module=r"autotune\\.")
observer = Observer(enough, lambda error: report["failures"].append(repr(error)), reads=READS)
how, sys.argv = sys.argv[1], sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
write()
"""
TRAINING = """
import gc, hashlib, random, sys, warnings, weakref
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("error", UserWarning, append=True)  # behind those that torch ignores

class Noisy(Dataset):
    reads = 0

    def __len__(self):
        return 192

    def __getitem__(self, index):
        Noisy.reads += 1
        return torch.randn(16) + random.random(), index % 3

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3)), nn.Linear(32, 3)

    def forward(self, x):
        x = self.body(x)[None]
        return self.head(nn.functional.scaled_dot_product_attention(x, x, x)[0])

random.seed(1)
torch.manual_seed(1)
model = Net()
how = sys.argv[1]
if how == "compiled by method":
    model.compile(backend="eager")
elif how == "compiled":
    model = torch.compile(model, backend="eager")
optimizer = torch.optim.Adam(model.parameters(), 0.01)
loader, others = DataLoader(Noisy(), batch_size=16, shuffle=True), DataLoader(Noisy(), batch_size=64)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=epoch == 1):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
    with torch.no_grad():
        print([model(x).sum().item().hex() for x, _ in others])
for weight in model.parameters():
    print(hashlib.sha256(weight.detach().numpy().tobytes()).hexdigest())
print(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(), random.random(), Noisy.reads)
print(torch.is_grad_enabled(), torch.get_num_threads(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype())
if how == "eager":
    kept = weakref.ref(model), weakref.ref(loader), weakref.ref(optimizer)
    del model, loader, optimizer
    gc.collect()
    print("kept", [one() for one in kept])
else:
    print("graphs", torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where scripts run, with the one that observes."""
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "observed.py").write_text(OBSERVED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def printed(forked: Forked, folder: Path) -> Callable[..., str]:
    """What a script prints; its words are given."""

    def run(*words: str) -> str:
        done = forked.run(words, folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def report_in(folder: Path) -> dict[str, Any]:
    """What the observer reported of the script that it has observed."""
    return json.loads((folder / "report.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["eager", "compiled", "compiled by method"])
def test_a_training_is_the_same_to_the_last_bit_with_the_observer(
    how: str, folder: Path, printed: Callable[..., str]
) -> None:
    """Losses, weights, random numbers, reads, torch's settings, compiled graphs, what is freed; and nothing warns."""
    plain = printed("train.py", how)
    assert printed("observed.py", "observes", "train.py", how) == plain
    report = report_in(folder)
    assert (len(report["seen"]), report["failures"]) == (1, [])
    assert report["changed"] == []


def test_a_failure_of_the_observer_does_not_reach_the_script(folder: Path, printed: Callable[..., str]) -> None:
    """It is reported once, and training goes on as if there had been no observer."""
    plain = printed("train.py", "eager")
    assert printed("observed.py", "fails", "train.py", "eager") == plain
    assert report_in(folder)["failures"] == ["KeyError('enough')"]


@pytest.mark.parametrize(
    "name", ["plain", *(pytest.param(one, marks=pytest.mark.slow) for one in ("accumulating", "lightning_fit"))]
)
def test_a_real_training_shows_what_a_look_shows(
    name: str, folder: Path, printed: Callable[..., str], seen_in: SeenIn
) -> None:
    """All of it, but for what a look measures by itself; reading is timed as the script draws."""
    printed("observed.py", "ends", str(EXAMPLES / f"{name}.py"))
    seen = SeenScript.of(report_in(folder)["seen"][0], processes=1)
    looked = seen_in(script(name))
    assert (loop_of(seen), baseline_of(seen)) == (loop_of(looked), baseline_of(looked))
    assert 0 < seen.facts["sample_seconds"] != UNKNOWN_READING[0]
    shown, known = ({**vars(one), **one.facts, "facts": None} for one in (seen, looked))
    differing = {name for name in shown if shown[name] != known[name]}
    assert differing <= MEASURED_OTHERWISE | SEEN_BY_A_LOOK | OF_THE_PROCESS
