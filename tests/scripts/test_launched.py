"""A whole training with changes: they come into effect in the script, and what does not is told in the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.recorder.changes import Changes
from autotune.recorder.drawing import READS_DRAW, TORCHS
from autotune.recorder.matching import MOST_SEARCHES
from autotune.results.files import write_document
from autotune.scripts import Script
from autotune.torch_settings import process_settings
from autotune.torch_settings.naming import loader_kind, shapes_hash
from autotune.torch_settings.undo import nothing
from tests.forked import Forked
from tests.scripts.patching import written

SCRIPT = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((4,), float(get_worker_info() is not None))

model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
seen = set()
for batch in DataLoader(Rows(), batch_size=int(sys.argv[1]), shuffle=True):
    seen.add(batch.mean().item())
    model(batch).mean().backward()
    optimizer.step()
with torch.no_grad():
    evaluated = {batch.mean().item() for batch in DataLoader(Rows(), batch_size=16)}
print(json.dumps([sorted(seen), sorted(evaluated), optimizer.param_groups[0]["fused"], torch.get_num_threads()]))
"""
TWO_THREADS = SCRIPT.replace("model =", "torch.set_num_threads(2)\nmodel =", 1)
LAID_OUT = {
    "knobs": {"memory_format": "channels_last"}, "changed": ["memory_format"],
    "model": {"convolve_channels_last": "memory_format"},
}  # fmt: skip
LOOP = {"loaders": ["__main__.Rows 64 16 RandomSampler False"], "models": [], "device": "cpu"}


PERSISTING = {"loader": {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True}}


Launch = Callable[..., tuple[Any, str]]


@pytest.fixture
def launched(forked: Forked, tmp_path: Path) -> Launch:
    """Given changes, the loop that was tuned, an argument and a text: what the script prints, and what it is told."""

    def launch(
        changes: dict[str, Any], loop: dict[str, Any], argument: str = "16", text: str = SCRIPT, *, forks: bool = True
    ) -> tuple[Any, str]:
        done = run(forked if forks else None, tmp_path, text, argument, {"changes": changes, "loop": loop})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return launch


def run(
    forked: Forked | None, folder: Path, text: str, argument: str, orders: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    """A script's whole training, in a fork or in a process of its own."""
    (folder / "train.py").write_text(text)
    script = Script((sys.executable, "train.py", argument))
    environment = script.environment({"role": "launch", **orders}, os.environ)
    if forked is not None:
        return forked.run(script.command[1:], folder, environment)
    return subprocess.run(script.command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("seen", [[], ["__main__.Order"]], ids=["unseen", "seen"])
def test_a_sampler_of_the_scripts_is_drawn_ahead_only_where_the_look_saw_it_unmoved(
    seen: list[str], launched: Launch
) -> None:
    """Its losses might be written to it as it is drawn from."""
    text = """
import json, torch
from torch.utils.data import DataLoader, get_worker_info

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), float(get_worker_info() is not None))

class Order:
    def __len__(self):
        return 64

    def __iter__(self):
        return iter(range(64))

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(Rows(), batch_size=16, sampler=Order()):
    model(batch).mean().backward()
    optimizer.step()
print(json.dumps(batch.mean().item()))
"""
    loop = {**LOOP, "loaders": ["__main__.Rows 64 16 Order False"], "samplers": seen}
    by_workers, words = launched(PERSISTING, loop, text=text)
    assert by_workers == len(seen)
    assert ("num_workers and prefetch_factor stayed as in the script" in words) is (not seen)


@pytest.mark.parametrize("batch_size", [16, 8], ids=["as tuned", "another batch"])
def test_the_training_loader_has_the_workers_and_the_others_have_none(batch_size: int, launched: Launch) -> None:
    """Also where the batch size is not the one that was tuned; optimizer and threads are changed beside it."""
    changes = {
        "loader": {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True},
        "optimizer": {"switch_optimizer": "fused"},
        "process": {"set_threads": 1},
    }
    (trained, evaluated, fused, threads), told = launched(changes, LOOP, str(batch_size))
    assert (trained, evaluated, fused, threads) == ([1.0], [0.0], True, 1)
    assert "autotune:" not in told


REMADE = """
import json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor([float(index), float(os.getpid())])

rows, model = Rows(), nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
orders, workers = [], set()
for epoch in range(3):
    order = list(range(8))[::-1 if epoch == 1 else 1]
    read = []
    for batch in DataLoader(rows if sys.argv[1] == "same" else Rows(), batch_size=4, sampler=order):
        read += batch[:, 0].int().tolist()
        workers |= {int(pid) for pid in batch[:, 1].tolist()}
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    orders.append(read)
print(json.dumps([orders, len(workers)]))
"""


@pytest.mark.parametrize(("data", "workers"), [("same", 1), ("another", 3)])
def test_workers_persist_where_the_script_makes_its_loader_again_each_epoch(
    data: str, workers: int, launched: Launch
) -> None:
    """As they did in the bursts that measured them; each epoch is read in the order of its own loader."""
    loop = {"loaders": ["__main__.Rows 8 4 list False"], "models": [], "device": "cpu", "samplers": ["builtins.list"]}
    found, told = launched(PERSISTING, loop, data, REMADE)
    forth = list(range(8))
    assert found == [[forth, forth[::-1], forth], workers]
    assert ("made again from other parts, so that its workers could not persist" in told) is (data == "another")


DRAWS = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.arange(16.0)[:, None] / 16), batch_size=4, shuffle=True)
found = []
for epoch in range(3):
    for batch, in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append([batch.flatten().tolist(), loss.item()])
    found.append(torch.get_rng_state().tolist())
