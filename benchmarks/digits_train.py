"""Trains the digits model to its end, with the baseline and with a tuned config, in a plain PyTorch loop.

    python -m benchmarks.digits_train results/<machine>/benchmarks-digits-build.json

Prints the test accuracy and the time of both, and how far the realised speed-up is from the claimed one.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import autotune
from benchmarks import digits
from benchmarks.fresh import afresh

EPOCHS, ROUNDS = 12, 3
PEAK_LEARNING_RATE = 4e-3
GOAL = 0.95


def train(config_json: str, device: str, epochs: int, seed: int) -> tuple[float, float]:
    """Trains from scratch; returns (seconds of the epochs after the first, test accuracy)."""
    tuned = autotune.Tuned(autotune.TrainConfig.model_validate_json(config_json), device=device)
    torch.manual_seed(seed)
    model = digits.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    model, _ = tuned.prepare(model, optimizer)
    loader = tuned.dataloader(digits.Digits(train=True, augment=True), shuffle=True)
    steps = epochs * math.ceil(len(loader) / tuned.accumulation_steps)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=PEAK_LEARNING_RATE, total_steps=steps)
    scaler = tuned.scaler()
    started = time.perf_counter()
    for epoch in range(epochs):
        if epoch == 1:
            started = time.perf_counter()  # the first epoch warms up
        for micro_batches in tuned.accumulate(loader):
            for batch in micro_batches:
                with tuned.autocast():
                    loss = digits.loss(model, batch)
                scaler.scale(loss / len(micro_batches)).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - started, accuracy(model, tuned)


@torch.no_grad()
def accuracy(model: torch.nn.Module, tuned: autotune.Tuned) -> float:
    """Share of the test digits that are read rightly."""
    model.eval()
    test = digits.Digits(train=False, augment=False)
    right = 0
    for batch in DataLoader(test, batch_size=256):
        images, labels = tuned.to_device(batch)
        right += int((model(images).argmax(1) == labels).sum())
    return right / len(test)


def main() -> None:
    """Trains both in turn, several times, and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="a result of benchmarks.digits:build")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    tuned = autotune.load(arguments.result)
    result = tuned.result
    assert result is not None
    seconds: dict[str, list[float]] = {"baseline": [], "tuned": []}
    accuracies: dict[str, list[float]] = {"baseline": [], "tuned": []}
    for seed, (name, config) in itertools.product(
        range(arguments.rounds), (("baseline", result.baseline.config), ("tuned", result.best.config))
    ):
        taken, reached = afresh(train, config.model_dump_json(), str(tuned.device), arguments.epochs, seed)
        seconds[name].append(taken)
        accuracies[name].append(reached)
        print(
            f"{name:8}  seed {seed}: {arguments.epochs} epochs, "
            f"test accuracy {reached:.1%}, {taken:.2f} s after the first epoch"
        )
    ratios = [before / after for before, after in zip(seconds["baseline"], seconds["tuned"], strict=True)]
    claimed = result.speedup.ratio if result.speedup else 1.0
    realised = statistics.geometric_mean(ratios)
    print(f"baseline {statistics.fmean(seconds['baseline']):.2f} s, tuned {statistics.fmean(seconds['tuned']):.2f} s")
    pairs = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"speed-up claimed {claimed:.2f} ×, realised {realised:.2f} × (pairs {pairs})")
    lowest = min(itertools.chain.from_iterable(accuracies.values()))
    print(f"lowest test accuracy {lowest:.1%}, {'above' if lowest > GOAL else 'NOT above'} the goal of {GOAL:.0%}")


if __name__ == "__main__":
    main()
