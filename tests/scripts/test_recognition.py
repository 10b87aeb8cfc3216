"""Loops of all kinds are recognised for what they are, under whatever starts them, or refused in one true sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.bursts.runner import ProcessRunner
from autotune.errors import AutotuneError, WorkloadError
from autotune.knobs.changes import changes_of
from autotune.measuring.records import Outcome, Point
from autotune.scripts import Script, ScriptIsolation
from autotune.scripts.changes import held_knobs
from autotune.scripts.facts import facts_of
from tests.example_scripts import START_SECONDS, alone, played
from tests.scripts.conftest import SeenIn
from tests.scripts.patching import looked_at

COMMON = """
import itertools
import sys
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

def data(count=512):
    return TensorDataset(torch.randn(count, 8), torch.randint(0, 3, (count,)))

def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

def step(model, optimizer, x, y):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
"""
MADE_AGAIN = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
rows = data(64)
for _ in range(2000):
    for x, y in DataLoader(rows, batch_size=32, shuffle=True):
        step(model, optimizer, x, y)
    with torch.no_grad():
        for x, y in DataLoader(rows, batch_size=16):
            model(x)
"""
ZIPPED = """
first, second = (DataLoader(data(), batch_size=16, shuffle=True) for _ in range(2))
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2000):
    for (x, y), (other, _) in zip(first, second):
        assert not torch.equal(x, other)
        step(model, optimizer, x, y)
"""
IN_MEMORY = """
x, y = data().tensors
model = net()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    for _ in range(4):
        chosen = torch.randint(0, len(x), (16,))
        criterion(model(x[chosen]), y[chosen]).backward()
    optimizer.step()
"""
BY_ITSELF = """
x, y = data().tensors
model = net()
for _ in range(20_000):
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    for weight in model.parameters():
        weight.data.add_(weight.grad, alpha=-0.1)
"""
BEGUN_BEFORE = """
from torch.utils.data import Dataset, get_worker_info

class Rows(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.randn(8), 0, float(get_worker_info() is not None)

class Labeled(Rows):
    pass

model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(100):
    labeled = iter(DataLoader(Labeled(), batch_size=8))
    for x, y, by_worker in DataLoader(Rows(), batch_size=8):
        others = next(labeled)
        assert torch.equal(by_worker, others[2]), "the two are read in different processes"
        step(model, optimizer, torch.cat([x, others[0]]), torch.cat([y, others[1]]))
"""
FULL_BATCH = """
x, y = data().tensors
model = net()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)

def closure():
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    return loss

for _ in range(20_000):
    optimizer.step(closure)
"""
CASTING = """
class Casting(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net(x)

model = Casting()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2000):
    for x, y in DataLoader(data(), batch_size=16):
        step(model, optimizer, x, y)
"""
ITERABLE = """
class Rows(IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        rows = zip(*data().tensors)
        yield from rows if worker is None else itertools.islice(rows, worker.id, None, worker.num_workers)

model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2000):
    for x, y in DataLoader(Rows(), batch_size=16, num_workers=int(sys.argv[1])):
        step(model, optimizer, x, y)
"""
COMPILED = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)

@torch.compile(fullgraph=True, backend="eager")
def loss_of(x, y):
    return cross_entropy(model(x), y)

x, y = data().tensors
for _ in range(20_000):
    optimizer.zero_grad()
    loss_of(x, y).backward()
    optimizer.step()
"""
AHEAD = """
import queue, threading
ready = queue.Queue(4)
loader = DataLoader(data(), batch_size=16)

def feed():
    while True:
        for batch in loader:
            ready.put(batch)

threading.Thread(target=feed, name="feeder", daemon=True).start()
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(20_000):
    step(model, optimizer, *ready.get())
"""
PROCESSES = """
import torch.multiprocessing as processes

def train(rank):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2000):
        for x, y in DataLoader(data(), batch_size=16):
            step(model, optimizer, x, y)

if __name__ == "__main__":
    if sys.argv[1] == "fork":
        child = processes.get_context("fork").Process(target=train, args=(0,))
        child.start()
        child.join()
    else:
        processes.spawn(train, nprocs=int(sys.argv[1]))
"""
RANKS = """
import os
import torch.distributed as ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

ranks.init_process_group("gloo")
rows = data()
model = DistributedDataParallel(net())
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(int(sys.argv[1])):
    for x, y in DataLoader(rows, batch_size=16, sampler=DistributedSampler(rows)):
        step(model, optimizer, x, y)