print(json.dumps(found))
"""


def test_workers_that_persist_change_no_shuffle_and_no_dropout(launched: Launch) -> None:
    """Torch draws their seed once, and without them one in each epoch, from the generator of both."""
    key = "torch.utils.data.dataset.TensorDataset 16 4 RandomSampler False"
    loop = {"loaders": [key], "models": [], "device": "cpu"}
    assert launched(PERSISTING, loop, text=DRAWS) == launched({}, loop, text=DRAWS)


DROPS = """
import json, multiprocessing, sys
from multiprocessing.util import Finalize
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def begin(worker):
    Finalize(None, Path("ended").touch, exitpriority=0)

def train():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.zeros(16, 1)), batch_size=4, shuffle=True, worker_init_fn=begin)
    for epoch in range(2):
        for batch, in loader:
            model(batch).mean().backward()
            optimizer.step()

if __name__ == "__main__":
    if sys.argv[1] == "here":
        train()
    else:
        process = multiprocessing.Process(target=train)
        process.start()
        process.join()
    print(json.dumps(None))
"""


@pytest.mark.parametrize("place", ["here", "in a process of multiprocessing"])
def test_workers_of_a_loader_that_the_script_has_dropped_end_in_order(
    place: str, launched: Launch, tmp_path: Path
) -> None:
    """Killed at the end of the process, they would leave their files in the temporary folder."""
    key = "torch.utils.data.dataset.TensorDataset 16 4 RandomSampler False"
    loop = {"loaders": [key], "models": [], "device": "cpu"}
    _, told = launched(PERSISTING, loop, place, DROPS, forks=False)
    assert told == ""
    assert (tmp_path / "ended").exists()


AUGMENTS = """
import json
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.randn(2)

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(Rows(), batch_size=4)
for epoch in range(2):
    for batch in loader:
        model(batch).mean().backward()
        optimizer.step()
print(json.dumps(None))
"""


def test_augmentation_that_moves_into_workers_is_named_once(launched: Launch) -> None:
    """Its random numbers came from the generator of training."""
    loop = {"loaders": ["__main__.Rows 8 4 SequentialSampler False"], "models": [], "device": "cpu"}
    _, told = launched({"loader": {"num_workers": 2, "prefetch_factor": 2}}, loop, text=AUGMENTS)
    assert told == f"autotune: {READS_DRAW.format(TORCHS)}\n"


COUNTS = """
import json, os
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor([float(index), float(os.getpid())])

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
loader = DataLoader(Rows(), batch_size=4)
workers = set()
for epoch in range(3):
    batches = iter(loader)
    for _ in range(len(loader)):
        batch = next(batches)
        workers |= {int(pid) for pid in batch[:, 1].tolist()}
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
print(json.dumps(len(workers)))
"""


def test_workers_persist_where_the_script_counts_batches_and_never_asks_for_the_end(launched: Launch) -> None:
    """As Lightning does: the epoch is over when all of its batches were drawn."""
    loop = {"loaders": ["__main__.Rows 8 4 SequentialSampler False"], "models": [], "device": "cpu"}
    assert launched(PERSISTING, loop, text=COUNTS) == (1, "")


REFRESHED = """
import json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

