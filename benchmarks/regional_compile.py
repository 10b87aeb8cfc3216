"""What does it save to compile a model's repeated blocks, rather than the whole model?

    python -m benchmarks.regional_compile          # ten minutes

Each side trains in a process of its own with an empty compiler's cache, in random order: eager, compiled as a whole,
compiled by blocks. Seconds to a compiled answer are those of the first steps, in which everything is compiled; the rate
is that of the steps after them. Batches are drawn before. Of the variable-length workload the batches differ in length,
so that the compiler meets new shapes as in training.

All is computed and compiled by one thread, and seconds are those of the processor, the C++ compiler's included: so what
else runs on the machine hardly counts.

Writes benchmarks/output/regional_compile.json. The exit status is 1 when blocks do not halve the median of the seconds
on any of the workloads.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune import TrainConfig, Workload
from autotune.bursts.jobs.feed import Feed
from autotune.torch_settings.repeated_blocks import count_blocks
from autotune.training.tuned import Tuned
from benchmarks import charlm
from benchmarks.fresh import afresh_watched
from benchmarks.guides import asl_transformer
from benchmarks.output import save

MODES = (None, "default", "blocks")
REPEATS = 3
BATCHES = 8
OPENING_STEPS = 4
"""The first compiles, the second with other gradients and lengths may compile again, two more do as all later ones."""
TIMED_SECONDS = 2.0
VOCABULARY = 1000
GOAL = 0.5


def deep_signs() -> Workload:
    """The guide's transformer with the layers of its full size, at the width and on the data of the small one."""
    size = asl_transformer.SIZES["cpu"]._replace(layers=asl_transformer.SIZES["full"].layers)
    model = asl_transformer.SignTransformer(size, dim=192, max_len=384)
    return dataclasses.replace(asl_transformer.build(scale="cpu"), model=model)


def gpt2() -> Workload:
    """GPT-2 of transformers, with six layers and narrower, on tokens at random."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=6, n_embd=192, n_head=6, n_positions=64, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0
    )
    tokens = torch.randint(0, VOCABULARY, (512, 64))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=batch[0], labels=batch[0]).loss
        return found

    return Workload(GPT2LMHeadModel(config), TensorDataset(tokens), loss, batch_size=8)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "charlm, 6 layers": lambda: charlm.build(layers=6),
    "asl_transformer, 6 layers": deep_signs,
    "GPT-2, 6 layers": gpt2,
}


def train(name: str, mode: str | None) -> dict[str, float]:
    """Seconds to a compiled answer and the rate afterwards, in this process, whose compiler's cache is empty."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        torch.set_num_threads(1)
        torch.manual_seed(0)
        workload = WORKLOADS[name]()
        config = TrainConfig(batch_size=workload.baseline_config.batch_size, compile_mode=mode)  # type: ignore[arg-type]
        tuned = Tuned(config)
        batches = [batch for _, batch in itertools.islice(Feed(workload, tuned, seed=0), BATCHES)]
        optimizer = workload.make_optimizer()
        model, _ = tuned.prepare(workload.model, optimizer)
        model.train()

        def step(batch: Any) -> None:
            workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()

        began = processor_seconds()
        for batch in batches[:OPENING_STEPS]:
            step(batch)
        opened = processor_seconds()
        for batch in batches:  # the remaining lengths, so that none is met in the timed part for the first time
            step(batch)
        timed, rounds = processor_seconds(), 0
        while processor_seconds() - timed < TIMED_SECONDS:
            for batch in batches:
                step(batch)
            rounds += 1
        seconds = processor_seconds() - timed
    samples = rounds * BATCHES * config.batch_size
    return {"opening_seconds": opened - began, "samples_per_second": samples / seconds}


def processor_seconds() -> float:
    """That this process has computed so far, and those that it has waited for."""
    return sum(os.times()[:4])


def measure(name: str, repeats: int) -> dict[str, Any]:
    """All modes of one workload, again and again."""
    found: dict[str, list[dict[str, float]]] = {str(mode): [] for mode in MODES}
    for mode in itertools.chain.from_iterable(random.sample(MODES, k=len(MODES)) for _ in range(repeats)):
        run, foreign = afresh_watched(train, name, mode)
        found[str(mode)].append({**run, "foreign_cpu_fraction": foreign})
    medians = {
        mode: {key: statistics.median(run[key] for run in runs) for key in ("opening_seconds", "samples_per_second")}
        for mode, runs in found.items()
    }
    eager, whole, blocks = (medians[str(mode)] for mode in MODES)
    return {
        "workload": name,
        "blocks": count_blocks(WORKLOADS[name]().model),
        "runs": found,
        "medians": medians,
        "seconds_blocks_over_whole": blocks["opening_seconds"] / whole["opening_seconds"],
        "rate_blocks_over_whole": blocks["samples_per_second"] / whole["samples_per_second"],
        "rate_whole_over_eager": whole["samples_per_second"] / eager["samples_per_second"],
        "rate_blocks_over_eager": blocks["samples_per_second"] / eager["samples_per_second"],
    }


def main(repeats: int = REPEATS) -> int:
    """Entry; returns the exit status."""
    found = []
    for name in WORKLOADS:
        case = measure(name, repeats)
        found.append(case)
        written = save("regional_compile", {"goal": GOAL, "cases": found})
        print(
            f"{name}: {case['medians']['default']['opening_seconds']:.1f} s whole, "
            f"{case['medians']['blocks']['opening_seconds']:.1f} s by blocks; over eager "
            f"{case['rate_whole_over_eager']:.2f} × and {case['rate_blocks_over_eager']:.2f} ×",
            flush=True,
        )
        print(f"written to {written}", flush=True)
    return 0 if all(case["seconds_blocks_over_whole"] <= GOAL for case in found) else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