sys.stdout.write(f"rank {ranks.get_rank()} {optimizer.param_groups[0]['fused']}\\n")  # whole: the other prints too
sys.stdout.flush()
ranks.barrier()
ranks.destroy_process_group()
os._exit(0)  # gloo's threads abort one run in twelve on a busy machine, those of a plain script too (torch 2.13)
"""
CATCHING = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(data(), batch_size=16)
while True:
    try:
        for x, y in loader:
            step(model, optimizer, x, y)
    except:
        continue
"""
TYPED = """
import typer
app = typer.Typer()

@app.command()
def main() -> None:
    raise KeyError("no such column")

app()
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def written(folder: Path, text: str, *arguments: str, by: tuple[str, ...] = (sys.executable,)) -> Script:
    """A script of a text, and what starts it."""
    (folder / "train.py").write_text(COMMON + text)
    return Script((*by, str(folder / "train.py"), *arguments))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write into the working directory."""
    monkeypatch.chdir(tmp_path)


def test_a_loader_that_is_made_again_each_epoch_is_one(tmp_path: Path, seen_in: SeenIn) -> None:
    """Two batches an epoch, and an evaluation between."""
    seen = seen_in(written(tmp_path, MADE_AGAIN))
    assert [loader.arguments["batch_size"] for loader in seen.loaders] == [32]
    assert seen.accumulation == 1


@pytest.mark.slow
def test_loaders_that_are_alike_and_zipped_are_two_that_both_feed_training(tmp_path: Path) -> None:
    """Also in a burst, where each has batches of its own."""
    with ScriptIsolation(written(tmp_path, ZIPPED)) as isolation:
        isolation.start(START_SECONDS)
        assert len(isolation.seen.loaders) == 2
        assert len(set(isolation.loop["loaders"])) == 1
        burst = alone(isolation)
    assert burst.outcome is Outcome.OK, burst.reason


@pytest.mark.slow
def test_a_loader_whose_pass_begins_before_the_main_one_is_changed_as_well(tmp_path: Path) -> None:
    """As for domain adaptation: the pass begins before the training loop is reached."""
    with ScriptIsolation(written(tmp_path, BEGUN_BEFORE)) as isolation:
        isolation.start(START_SECONDS)
        assert [key.split()[0] for key in isolation.loop["loaders"]] == ["__main__.Rows", "__main__.Labeled"]
        burst = alone(isolation, num_workers=1)
    assert burst.outcome is Outcome.OK, burst.reason


def test_micro_batches_of_a_loop_without_a_loader_are_counted(tmp_path: Path, seen_in: SeenIn) -> None:
    """By the calls of its model; its loss, which has no weights, is no model."""
    seen = seen_in(written(tmp_path, IN_MEMORY, "20000"))
    assert (seen.model_names, seen.step_samples, seen.accumulation) == (["Sequential"], 16, 4)


@pytest.mark.slow
def test_a_script_that_trains_for_a_moment_begins_again_until_enough_was_measured(tmp_path: Path) -> None:
    """Its forty steps hold no burst of half a second, and the sides still train as many samples in each block.

    They hold a block on any processor: each takes some milliseconds at least.
    """
    resting = IN_MEMORY.replace("    optimizer.step()\n", "    optimizer.step()\n    __import__('time').sleep(0.004)\n")
    with ScriptIsolation(written(tmp_path, resting, "40")) as isolation:
        isolation.start(START_SECONDS)
        bursts = played(isolation, {"num_threads": 1})
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK], [burst.reason for burst in bursts]
    first, second = (burst.measurement for burst in bursts)
    assert first is not None
    assert second is not None
    assert sum(block.samples for block in first.blocks) > 40 * 64
    assert [block.samples for block in first.blocks] == [block.samples for block in second.blocks]


@pytest.mark.slow
def test_a_script_with_fewer_steps_than_a_comparison_needs_is_not_compared(tmp_path: Path) -> None:
    """It is not started again for that, no gradient is left, and later bursts are forked as before."""
    notes: list[str] = []
    with ScriptIsolation(written(tmp_path, IN_MEMORY, "12"), notes.append) as isolation:
        isolation.start(START_SECONDS)
        runner = ProcessRunner(isolation, "cpu")
        baseline = Point(config=runner.check(START_SECONDS).baseline)
        with pytest.raises(AutotuneError, match="have it train longer, by more steps or epochs"):
            runner.agreement(baseline, 20, 60.0)
        assert not [*isolation._protection.shared.glob("gradient*")]
        assert not isolation._spawning
    assert notes == []


@pytest.mark.slow
def test_a_script_that_changes_its_weights_itself_is_counted_by_its_backward_passes(tmp_path: Path) -> None:
    """It has no optimizer of torch; a burst of it trains."""
    with ScriptIsolation(written(tmp_path, BY_ITSELF)) as isolation:
        isolation.start(START_SECONDS)
        assert isolation.seen.updates_itself
        assert isolation.seen.optimizer is None
        burst = alone(isolation, num_threads=1)
    assert burst.outcome is Outcome.OK, burst.reason


@pytest.mark.slow
def test_a_script_whose_optimizer_calls_a_closure_plays_by_its_backward_passes(tmp_path: Path) -> None:
    """Full-batch LBFGS without a loader, as for networks that solve equations: the look ends within the first step."""
    with ScriptIsolation(written(tmp_path, FULL_BATCH)) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation, num_threads=1)
    assert burst.outcome is Outcome.OK, burst.reason