class Rows(Dataset):
    epoch = 0
    def __init__(self):
        self.levels = {"a": [0]}
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor([float(self.epoch + self.levels["a"][0]), float(os.getpid())])

rows, model = Rows(), nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
loader = DataLoader(Subset(rows, range(8)), batch_size=4)
read, workers = [], set()
for epoch in range(3):
    exec(sys.argv[1])
    values = set()
    for batch in loader:
        values |= set(batch[:, 0].tolist())
        workers |= {int(pid) for pid in batch[:, 1].tolist()}
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    read += values
print(json.dumps([read, len(workers)]))
"""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("pass", [[0.0, 0.0, 0.0], 1]),
        ("rows.epoch = epoch", [[0.0, 1.0, 2.0], 3]),
        ("rows.levels['a'][0] = epoch", [[0.0, 1.0, 2.0], 3]),
    ],
    ids=["unchanged", "changed", "changed within"],
)
def test_workers_see_what_the_script_changes_in_its_data_set_between_epochs(
    change: str, told: list[Any], launched: Launch
) -> None:
    """As they would without being told to persist; where nothing is changed they do persist."""
    loop = {"loaders": ["torch.utils.data.dataset.Subset 8 4 SequentialSampler False"], "models": [], "device": "cpu"}
    found, words = launched(PERSISTING, loop, change, REFRESHED)
    assert found == told
    is_told = "the data set was changed between epochs, so that workers could not persist" in words
    assert is_told is (change != "pass")


UNFREEZES = """
import json
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for step in range(6):
    model[0].requires_grad_(step >= 3)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
print(json.dumps(optimizer.param_groups[0]["fused"]))
"""


def test_weights_that_are_unfrozen_later_train_on(launched: Launch) -> None:
    """Torch's fused SGD would fail there, hours into the training: the optimizer keeps its own form, and it is told."""
    loop = {"loaders": [], "models": [], "device": "cpu"}
    fused, told = launched({"optimizer": {"switch_optimizer": "fused"}}, loop, text=UNFREEZES)
    assert fused is None
    assert (
        "the optimizer kept its own form (fused SGD with momentum fails if weights without gradients train later"
        in told
    )


def test_what_never_came_into_effect_is_told_in_the_end(launched: Launch) -> None:
    """A loader that draws in another way than the one that was tuned, and a model that is in no class of the script."""
    changes = {"loader": {"num_workers": 1}, **LAID_OUT}
    key = f"x.Y {shapes_hash(nn.Linear(4, 1))}"
    loop = {"loaders": ["__main__.Rows 64 16 SequentialSampler False"], "models": [key], "device": "cpu"}
    (trained, *_), told = launched(changes, loop)
    assert trained == [0.0]
    assert "no loader like the one that was tuned was seen and the model that was tuned was not seen" in told


OTHER_DATA = ["__main__.Columns 64 16 RandomSampler False"]
OTHER_MODEL = ["__main__.Net abc"]


@pytest.mark.parametrize(("loaders", "models"), [(OTHER_DATA, []), (LOOP["loaders"], OTHER_MODEL)])
def test_a_script_that_trains_something_else_is_left_as_it_is(
    loaders: list[str], models: list[str], launched: Launch
) -> None:
    """Loader, optimizer and threads are the script's own, and a line says so in the end."""
    changes = {"loader": {"num_workers": 1}, "optimizer": {"switch_optimizer": "fused"}, "process": {"set_threads": 1}}
    (trained, _, fused, threads), told = launched(
        changes, {"loaders": loaders, "models": models, "device": "cpu"}, text=TWO_THREADS
    )
    assert (trained, fused, threads) == ([0.0], None, 2)
    assert "this process trained as it is" in told


