"""A tuned config under torchrun: each rank its part of the data, one set of weights, as one process would train it."""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, TensorDataset

from autotune import TrainConfig, Tuned
from autotune.errors import ConfigError
from autotune.torch_settings.undo import nothing
from autotune.training import load_result
from autotune.training.ranks import Rank, SharedSampler, place_in_data, shared_out, this_rank
from tests.processes import ROOT
from tests.training.test_load import write

TRAIN = """
import json, os, sys, warnings
import torch
import autotune
from autotune import TrainConfig, Tuned
knobs, file = json.loads(sys.argv[1]), sys.argv[2]
meet, met = torch.distributed.init_process_group, {}
def seen(*args, **kwargs):
    met.update({name: value for name, value in os.environ.items() if name.startswith("NCCL_")})
    meet(*args, **kwargs)
torch.distributed.init_process_group = seen
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    tuned = autotune.load(knobs["load"]) if "load" in knobs else Tuned(TrainConfig(**knobs["config"]))
torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.arange(float(knobs["samples"]))[:, None] / 10)
model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = tuned.dataloader(data, shuffle=knobs.get("shuffle", False))
whole, types = model, set()
model[0].register_forward_pre_hook(lambda part, _: types.add(str(part.weight.dtype)))
model, optimizer = tuned.prepare(model, optimizer)
drawn = []
batches = iter(loader) if knobs.get("unsized") else loader
for epoch in range(knobs.get("epochs", 1)):
    for group in tuned.accumulate(batches):
        for (batch,) in group:
            drawn += (batch[:, 0] * 10).round().int().tolist()
            with tuned.autocast():
                loss = model(batch).float().pow(2).mean() / len(group)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
told = json.dumps(
    {
        "weights": [(weight.full_tensor() if hasattr(weight, "full_tensor") else weight).flatten().tolist()
                    for weight in whole.parameters()], "drawn": drawn,
        "kind": type(model).__name__, "threads": torch.get_num_threads(), "names": list(whole.state_dict()),
        "met": met, "types": sorted(types), "warnings": [str(one.message) for one in caught],
    }
)
with open(f"{file}.{rank}", "w") as target:
    target.write(told)
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # gloo's threads abort one run in twelve on a busy machine, those of a plain script too (torch 2.13)
"""


def train(folder: Path, name: str, ranks: int = 1, **knobs: Any) -> list[dict[str, Any]]:
    """What each rank of a training has to tell."""
    told = start(folder, TRAIN, ranks, json.dumps({"samples": 64, **knobs}), str(folder / name))
    return [json.loads(one) for one in told]


@functools.cache
def alone_with(*, unsized: bool = False, **config: Any) -> dict[str, Any]:
    """What one process has to tell that trains with a config."""
    with tempfile.TemporaryDirectory() as folder:
        (told,) = train(Path(folder), "alone", config=config, unsized=unsized)
    return told


def start(folder: Path, source: str, ranks: int, *arguments: str) -> list[str]:
    """What each rank of a script writes to the file that its last argument names."""
    script = folder / "train.py"
    script.write_text(source)
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    subprocess.run(
        [sys.executable, *start, str(script), *arguments],
        check=True, timeout=120, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    return [Path(f"{arguments[-1]}.{rank}").read_text() for rank in range(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "alone"),
    [
        ({"batch_size": 8, "accumulation_steps": 2}, 2),
        ({"batch_size": 8, "accumulation_steps": 2, "static_graph": True, "gradient_as_bucket_view": True}, 2),
        ({"batch_size": 4, "accumulation_steps": 3}, 3),
        ({"batch_size": 8, "accumulation_steps": 2, "strategy": "fsdp"}, 2),
        ({"batch_size": 8, "strategy": "fsdp", "reshard_after_forward": False}, 2),
    ],
    ids=["ddp", "static", "incomplete", "split", "split and kept"],
)
def test_ranks_train_as_one_process_does(tmp_path: Path, more: dict[str, Any], alone: int) -> None:
    """Equal weights on both, and equal to those of a process with their batches together, also where data end early."""
    unsized = alone == 3  # nobody knows that the last group will be incomplete
    first, second = train(tmp_path, "together", 2, config={"ranks": 2, **more}, unsized=unsized)
    config = {"batch_size": 2 * more["batch_size"], "accumulation_steps": more.get("accumulation_steps", 1)}
    single = alone_with(**config, unsized=unsized)
    assert first["kind"] == ("FSDPSequential" if "strategy" in more else "DistributedDataParallel")
    assert first["weights"] == second["weights"]
    assert first["names"] == single["names"]
    assert sorted(first["drawn"] + second["drawn"]) == sorted(single["drawn"]) == list(range(64))
    if not unsized:  # there one process takes len(group), three, for the sum of the two that were left
        for ours, theirs in zip(first["weights"], single["weights"], strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "types"),
    [
        ({"exchange_dtype": "bf16"}, ["torch.float32"]),
        ({"exchange_dtype": "bf16", "strategy": "fsdp"}, ["torch.float32"]),
        ({"fsdp_param_dtype": "bf16", "strategy": "fsdp", "precision": "bf16"}, ["torch.bfloat16"]),
    ],
    ids=["gradients", "parts of gradients", "weights"],
)
def test_what_is_exchanged_in_bf16_is_rounded_and_no_more(tmp_path: Path, more: Any, types: list[str]) -> None:
    """Both ranks end with one set of weights, a rounding away from what a process alone trains exactly."""
    first, second = train(tmp_path, "together", 2, config={"ranks": 2, "batch_size": 8, **more})
    single = alone_with(batch_size=16)
    assert first["weights"] == second["weights"]
    assert first["types"] == types
    ours, theirs = (torch.cat([torch.tensor(weight) for weight in one["weights"]]) for one in (first, single))
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02)
    assert (ours - theirs).abs().max() > 1e-6


