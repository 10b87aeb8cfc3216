"""Six training loops by hand, as people write them; `benchmarks.while_training` times them.

python -m benchmarks.while_training_loops waits --epochs 20     # trains; prints its seconds and its last loss
python -m benchmarks.while_training_loops waits --seconds 60    # prints after how many epochs that is reached
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Slow(Dataset[Any]):
    """Samples that come from far away: reading one waits."""

    def __init__(self, seconds: float, samples: int = 2048) -> None:
        self._data = torch.randn(samples, 64), torch.randint(0, 8, (samples,))
        self._seconds = seconds

    def __len__(self) -> int:
        return len(self._data[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self._seconds)
        return self._data[0][index], self._data[1][index]


class Augmented(Dataset[Any]):
    """Images that are turned and noised as they are read: reading computes, and draws random numbers."""

    def __init__(self, samples: int = 1024) -> None:
        self._images, self._labels = torch.rand(samples, 3, 48, 48), torch.randint(0, 8, (samples,))

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = torch.rot90(self._images[index], int(torch.randint(0, 4, ())), (1, 2))
        return image + 0.1 * torch.randn_like(image), self._labels[index]


@dataclass(frozen=True)
class Loop:
    """What a loop trains.

    Attributes:
        data: Makes the data set.
        model: Makes the model.
        batch: Samples of one.
        loader: Other arguments of DataLoader.
    """

    data: Callable[[], Dataset[Any]]
    model: Callable[[], nn.Module]
    batch: int
    loader: dict[str, Any] = field(default_factory=dict)


def _rows(samples: int, width: int) -> Dataset[Any]:
    return TensorDataset(torch.randn(samples, width), torch.randint(0, 8, (samples,)))


def _dense(width: int, hidden: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(width, hidden), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(hidden, 8))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 8),
    )  # fmt: skip


LOOPS = {
    "waits": Loop(lambda: Slow(0.001), lambda: _dense(64, 256, 1), 32),
    "augments": Loop(Augmented, _convolutional, 32),
    "computes": Loop(lambda: _rows(4096, 256), lambda: _dense(256, 768, 2), 128),
    "is small": Loop(lambda: _rows(4096, 32), lambda: _dense(32, 32, 12), 32),
    "has workers": Loop(lambda: Slow(0.001), lambda: _dense(64, 256, 1), 32, {"num_workers": 2}),
    "is read fast": Loop(lambda: _rows(8192, 64), lambda: _dense(64, 512, 2), 64),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains a loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("--epochs", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args(arguments)
    loop = LOOPS[options.loop]
    torch.manual_seed(0)
    loader = DataLoader(loop.data(), batch_size=loop.batch, shuffle=True, **loop.loader)
    model = loop.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    began, epochs, loss = time.perf_counter(), 0, torch.zeros(())
    while epochs < options.epochs and time.perf_counter() - began < options.seconds:
        for values, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(values), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        epochs += 1
    print(json.dumps({"epochs": epochs, "seconds": time.perf_counter() - began, "loss": loss.item()}))


if __name__ == "__main__":
    main()