def test_a_loader_is_known_again_with_another_size() -> None:
    """By the classes of its data set and sampler, or of its own batches."""
    assert loader_kind("a.Data 640 32 RandomSampler False") == loader_kind("a.Data 64 8 RandomSampler False")
    assert loader_kind("a.Data 640 Buckets") == ("a.Data", "Buckets")
    assert loader_kind("a.Data 640 32 RandomSampler False") != loader_kind("a.Data 640 32 SequentialSampler False")


SETS_ITSELF_UP = """
import json
import torch
from torch import nn
torch.set_num_threads(2)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
print(json.dumps(torch.get_num_threads()))
"""


def test_what_a_script_tells_torch_before_it_trains_is_overruled_as_in_bursts(launched: Launch) -> None:
    """A seed_everything of the script's own would else take back what was measured."""
    loop = {"loaders": [], "models": [], "device": "cpu"}
    changes = {"knobs": {"num_threads": 1}, "changed": ["num_threads"], "process": {"set_threads": 1}}
    assert launched(changes, loop, text=SETS_ITSELF_UP) == (1, "")
    again = SETS_ITSELF_UP.replace("    optimizer.step()", "    optimizer.step()\n    torch.set_num_threads(2)")
    threads, told = launched(changes, loop, text=again)
    assert threads == 2
    assert "the script keeps setting 2 threads: this training is not the one that was measured" in told


FOLDS = """
import gc, json
import torch
from torch import nn

class Net(nn.Sequential):
    pass

found, gone = [], []
for fold in range(25):
    model = Net(nn.Conv2d(3, 4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(2, 3, 4, 4)).mean().backward()
        optimizer.step()
    found.append("forward" in vars(model[0]))
    del model, optimizer
    gc.collect()
    gone.append(sum(type(one) is Net for one in gc.get_objects()))
print(json.dumps([found, gone]))
"""


def test_each_model_that_a_script_trains_is_changed_and_none_is_kept(launched: Launch) -> None:
    """As in cross validation, and in an ensemble, however many they are."""
    key = f"__main__.Net {shapes_hash(nn.Conv2d(3, 4, 3))}"
    loop = {"loaders": [], "models": [key], "device": "cpu"}
    (found, gone), told = launched(LAID_OUT, loop, text=FOLDS)
    assert (found, gone, told) == ([True] * 25, [0] * 25, "")


RESUMED = """
import json, sys
import torch
from torch import nn

class Net(nn.Sequential):
    pass

torch.manual_seed(0)
model = Net(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
if sys.argv[1] == "resume":
    model.load_state_dict(torch.load("weights.pt"))
    optimizer.load_state_dict(torch.load("state.pt"))
losses = []
for step in range(4):
    optimizer.zero_grad()
    loss = (model(torch.linspace(-1, 1, 4 * 3 * 8 * 8).view(4, 3, 8, 8)) - step).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
if sys.argv[1] != "resume":
    torch.save(model.state_dict(), "weights.pt")
    torch.save(optimizer.state_dict(), "state.pt")
moments = [value for state in optimizer.state.values() for value in state.values()]
kept = all(value.is_contiguous() for value in (*model.state_dict().values(), *moments))
print(json.dumps([losses, kept, "forward" in vars(model[0])]))
"""


def test_a_resumed_training_goes_on_alike_in_another_layout(launched: Launch) -> None:
    """Its weights and moments lie as ever: safetensors would refuse others, at a checkpoint hours later."""
    weights = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(128, 1))
    loop = {"loaders": [], "models": [f"__main__.Net {shapes_hash(weights)}"], "device": "cpu"}
    launched({}, loop, "begin", RESUMED)
    (expected, *plain), _ = launched({}, loop, "resume", RESUMED)
    (losses, *switched), _ = launched(LAID_OUT, loop, "resume", RESUMED)
    assert (plain, switched) == ([True, False], [True, True])
    assert losses == pytest.approx(expected, abs=1e-4)


