"""What is it worth to compile the loss with the model? A small language model over a large vocabulary.

    python -m benchmarks.compiled_loss            # six minutes

The model's last layer gives a score for each of 16,384 words, of which the loss takes a softmax, outside the model's
own call. Sides: eager, the model compiled, the loss compiled with the model in it; they take turns in
`benchmarks.alternate`, in fresh processes each round. Beside them stands what share of the loss goes past the model, as
autotune's look at the workload finds it.

Writes benchmarks/output/compiled_loss.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from autotune import TrainConfig, Workload
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.runner import ProcessRunner
from autotune.results.result import Side
from benchmarks.alternate import realise
from benchmarks.output import save
from benchmarks.ratios import paired_ratio

TARGET = "benchmarks.compiled_loss:build"
WORDS, LENGTH, WIDTH, BLOCKS, HEADS, BATCH = 16_384, 64, 128, 2, 4, 8
SIDES = {"eager": None, "model": "default", "loss": "loss"}
DEADLINE_SECONDS = 120.0


class Scores(nn.Module):
    """A transformer that gives a score for each word at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False)
        self.scores = nn.Linear(WIDTH, WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of shape ``(batch, LENGTH, WORDS)``."""
        return self.scores(self.blocks(self.words(words), mask=self.mask))  # type: ignore[no-any-return]


def loss(model: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of the next word at each place."""
    (words,) = batch
    scores = model(words[:, :-1])
    return cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())


def build() -> Workload:
    """Random words: their order is nothing to the speed."""
    words = torch.randint(0, WORDS, (4_096, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    return Workload(Scores(), TensorDataset(words), loss, batch_size=BATCH, name="language model, large vocabulary")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="of fresh processes")
    parser.add_argument("--seconds", type=float, default=32.0, help="of training, of each side in all")
    options = parser.parse_args(arguments)
    with Isolation(TARGET) as isolation:
        isolation.start(DEADLINE_SECONDS)
        outside = ProcessRunner(isolation, "cpu").check(DEADLINE_SECONDS).outside_fraction
    sides = {
        name: Side(config=TrainConfig(batch_size=BATCH, compile_mode=mode), parameters={}, measurement=None)  # type: ignore[arg-type]
        for name, mode in SIDES.items()
    }
    runs = realise(TARGET, sides, "cpu", options.seconds, options.rounds)
    rates = {name: [run.samples_per_second for run in found] for name, found in runs.items()}
    ratios: dict[str, Any] = {
        f"{one}_over_{other}": paired_ratio(rates[other], rates[one]).model_dump(mode="json")
        for one, other in (("model", "eager"), ("loss", "eager"), ("loss", "model"))
    }
    save("compiled_loss", {"outside_fraction": outside, "rates": rates, **ratios})
    for name, found in ratios.items():
        print(f"{name}: {found['ratio']:.2f} ({found['ci95'][0]:.2f} to {found['ci95'][1]:.2f})")
    print(f"past the model: {outside:.0%} of the loss, forward")
    return 0


if __name__ == "__main__":
    sys.exit(main())
