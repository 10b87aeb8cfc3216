"""A residual CNN that guesses by which right angle a crop of a photograph is turned (Gidaris et al. 2018)."""

from __future__ import annotations

import torch
from sklearn.datasets import load_sample_images
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import Workload


class Turned(Dataset[tuple[torch.Tensor, int]]):
    """``(3, side, side)`` crops of the two photographs that scikit-learn ships, turned by 0 to 3 right angles.

    Args:
        count: Crops of an epoch; which ones is fixed, the angle is drawn on each access.
        side: Pixels.
    """

    def __init__(self, count: int, side: int) -> None:
        self.side = side
        self.photographs = [
            torch.tensor(pixels).permute(2, 0, 1).contiguous() for pixels in load_sample_images().images
        ]
        _, height, width = self.photographs[0].shape
        generator = torch.Generator().manual_seed(0)
        tops = torch.randint(height - side, (count,), generator=generator)
        lefts = torch.randint(width - side, (count,), generator=generator)
        self.places = list(zip(tops.tolist(), lefts.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        top, left = self.places[index]
        photograph = self.photographs[index % len(self.photographs)]
        crop = photograph[:, top : top + self.side, left : left + self.side].float() / 255 - 0.5
        turns = int(torch.randint(4, ()))
        return torch.rot90(crop, turns, (1, 2)).contiguous(), turns


class Block(nn.Module):
    """Two convolutions and a shortcut; a stride of two where channels double.

    Args:
        before: Channels that come in.
        after: Channels that go out.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride=2, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``(batch, before, side, side)`` to ``(batch, after, …)``."""
        return functional.relu(self.body(images) + self.shortcut(images))


def make_model(width: int, blocks: int) -> nn.Module:
    """``(batch, 3, side, side)`` to ``(batch, 4)`` scores."""
    widths = [width, 2 * width, 4 * width]
    chain = [Block(a, b) for a, b in zip([width, *widths], widths, strict=False)]
    chain = [one for block in chain for one in (block, *(_same(block) for _ in range(blocks - 1)))]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), *chain,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 4),
    )  # fmt: skip


def _same(block: Block) -> Block:
    channels = [part.num_features for part in block.body if isinstance(part, nn.BatchNorm2d)][-1]
    return Block(channels, channels)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of the angle."""
    crops, turns = batch
    return functional.cross_entropy(model(crops), turns)


def build(width: int = 24, blocks: int = 2, side: int = 32) -> Workload:
    """The workload as it is trained today."""
    return Workload(
        model=make_model(width, blocks),
        dataset=Turned(4096, side),
        loss=loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=5e-4),
        batch_size=128,
        name="rotations",
    )