EXCHANGE = """
import os, sys, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from autotune.training.ranks import Exchange, join
join(torch.device("cpu"))
rank, exchange = distributed.get_rank(), Exchange()
parts = [nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(4)) for _ in range(2)]
for part in parts:
    for weight in part.parameters():
        nn.init.ones_(weight)
class Model(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part
    def forward(self, x, used):
        return sum(self.part[one](x) for one in used)
models = [DistributedDataParallel(Model(part), find_unused_parameters=True) for part in parts]
for model in models:
    exchange.add(model)
for batch in exchange.only_last([torch.ones(1, 1) * (1 + rank)], 2):  # the data end within the step
    for number, model in enumerate(models):
        model(batch * (1 + number), [0, 1 + rank]).sum().backward()
grads = [None if weight.grad is None else weight.grad.item() for part in parts for weight in part.parameters()]
with open(f"{sys.argv[1]}.{rank}", "w") as target:
    target.write(repr(grads))
distributed.barrier()
distributed.destroy_process_group()
os._exit(0)
"""


@pytest.mark.slow
def test_ranks_that_use_other_weights_exchange_all_gradients(tmp_path: Path) -> None:
    """A weight that one rank has not used counts as zero there; one that none has used gets no gradient."""
    for told in start(tmp_path, EXCHANGE, 2, str(tmp_path / "grads")):
        assert told == "[1.5, 0.5, 1.0, None, 3.0, 1.0, 2.0, None]"


@pytest.mark.slow
def test_what_nccl_reads_is_there_when_the_ranks_meet(tmp_path: Path) -> None:
    """It reads its variables once: later ones would come to nothing."""
    for rank in train(tmp_path, "told", 2, config={"ranks": 2, "nccl_max_ctas": 4, "nccl_buffsize": 2**23}):
        assert rank["met"].items() >= {"NCCL_MAX_CTAS": "4", "NCCL_BUFFSIZE": str(2**23)}.items()


@pytest.mark.slow
def test_each_epoch_is_shuffled_again_and_another_number_of_ranks_is_told(tmp_path: Path) -> None:
    """Without a call of set_epoch(); and a result of one process says that two train other steps."""
    path, _ = write(tmp_path)
    ranks = train(tmp_path, "loaded", 2, load=str(path), shuffle=True, epochs=2)
    told = " ".join(ranks[0]["warnings"])
    assert "ranks 1 there, 2 here, so that an optimizer step takes 128 samples instead of 64" in told
    drawn = [one["drawn"] for one in ranks]
    assert sorted(drawn[0][:32] + drawn[1][:32]) == list(range(64))
    assert drawn[0][:32] != drawn[0][32:]


def test_the_same_number_of_ranks_is_not_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun tells it, before anything is initialised; another number is, with what it makes of a step."""
    path, result = write(tmp_path)
    best = result.best.model_copy(update={"config": result.best.config.replace(ranks=4)})
    told = load_result._ranks_differences(result.model_copy(update={"best": best}))
    assert told == ["ranks 4 there, 1 here, so that an optimizer step takes 64 samples instead of 256"]
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert this_rank() == Rank(1, 4, 1, 4)
    assert load_result._ranks_differences(result.model_copy(update={"best": best})) == []
    assert path.exists()


def test_what_another_launcher_left_in_the_environment_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single process under Slurm, say, has RANK and WORLD_SIZE of its own."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    assert this_rank().alone


@pytest.mark.parametrize("samples", [12, 13, 1])
def test_samples_are_shared_out_as_torch_does_it(samples: int) -> None:
    """Those of torch's own DistributedSampler, the first drawn again where they cannot be shared out evenly."""
    for number in range(4):
        ours = SharedSampler(range(samples), Rank(number, 4))
        theirs: list[Any] = list(DistributedSampler(range(samples), 4, number, shuffle=False))  # type: ignore[arg-type]
        assert list(ours) == theirs
        assert len(ours) == len(theirs)


