"""Two ranks: what autotune's runner costs over a plain torchrun loop, and what tuned DDP gains over DDP's defaults.

    python -m benchmarks.ranks                  # ten minutes
    python -m benchmarks.ranks --rounds 6       # a look

The independent loop is written by hand: DistributedDataParallel, a DistributedSampler, an optimizer, started by
``torchrun``; nothing of `autotune.bursts` and `autotune.training` is used. Each side is a job of its own that lives,
and waits at a socket for its turn; in each round every side trains as many samples, in random order, and the ratio of
the rates is a pair. The runner takes its turns in the same rounds, stopped in between as in a duet.

Only on a machine with nothing else to do: where Linux shares out processors by session (autogroup), torchrun's ranks,
each in one of its own, get more of a busy machine than the runner's, which share one.
Writes benchmarks/output/ranks.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from autotune import TrainConfig, Workload
from autotune.bursts.hosts.host import Host
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import Request
from autotune.bursts.runner import ProcessRunner
from autotune.bursts.turns.player import Player
from autotune.measuring import Point
from autotune.workload.target import load_workload
from benchmarks import charlm
from benchmarks.output import save
from benchmarks.ratios import Ratio, paired_ratio

RANKS, ROUNDS, TURN_SECONDS, WARMUP_TURNS = 2, 40, 0.5, 6
START_SECONDS = 120.0
OVERHEAD_GOAL, GAIN_GOAL = 0.03, 1.05
ROUNDED = "gradients in bf16"
"""What nobody gets who has not allowed it: the best of the others is what DDP's defaults are compared with."""
SMALL, LARGE = "benchmarks.charlm:build", "benchmarks.ranks:build_large"


def build_large() -> Workload:
    """The language model with many weights for few tokens: exchanging gradients is notable."""
    model = charlm.CharGPT(layers=2, width=384, context=64)
    return Workload(
        model, charlm.Windows(charlm.read_text(), 64), charlm.loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3), batch_size=4, accumulation_steps=4, name="charlm",
    )  # fmt: skip


def train(port: int, target: str, how: dict[str, Any]) -> None:
    """One rank of a plain job: waits at a socket for a number of samples, trains them, and tells the seconds.

    Args:
        port: Where the first rank is told.
        target: The workload.
        how: Micro-batch, accumulation, ``no_sync``, what gradients are exchanged in, and arguments of
            ``DistributedDataParallel``.
    """
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // RANKS))
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    workload = load_workload(target)
    optimizer = workload.make_optimizer()
    model = DistributedDataParallel(workload.model, **how["ddp"])
    if how["exchange_dtype"] == "bf16":  # torch knows its own hook by its name, and refuses it without NCCL
        model.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))  # noqa: PLW0108
    model.train()  # type: ignore[no-untyped-call]
    sampler: DistributedSampler[Any] = DistributedSampler(workload.dataset, shuffle=True)
    loader = DataLoader(workload.dataset, batch_size=how["batch_size"], sampler=sampler)
    batches = _epochs(loader, sampler)
    wire = socket.create_connection(("127.0.0.1", port)).makefile("rw") if rank == 0 else None
    order = torch.zeros(1, dtype=torch.int64)
    while True:
        if wire is not None:
            order[0] = int(wire.readline() or 0)
        distributed.broadcast(order, 0)
        if not order:
            break
        distributed.barrier()
        began = time.perf_counter()
        for _ in range(int(order)):
            _step(model, optimizer, batches, how, workload)
        seconds = torch.tensor(time.perf_counter() - began)
        distributed.all_reduce(seconds, distributed.ReduceOp.MAX)
        if wire is not None:
            wire.write(f"{float(seconds)}\n")
            wire.flush()
    distributed.destroy_process_group()


def _epochs(loader: DataLoader[Any], sampler: DistributedSampler[Any]) -> Iterator[Any]:
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def _step(
    model: DistributedDataParallel, optimizer: Any, batches: Iterator[Any], how: dict[str, Any], workload: Workload
) -> None:
    """An optimizer step as the documentation of DDP writes it."""
    count = how["accumulation_steps"]
    for number in range(1, count + 1):
        quiet = how["no_sync"] and number < count
        with model.no_sync() if quiet else contextlib.nullcontext():
            loss = workload.loss(model, next(batches)) / count
            loss.backward()
    if workload.clip_grad_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), workload.clip_grad_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