EXCHANGED = """
import json, os, sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Net(nn.Sequential):
    pass

torch.distributed.init_process_group("gloo", init_method="file://" + os.path.abspath("met"), rank=0, world_size=1)
torch.manual_seed(0)
net = Net(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 1))
model = DistributedDataParallel(net, find_unused_parameters=True, gradient_as_bucket_view=True)
if sys.argv[1] == "itself":
    net.to(memory_format=torch.channels_last)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for step in range(4):
    loss = (model(torch.linspace(-1, 1, 4 * 3 * 8 * 8).view(4, 3, 8, 8)) - step).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
sys.stdout.write(json.dumps([losses, [*{group["fused"] for group in optimizer.param_groups}]]))
sys.stdout.flush()
torch.distributed.destroy_process_group()
os.remove("met") if os.path.exists("met") else None
os._exit(0)  # gloo's threads abort one run in twelve on a busy machine
"""
FUSED = {"optimizer": {"switch_optimizer": "fused"}}


def test_a_model_that_exchanges_gradients_trains_alike(launched: Launch) -> None:
    """Buckets keep the strides of weights from before another layout, and a fused optimizer looks at none."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(128, 1))
    names = ("__main__.Net", "torch.nn.parallel.distributed.DistributedDataParallel")
    loop = {"loaders": [], "models": [f"{name} {shapes_hash(net)}" for name in names], "device": "cpu"}
    (expected, _), _ = launched({}, loop, "none", EXCHANGED)
    for by, changes in (("none", {**LAID_OUT, **FUSED}), ("itself", FUSED)):
        (losses, fused), told = launched(changes, loop, by, EXCHANGED)
        assert fused == [True]
        assert "autotune:" not in told
        assert losses == pytest.approx(expected, abs=1e-4)


TASKS = """
import copy, gc, json
import torch
from torch import nn

class Net(nn.Sequential):
    pass

searches, own = [], gc.get_objects
gc.get_objects = lambda *_: searches.append(1) or own()
model = Net(nn.Linear(4, 1))
for task in range(4):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
searched = len(searches)
other = copy.deepcopy(model)
torch.optim.SGD(other.parameters(), 0.1).step()
own = [other.forward.__func__ is model.forward.__func__, other.forward.__self__ is other]
print(json.dumps([searched, own]))
"""


def test_a_model_is_looked_for_once_though_an_optimizer_is_made_for_each_task(launched: Launch) -> None:
    """As meta-learning makes them; a copy of the model, which brings what was put around it, is not changed twice."""
    loop = {"loaders": [], "models": [f"__main__.Net {shapes_hash(nn.Linear(4, 1))}"], "device": "cpu"}
    changes = {"knobs": {"precision": "bf16"}, "changed": ["precision"], "model": {"autocast_forward": "precision"}}
    (searched, own), told = launched(changes, loop, text=TASKS)
    assert (searched, own, told) == (1, [True, True], "")


COPIED = """
import copy, json, pickle
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.ones(4)

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(Rows(), batch_size=16, shuffle=True)
batches = iter(loader)
model(next(batches)).mean().backward()
optimizer.step()
copies = [copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))]
own = vars(copies[0]).keys() == vars(copies[1]).keys() == vars(DataLoader(Rows())).keys()
print(json.dumps([len(list(copies[0])), own, len(list(loader))]))
"""


def test_a_loader_that_is_being_read_is_copied_and_pickled_as_ever(launched: Launch) -> None:
    """As torch's own, whose iterators are no part of it."""
    copies, told = launched(PERSISTING, LOOP, text=COPIED)
    assert (copies, told) == ([4, True, 4], "")


CLONES = """
import copy, gc, json, os, sys
import torch
from torch import nn

class Net(nn.Sequential):
    pass

searches, own = [], gc.get_objects
gc.get_objects = lambda *_: searches.append(1) or own()
model = Net(nn.Linear(4, 1))
threads = []
for task in range(60):
    clone = copy.deepcopy(model)
    is_others = sys.argv[1] == "others" and task > 0
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))] if is_others else clone.parameters(), 0.1)
    clone(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    threads.append(torch.get_num_threads())
    torch.set_num_threads(3)
print(json.dumps([len(searches), threads[1]]))
"""


@pytest.mark.parametrize(("weights", "most", "threads"), [("all", 0, 1), ("others", MOST_SEARCHES, 3)])
def test_an_optimizer_for_each_iteration_costs_no_search_of_all_objects(
    weights: str, most: int, threads: int, launched: Launch
) -> None:
    """Each steps a clone of the model, as in meta-learning, or weights of no model.

    The process is set up for each that matches: a script may seed everything, and set its threads, in each fold.
    """
    loop = {"loaders": [], "models": [f"__main__.Net {shapes_hash(nn.Linear(4, 1))}"], "device": "cpu"}
    assert launched({"process": {"set_threads": 1}}, loop, weights, CLONES)[0] == [most, threads]