def test_a_precision_that_is_chosen_within_a_model_is_seen(tmp_path: Path, seen_in: SeenIn) -> None:
    """As Fabric and Accelerate choose it."""
    assert seen_in(written(tmp_path, CASTING)).precision == "bfloat16"


@pytest.mark.parametrize(("workers", "told"), [("0", "repeats its samples"), ("2", "another number of workers")])
def test_an_iterable_data_set_keeps_its_workers(workers: str, told: str, tmp_path: Path, seen_in: SeenIn) -> None:
    """Each worker would repeat its samples, or would get others of them."""
    seen = seen_in(written(tmp_path, ITERABLE, workers))
    assert seen.loaders[0].iterable
    assert told in held_knobs(seen, batch_is_free=False)["num_workers"]


@pytest.mark.slow
def test_a_step_that_the_script_compiles_as_a_whole_is_trained(tmp_path: Path) -> None:
    """Its model is called by nobody but compiled code, which is as ever."""
    with ScriptIsolation(written(tmp_path, COMPILED)) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation, num_threads=1)
    assert burst.outcome is Outcome.OK, burst.reason


@pytest.mark.slow
def test_a_script_that_catches_everything_ends_all_the_same(tmp_path: Path) -> None:
    """A bare except does not keep a burst alive."""
    with ScriptIsolation(written(tmp_path, CATCHING)) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
    assert burst.outcome is Outcome.OK, burst.reason


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "1"])
def test_training_in_a_process_that_the_script_starts_is_found(how: str, tmp_path: Path) -> None:
    """Forked, or spawned by torch."""
    with ScriptIsolation(written(tmp_path, PROCESSES, how)) as isolation:
        isolation.start(START_SECONDS)
        assert isolation.seen.processes == 1
        assert [loader.arguments["batch_size"] for loader in isolation.seen.loaders] == [16]
        burst = alone(isolation)
    assert burst.outcome is Outcome.OK, burst.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words", "by", "told"),
    [
        (AHEAD, (), (sys.executable,), "a thread of its own (feeder) draws batches ahead of training"),
        (PROCESSES, ("2",), (sys.executable,), "got 2 that it has started"),
        (TYPED, (), (sys.executable,), "KeyError: 'no such column'"),
    ],
    ids=["ahead", "processes", "another hook"],
)
def test_what_cannot_be_tuned_is_refused_in_one_true_sentence(
    text: str, words: tuple[str, ...], by: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    """It says what was seen, and what to do."""
    with pytest.raises(WorkloadError) as refused:
        looked_at(written(tmp_path, text, *words, by=by).command)
    assert told in str(refused.value)


@pytest.mark.slow
def test_one_rank_under_torchrun_is_tuned_and_two_are_launched(tmp_path: Path) -> None:
    """The wrapped model is seen, a burst is forked before its process group, each rank trains with what was found."""
    notes: list[str] = []
    script = written(tmp_path, RANKS, "50", by=(*TORCHRUN, "1"))
    with ScriptIsolation(script, notes.append) as isolation:
        isolation.start(START_SECONDS)
        assert isolation.seen.model_names == ["DistributedDataParallel"]
        burst = alone(isolation, 120.0, optimizer_impl="fused")
        loop, baseline = isolation.loop, facts_of(isolation.seen, script).baseline
    assert burst.outcome is Outcome.OK, burst.reason
    assert notes == []
    both = written(tmp_path, RANKS, "2", by=(*TORCHRUN, "2"))
    orders = {"role": "launch", "loop": loop, "changes": changes_of(baseline.replace(optimizer_impl="fused"), baseline)}
    done = subprocess.run(both.command, env=both.environment(orders, os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "rank" in line) == ["rank 0 True", "rank 1 True"]


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(net() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)[:, :1].expand(-1, x.shape[1])
        return x

model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2000):
    for x, y in DataLoader(data(), batch_size=16):
        step(model, optimizer, x, y % x.shape[1])
"""
ROLLOUT = """
x, y = data().tensors
actor, critic = net(), net()
optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], 0.1)
for _ in range(20_000):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for row in x[:4].split(1):
            actor(row), critic(row)
    optimizer.zero_grad()
    (cross_entropy(actor(x[:16]), y[:16]) + critic(x[:16]).pow(2).mean()).backward()
    optimizer.step()
"""


def test_what_checkpointing_computes_again_is_no_model_of_its_own(tmp_path: Path, seen_in: SeenIn) -> None:
    """Backward calls each block once more."""
    assert seen_in(written(tmp_path, CHECKPOINTED)).model_names == ["Net"]


def test_a_step_is_as_large_as_what_is_trained_on_not_as_a_rollout(tmp_path: Path, seen_in: SeenIn) -> None:
    """Nor is its precision training's."""
    seen = seen_in(written(tmp_path, ROLLOUT))
    assert (seen.step_samples, seen.precision) == (16, None)