class Plain:
    """A torchrun job that trains when it is told to."""

    def __init__(self, target: str, config: TrainConfig, *, no_sync: bool = True) -> None:
        ddp = {
            "bucket_cap_mb": config.ddp_bucket_cap_mb,
            "gradient_as_bucket_view": config.gradient_as_bucket_view,
            "static_graph": config.static_graph,
        }
        named = config.model_dump(include={"batch_size", "accumulation_steps", "exchange_dtype"})
        how = named | {"ddp": ddp, "no_sync": no_sync}
        self._step_samples = config.effective_batch
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
            self._process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
                 "-m", "benchmarks.ranks", "--train", port, target, json.dumps(how)],
                stderr=subprocess.DEVNULL, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            )  # fmt: skip
            listener.settimeout(START_SECONDS)
            self._wire = listener.accept()[0].makefile("rw")

    def turn(self, samples: int) -> float:
        """Trains so many samples; samples a second."""
        steps = max(1, samples // self._step_samples)
        self._wire.write(f"{steps}\n")
        self._wire.flush()
        return steps * self._step_samples / float(self._wire.readline())

    def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(OSError):
            self._wire.write("0\n")
            self._wire.flush()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


class Tuned:
    """The same in a host of autotune's own, stopped but for its turns."""

    def __init__(self, isolation: Isolation, target: str, config: TrainConfig) -> None:
        point = Point(config=config)
        request = Request(job="host", target=target, device="cpu", point=point)
        self._player = Player(Host(isolation, request, time.monotonic() + START_SECONDS), request)
        self._player.start(time.monotonic() + START_SECONDS)
        self._step_samples = config.effective_batch

    def turn(self, samples: int) -> float:
        """Trains so many samples; samples a second."""
        steps = max(1, samples // self._step_samples)
        self._player.train(self._player.position + steps * self._step_samples, time.monotonic() + START_SECONDS)
        if self._player.ended is not None:
            raise RuntimeError(f"the host ended: {self._player.ended}")
        return 1 / self._player.per_sample(self._player.blocks[-1])

    def close(self) -> None:
        """Ends it."""
        self._player.host.discard()


def alternate(sides: dict[str, Plain | Tuned], rounds: int, seed: int = 0) -> dict[str, list[float]]:
    """The rate of each side in each round, all trained in random order."""
    rng = random.Random(seed)
    names = list(sides)
    rates: dict[str, list[float]] = {name: [] for name in names}
    samples = 1
    for number in range(WARMUP_TURNS + rounds):
        seen: dict[str, float] = {}
        for name in rng.sample(names, len(names)):
            seen[name] = sides[name].turn(samples)
        samples = max(1, round(TURN_SECONDS * statistics.fmean(seen.values())))
        if number >= WARMUP_TURNS:
            for name, rate in seen.items():
                rates[name].append(rate)
    return rates


def overhead(rounds: int) -> dict[str, Any]:
    """What the runner loses against the plain loop under one config, for the usual and the large language model."""
    found = {}
    for target in (SMALL, LARGE):
        config = load_workload(target).baseline_config.replace(ranks=RANKS)
        with Isolation(target) as isolation:
            isolation.start(START_SECONDS)
            sides: dict[str, Plain | Tuned] = {
                "plain": Plain(target, config),
                "runner": Tuned(isolation, target, config),
            }
            try:
                rates = alternate(sides, rounds)
            finally:
                for side in sides.values():
                    side.close()
        ratio = paired_ratio(rates["plain"], rates["runner"])
        found[target] = {
            "runner_over_plain": ratio.model_dump(), "goal": 1 - OVERHEAD_GOAL,
            "met": ratio.ci95.high >= 1 - OVERHEAD_GOAL, "rates": rates,
        }  # fmt: skip
    return found


def gain(rounds: int) -> dict[str, Any]:
    """Plain loops only: DDP as it comes, with ``no_sync`` while accumulating, and as tuned besides."""
    found = {}
    for target in (SMALL, LARGE):
        with Isolation(target) as isolation:
            isolation.start(START_SECONDS)
            facts = ProcessRunner(isolation, "cpu", ranks=RANKS).check(START_SECONDS)
        config = facts.baseline
        variants = {
            "bucket views": config.replace(gradient_as_bucket_view=True),
            "small buckets": config.replace(ddp_bucket_cap_mb=1),
            "large buckets": config.replace(ddp_bucket_cap_mb=100),
            "static graph": config.replace(static_graph=True),
            "all": config.replace(gradient_as_bucket_view=True, ddp_bucket_cap_mb=100),
            ROUNDED: config.replace(exchange_dtype="bf16"),
        }
        sides: dict[str, Plain | Tuned] = {
            "defaults": Plain(target, config, no_sync=False), "no_sync": Plain(target, config),
        }  # fmt: skip
        # Under a static graph the first backward pass must exchange: written by hand, no_sync() fails an assertion.
        sides |= {name: Plain(target, one, no_sync=not one.static_graph) for name, one in variants.items()}
        try:
            rates = alternate(sides, rounds)
        finally:
            for side in sides.values():
                side.close()
        ratios = {name: paired_ratio(rates["defaults"], rates[name]) for name in sides if name != "defaults"}
        best = max(ratios.keys() - {ROUNDED}, key=lambda name: ratios[name].ratio)
        found[target] = {
            "communication_fraction": facts.communication_fraction, "over_defaults": {
                name: ratio.model_dump() for name, ratio in ratios.items()
            }, "best": best, "goal": GAIN_GOAL, "rates": rates,
        }  # fmt: skip
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--train", nargs=3, metavar=("PORT", "TARGET", "HOW"), help="one rank; by torchrun")
    options = parser.parse_args(arguments)
    if options.train:
        port, target, how = options.train
        train(int(port), target, json.loads(how))
        return
    figures = {"rounds": options.rounds, "overhead": overhead(options.rounds), "gain": gain(options.rounds)}
    for target, case in figures["overhead"].items():
        print(f"{target}: runner over plain {Ratio.model_validate(case['runner_over_plain'])}")
    for target, case in figures["gain"].items():
        print(f"{target}: exchanging takes {case['communication_fraction']:.1%}; over DDP's defaults:")
        for name, ratio in case["over_defaults"].items():
            print(f"  {name}: {Ratio.model_validate(ratio)}")
    save("ranks", figures)


if __name__ == "__main__":
    main()
