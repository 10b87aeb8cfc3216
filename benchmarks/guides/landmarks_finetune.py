"""Fine-tuning an image network to find landmarks, with heavy augmentation on the CPU.

    autotune --model benchmarks.guides.landmarks_finetune:build --budget 5m
    autotune --model benchmarks.guides.landmarks_finetune:build --budget 5m --explore freeze_backbone=false,true

After a guide for a GPU with 8 GB beside 6 cores: 4 workers and prefetch 2 before; it advises batch 6, 6 workers,
prefetch 4, non_blocking, fp16, compile and channels_last, and no more workers than there are cores.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import TrainConfig, Workload
from autotune.knobs.config import Parameters
from benchmarks.guides import Scale, chosen_scale
from benchmarks.photos import MARKS, photo_folder

BEFORE = TrainConfig(batch_size=6, num_workers=4, prefetch_factor=2)
GUIDE = TrainConfig(
    batch_size=6, num_workers=6, prefetch_factor=4, pin_memory=True, non_blocking=True, precision="fp16",
    compile_mode="default", memory_format="channels_last",
)  # fmt: skip
VARIANTS = {
    "memory full": GUIDE.replace(batch_size=4, prefetch_factor=2),
    "10 GB and more": GUIDE.replace(batch_size=8, num_workers=12, prefetch_factor=6),
}
VARIANT_PARAMETERS: dict[str, Parameters] = {}
MAX_TURN_DEGREES, MAX_SHIFT, MAX_JITTER, BLUR_PROBABILITY = 20.0, 0.08, 0.3, 0.3


class Size(NamedTuple):
    """How large the workload is.

    Attributes:
        photos: Number of them.
        file_side: Pixels of a file's side.
        side: Pixels that the network sees.
        width: Channels of its first stage.
    """

    photos: int
    file_side: int
    side: int
    width: int


SIZES = {"cpu": Size(600, 320, 96, 16), "full": Size(6000, 640, 384, 64)}


class MarkedPhotos(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Photographs, decoded and augmented on every access: ``(3, side, side)`` floats and ``(5, 2)`` places in [0, 1].

    Args:
        folder: Made by `photo_folder`.
        side: Pixels of what is returned.
    """

    def __init__(self, folder: Path, side: int) -> None:
        self.folder = folder
        self.side = side
        self.places = [torch.tensor(places) for places in json.loads((folder / "marks.json").read_text())]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with Image.open(self.folder / f"{index}.jpg") as file:
            photo = file.convert("RGB")
        photo, places = turn_and_shift(photo, self.places[index], self.side)
        pixels = torch.frombuffer(bytearray(recolour(photo).tobytes()), dtype=torch.uint8)
        image = pixels.reshape(self.side, self.side, 3).permute(2, 0, 1).float().div_(255)
        return (image - 0.5) / 0.25, places


def turn_and_shift(photo: Image.Image, places: torch.Tensor, side: int) -> tuple[Image.Image, torch.Tensor]:
    """A photo turned, shifted and scaled to a side, with its marks' places moved along."""
    angle = math.radians(random.uniform(-MAX_TURN_DEGREES, MAX_TURN_DEGREES))
    shift = torch.tensor([random.uniform(-MAX_SHIFT, MAX_SHIFT), random.uniform(-MAX_SHIFT, MAX_SHIFT)])
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    # PIL asks where each new pixel comes from: old = turn · (new − centre − shift) + centre, in pixels of the file.
    centre = 0.5 * photo.width
    moved = [centre + value * photo.width for value in shift.tolist()]
    rows = [(*row, centre - sum(value * at for value, at in zip(row, moved, strict=True))) for row in turn.tolist()]
    turned = photo.transform(photo.size, Image.Transform.AFFINE, rows[0] + rows[1], Image.Resampling.BILINEAR)
    return turned.resize((side, side), Image.Resampling.BILINEAR), (places - 0.5) @ turn + 0.5 + shift


def recolour(photo: Image.Image) -> Image.Image:
    """A photo with its brightness, contrast and colour changed, and blurred now and then."""
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        photo = enhance(photo).enhance(1 + random.uniform(-MAX_JITTER, MAX_JITTER))
    return photo.filter(ImageFilter.GaussianBlur(1)) if random.random() < BLUR_PROBABILITY else photo


def stage(inputs: int, outputs: int) -> nn.Module:
    """A convolution that halves the sides, and one that does not."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class Finder(nn.Module):
    """``(batch, 3, side, side)`` images to ``(batch, 5, 2)`` places.

    Args:
        width: Channels of the first stage.
        freeze_backbone: Train the head only.
    """

    def __init__(self, width: int, *, freeze_backbone: bool) -> None:
        super().__init__()
        self.backbone = nn.Sequential(stage(3, width), stage(width, 2 * width), stage(2 * width, 4 * width))
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(4 * width * 36, 128), nn.ReLU(), nn.Linear(128, 2 * MARKS)
        )
        self.backbone.requires_grad_(not freeze_backbone)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The places, where 0 and 1 are the image's edges."""
        places: torch.Tensor = self.head(self.backbone(images)).unflatten(1, (MARKS, 2))
        return places


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Smooth distance between the places found and the true ones."""
    images, places = batch
    return functional.smooth_l1_loss(model(images), places, beta=0.05)


def build(*, scale: Scale = "auto", freeze_backbone: bool = False) -> Workload:
    """The workload as the guide finds it.

    Args:
        scale: ``cpu`` is small enough for two cores, ``full`` is the guide's own size; ``auto`` chooses.
        freeze_backbone: Train the head only.
    """
    scale = chosen_scale(scale)
    size = SIZES[scale]
    return Workload(
        model=Finder(size.width, freeze_backbone=freeze_backbone),
        dataset=MarkedPhotos(photo_folder(size.photos, size.file_side), size.side),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01),
        baseline=BEFORE,
        name=f"landmarks_finetune ({scale})",
    )