def test_a_process_that_is_set_up_again_adds_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention that is restricted anew would make torch compile again."""
    calls = []
    for name in ("restrict_attention", "set_threads"):
        monkeypatch.setattr(process_settings, name, lambda value, *_: calls.append(value) or nothing)
    changes = Changes({"process": {"restrict_attention": "math", "set_threads": 1}})
    for _ in range(3):
        changes.on_process(torch.device("cpu"))
    assert calls == ["math", 1, 1, 1]


STRANGE = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.ones(4, 4)
    def __len__(self):
        return self.unknown if sys.argv[1] == "length" else 4

class HalfBuilt(nn.Module):
    def __init__(self):
        pass

class Own(torch.optim.Optimizer):
    def step(self):
        pass

half = HalfBuilt()
model = nn.Sequential(nn.Linear(4, 1))
optimizer = Own(model.parameters(), {})
class Weights(list):
    def __iter__(self):
        times.append(1)
        raise RuntimeError(f"read {len(times)} times")

times = []
if sys.argv[1] == "groups":
    optimizer.param_groups = [{}]
elif sys.argv[1] == "weights":
    optimizer.param_groups = [{"params": Weights()}]
steps = 0
for batch in DataLoader(Stream(), batch_size=2):
    model(batch).mean().backward()
    optimizer.step()
    steps += 1
print(json.dumps(steps))
"""


@pytest.mark.parametrize(
    ("how", "changes", "told"),
    [
        ("length", {}, None),
        ("half-built model", {}, None),
        ("groups", {}, "KeyError: 'params'"),
        ("weights", {}, "RuntimeError: read"),
        ("start method", {"loader": {"num_workers": 1, "multiprocessing_context": "other"}}, "ValueError: "),
    ],
)
def test_strange_parts_of_a_script_never_end_its_training(
    how: str, changes: dict[str, Any], told: str | None, launched: Launch
) -> None:
    """If a change fails, training continues, and a warning says why."""
    size = "None" if how == "length" else "4"
    loop = {
        "loaders": [f"__main__.Stream {size} 2 _InfiniteConstantSampler False"],
        "models": [f"{nn.Sequential.__module__}.Sequential {shapes_hash(nn.Linear(4, 1))}"],
        "device": "cpu",
    }
    steps, printed = launched(changes, loop, how, STRANGE)
    assert steps == 2
    assert told in printed if told else printed == ""
    assert printed.count("; training continues") == bool(told)