def test_a_place_in_the_stream_of_all_ranks_is_found_in_the_data() -> None:
    """Epochs of ten are padded to twelve for four ranks; the second begins at 12, which is sample 10 of the data's."""
    rank = Rank(0, 4)
    assert [place_in_data(place, 10, rank) for place in (0, 8, 12, 20)] == [0, 8, 10, 18]
    assert place_in_data(17, 10, Rank()) == 17


def test_a_sampler_of_ones_own_is_shared_out_in_one_order() -> None:
    """Two ranks that draw at random draw the same, and each takes its half."""
    data = TensorDataset(torch.arange(10))
    drawn = []
    for number in range(2):
        torch.manual_seed(number)
        settings = shared_out(data, {"sampler": RandomSampler(data), "shuffle": False}, Rank(number, 2))
        assert "shuffle" not in settings
        drawn += list(settings["sampler"])
    assert sorted(drawn) == list(range(10))


class Rotated(list[int]):
    """A sampler whose order depends on the epoch that it is told."""

    def set_epoch(self, epoch: int) -> None:
        """Each epoch begins one sample later."""
        self[:] = [*range(epoch, 4), *range(epoch)]


@pytest.mark.parametrize(("sampler", "second"), [(Rotated(range(4)), [1, 3]), (range(4), [0, 2])], ids=["told", "not"])
def test_a_sampler_of_ones_own_is_told_the_epoch(sampler: Any, second: list[int]) -> None:
    """One that knows of no epochs stays as it is."""
    shared = shared_out(TensorDataset(torch.arange(4)), {"sampler": sampler}, Rank(0, 2))["sampler"]
    assert list(shared) == [0, 2]
    shared.set_epoch(1)
    assert list(shared) == second


def test_batches_that_cannot_be_shared_out_are_refused() -> None:
    """Each rank would train all of them; what is shared out already is left alone."""
    data = TensorDataset(torch.arange(10))
    with pytest.raises(ConfigError, match="DistributedSampler"):
        shared_out(data, {"batch_sampler": BatchSampler(SequentialSampler(data), 2, drop_last=False)}, Rank(0, 2))
    own: DistributedSampler[Any] = DistributedSampler(data, 2, 0)
    for settings in ({"sampler": own}, {"batch_sampler": BatchSampler(own, 2, drop_last=False)}):
        assert shared_out(data, settings, Rank(0, 2)) == settings


def test_a_sampler_without_a_length_is_refused() -> None:
    """Nobody knows how many draws each rank gets."""
    with pytest.raises(ConfigError, match=r"with a length.*, got count; give it a __len__\(\), or pass .*Distributed"):
        shared_out(TensorDataset(torch.arange(4)), {"sampler": itertools.count()}, Rank(0, 2))


def test_ranks_that_meet_after_loading_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torchrun, `load` cannot know of them; the ranks and their GPUs are pretended."""
    tuned = Tuned(TrainConfig())
    tuned.device = torch.device("cuda")
    joined: list[torch.device] = []
    for module in ("ranks", "tuned"):
        monkeypatch.setattr(f"autotune.training.{module}.this_rank", lambda: Rank(1, 2, 1, 2))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(Tuned, "apply_process_settings", nothing)
    monkeypatch.setattr(Tuned, "apply", nothing)
    monkeypatch.setattr("autotune.training.tuned.join", joined.append)
    monkeypatch.setattr("autotune.training.tuned.on_all_ranks", lambda model, *_: model)
    tuned.prepare(torch.nn.Linear(1, 1))
    assert joined == [tuned.device] == [torch.device("cuda", 1)]


def test_a_single_process_is_left_as_it_is() -> None:
    """The model that comes back is the one that was given, and its loader has the usual sampler."""
    tuned = Tuned(TrainConfig(ranks=2))
    model = torch.nn.Linear(1, 1)
    assert tuned.prepare(model)[0] is model
    assert isinstance(tuned.dataloader(TensorDataset(torch.arange(4)), shuffle=True).sampler, RandomSampler)