COUNTED = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Rows(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.ones(4)

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
rows = Rows(60)
order = {"sampler": DistributedSampler(rows, 2, 0)} if sys.argv[1] == "share" else {"shuffle": True}
loader = DataLoader(rows, batch_size=8, drop_last=sys.argv[1] == "drop", **order)
test = DataLoader(rows, batch_size=8)
held_out = DataLoader(Rows(40), batch_size=8, shuffle=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=len(loader))
steps = 0
for batch in loader:
    model(batch).mean().backward()
    optimizer.step()
    schedule.step()
    steps += 1
with torch.no_grad():
    read = sum(1 for _ in held_out)
print(json.dumps([steps, len(loader), len(test), len(held_out) - read]))
"""


@pytest.mark.parametrize(("last", "batches"), [("keep", 15), ("drop", 15), ("32", 2), ("share", 8), ("grown", 15)])
def test_a_loader_has_as_many_batches_as_it_yields_where_their_size_is_another(
    last: str, batches: int, launched: Launch
) -> None:
    """A schedule that is made by its length would else end the training, or never come to its end.

    An evaluation's loader, by whose length a mean loss is divided, has as many as it yields too. The data may have
    grown since they were measured.
    """
    measured = 50 if last == "grown" else 60
    loop = {"loaders": [f"__main__.Rows {measured} 8 RandomSampler False"], "models": [], "device": "cpu"}
    changes = {"loader": {"batch_size": 32 if last == "32" else 4}}
    found, told = launched(changes, loop, last, COUNTED)
    assert found == [batches, batches, 8, 0], told


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ({"torch": torch.__version__, "gpu": None, "ranks": 1}, ""),
        (
            {"torch": "1.0", "gpu": "A GPU", "ranks": 1},
            f"(torch 1.0 there, {torch.__version__} here; GPU A GPU there, none here): expect a different speed",
        ),
        ({"ranks": 4}, "(ranks 4 there, 1 here): expect a different speed"),
    ],
    ids=["the same", "torch and the GPU", "ranks"],
)
def test_what_is_known_only_as_a_script_trains_is_compared_then(
    place: dict[str, Any], told: str, launched: Launch, forked: Forked, tmp_path: Path
) -> None:
    """A word of it at the first step; with `--strict` the script ends there."""
    loop = {"loaders": [], "models": [], "device": "cpu", "place": place}
    threads, words = launched({}, loop, text=SETS_ITSELF_UP)
    assert (threads, told in words, bool(words)) == (2, True, bool(told))
    done = run(forked, tmp_path, SETS_ITSELF_UP, "", {"loop": loop, "changes": {}, "strict": True})
    assert (done.returncode, "leave out --strict" in done.stderr) == ((1, True) if told else (0, False))


APPLIES = """
import autotune; autotune.apply("result.json")
import sys
print("torch" in sys.modules)
import os
os.environ["OMP_NUM_THREADS"] = "1"
import torch
from torch.utils.data import DataLoader
print(torch.get_num_threads(), hasattr(DataLoader.__iter__, "__wrapped__"))
"""


def test_the_one_line_waits_for_torch_which_reads_the_environment_that_the_script_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it imported torch itself, the number of threads below it would come too late."""
    monkeypatch.chdir(tmp_path)
    write_document(written(b"loader = DataLoader(1, num_workers=0)", {"num_workers": 1}), Path("result.json"))
    Path("train.py").write_text(APPLIES)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "train.py"], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "1", "True"], done.stderr


@pytest.mark.parametrize(
    ("changes", "batches", "why"),
    [
        ({"loader": {"batch_size": 32}, "model": {"no_such_setting": "precision"}}, 2, "AttributeError"),
        ({"loader": {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "other"}}, 8, "ValueError"),
    ],
    ids=["model", "loader"],
)
def test_a_loader_has_as_many_batches_as_it_yields_where_a_change_has_failed(
    changes: dict[str, Any], batches: int, why: str, launched: Launch
) -> None:
    """A failed change to the model takes nothing from the loader; one to the loader leaves its length alone, too."""
    key = f"{nn.Linear.__module__}.Linear {shapes_hash(nn.Linear(4, 1))}"
    loop = {"loaders": ["__main__.Rows 60 8 RandomSampler False"], "models": [key], "device": "cpu"}
    found, told = launched(changes, loop, "keep", COUNTED)
    assert found == [batches, batches, 8, 0]
    assert why in told


FAILING = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
process_settings = sys.modules["_autotune.torch_settings.process_settings"]

calls = []
def fails(*_):
    calls.append(1)
    raise RuntimeError(f"call {len(calls)}")
process_settings.checkpoint_blocks = fails

model = nn.Linear(4, 1)
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
own = model.forward
for fold in range(3):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch, in loader:
        model(batch).mean().backward()
        optimizer.step()
print(json.dumps([len(calls), model.forward == own]))
"""
HALF = {"autocast_forward": "precision", "checkpoint_blocks": "precision"}
FAILING_ORDERS = {
    "changes": {"knobs": {"precision": "bf16"}, "model": HALF, "loader": {"num_workers": 0}},
    "loop": {
        "loaders": ["torch.utils.data.dataset.TensorDataset 8 4 SequentialSampler False"],
        "models": [f"{nn.Linear.__module__}.Linear {shapes_hash(nn.Linear(4, 1))}"],
        "device": "cpu",
    },
}


def test_a_failed_change_to_a_model_is_undone_and_never_tried_again(launched: Launch) -> None:
    """Each pass and optimizer would else put what has succeeded around the model once more."""
    found, told = launched(FAILING_ORDERS["changes"], FAILING_ORDERS["loop"], text=FAILING)
    assert found == [1, True]
    assert told.count("; training continues") == 1


@pytest.mark.parametrize(
    "changes",
    [FAILING_ORDERS["changes"], {"loader": {"num_workers": 1, "multiprocessing_context": "other"}}],
    ids=["model", "loader"],
)
def test_the_end_names_what_has_failed_and_nothing_else(changes: dict[str, Any], launched: Launch) -> None:
    """The loader and the model were seen."""
    _, told = launched(changes, FAILING_ORDERS["loop"], text=FAILING)
    last = told.splitlines()[-1]
    assert "could not be applied" in last
    assert "this training is not the one that was measured" in last
    assert "seen" not in last


@pytest.mark.parametrize(
    "changes",
    [FAILING_ORDERS["changes"], {"loader": {"num_workers": 1, "multiprocessing_context": "other"}}],
    ids=["model", "loader"],
)
def test_a_rank_whose_change_has_failed_ends(changes: dict[str, Any], forked: Forked, tmp_path: Path) -> None:
    """The others have made it, and would wait for this one; torchrun then ends them too."""
    text = f"import os; os.environ |= {{'WORLD_SIZE': '2', 'RANK': '1'}}\n{FAILING}"
    done = run(forked, tmp_path, text, "", {**FAILING_ORDERS, "changes": changes})
    assert done.returncode == 1
    assert "could not be changed on rank 1" in done.stderr


PHASES = """
import json
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters())
for batch in range(30):
    noise = nn.Parameter(torch.zeros(2, 4))
    attack = torch.optim.SGD([noise], 0.1)
    model(torch.ones(2, 4) + noise).mean().backward()
    attack.step()
    optimizer.step()
optimizer = torch.optim.AdamW(model[1].parameters())
model(torch.ones(2, 4)).mean().backward()
optimizer.step()
print(json.dumps(optimizer.param_groups[0]["fused"]))
"""


def test_a_second_phase_is_known_by_its_weights_however_many_other_optimizers_came_before(launched: Launch) -> None:
    """Its optimizer steps a part of the model alone, and no search for it is left."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    loop = {"loaders": [], "models": [f"{nn.Sequential.__module__}.Sequential {shapes_hash(model)}"], "device": "cpu"}
    assert launched({"optimizer": {"switch_optimizer": "fused"}}, loop, text=PHASES)[0] is True


APPLIES_TWICE = """
import gc, json, multiprocessing, sys, weakref
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from autotune.recorder import launched

own = nn.Module.train, DistributedDataParallel.__init__
key = "torch.utils.data.dataset.TensorDataset 8 4 SequentialSampler False"
loop = {"loaders": [key], "models": [], "device": "cpu"}
changes = {
    "loader": {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True},
    "ddp": {"bucket": ("bucket_cap_mb", 50)},
}
order = {"path": "notes.jsonl", "result": "r", "cpu": "c", "cpus": 2, "step_samples": None}
launched.begin({"loop": loop, "changes": changes, "left_out": ["left out"], "realised": order})
former = weakref.ref(launched._applied[0])
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
for batch, in loader:
    model(batch).mean().backward()
    optimizer.step()
workers = len(multiprocessing.active_children())
launched.begin({"loop": loop, "changes": {}})
gc.collect()
is_own = (nn.Module.train, DistributedDataParallel.__init__) == own
print(json.dumps([workers, len(multiprocessing.active_children()), is_own, former() is None]))
"""


@pytest.fixture
def applied_twice(forked: Forked, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """A script that trains with one result, and goes on with another."""
    (tmp_path / "train.py").write_text(APPLIES_TWICE)
    return forked.run(["train.py"], tmp_path)


def test_a_result_that_is_replaced_reports_what_it_left_out(applied_twice: subprocess.CompletedProcess[str]) -> None:
    """Once, of the training that it was for."""
    assert applied_twice.stderr == "autotune: left out\n"


def test_a_result_that_is_replaced_leaves_nothing_behind(applied_twice: subprocess.CompletedProcess[str]) -> None:
    """No workers of its loader, no hooks of its notes, no other exchange of gradients."""
    assert json.loads(applied_twice.stdout) == [1, 0, True, True], applied_twice.stderr
