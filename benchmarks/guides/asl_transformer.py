"""Recognising signs from the landmarks of hands and face: a transformer on sequences of very different lengths.

    autotune --model benchmarks.guides.asl_transformer:build --budget 5m
    autotune --model benchmarks.guides.asl_transformer:build --budget 5m --explore max_len=384,256

After a guide for a GPU with 12 GB: batch 12 × accumulation 4, gradients clipped at 1.0. It does not say what its reader
starts from besides: PyTorch's defaults stand for that. It advises mixed precision, 4 workers, pinned memory,
non_blocking, cuDNN's own choice of kernels, and to compile with reduce-overhead, or to carry on without where Triton is
missing. All its variants keep the effective batch of 48. (To empty the CUDA cache every 50 batches is no knob here.)

The guide's own data are not public. Here, signs are synthesised once, as ``.npy`` files of landmarks, with gaps where
a hand was not found, and with lengths like those of isolated signs: most take a second, a few ten. Each access reads
one, normalises it and augments it.
"""

from __future__ import annotations

import functools
import json
import math
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from autotune import TrainConfig, Workload
from autotune.knobs.config import Parameters
from benchmarks.guides import Scale, chosen_scale, written_once

BEFORE = TrainConfig(batch_size=12, accumulation_steps=4)
GUIDE = BEFORE.replace(
    precision="fp16", num_workers=4, pin_memory=True, non_blocking=True, cudnn_benchmark=True,
    compile_mode="reduce-overhead",
)  # fmt: skip
VARIANTS = {
    "large model": GUIDE.replace(batch_size=8, accumulation_steps=6),
    "fast": GUIDE.replace(batch_size=16, accumulation_steps=3),
    "short of memory": GUIDE.replace(batch_size=8, accumulation_steps=6),
    "without Triton": GUIDE.replace(compile_mode=None),
}
VARIANT_PARAMETERS: dict[str, Parameters] = {"large model": {"dim": 384}, "short of memory": {"max_len": 256}}
HEAD_WIDTH = 48
MEDIAN_FRAMES, SPREAD, LEAST_FRAMES, MOST_FRAMES = 36, 0.8, 8, 600
"""Lengths of signs are spread log-normally."""
PARTS = 3
"""A landmark belongs to one hand, to the other, or to the face; each part moves as a whole, and changes its shape."""
HARMONICS = 3
GAP_PROBABILITY = 0.3
MAX_SPEED, MAX_TURN_DEGREES, MAX_ZOOM, MASKED_SHARE = 1.25, 15.0, 0.1, 0.15


class Size(NamedTuple):
    """How large the workload is.

    Attributes:
        sequences: Number of them.
        signs: Number of different ones.
        landmarks: Of a frame, with three coordinates each.
        layers: Of the transformer.
    """

    sequences: int
    signs: int
    landmarks: int
    layers: int


SIZES = {"cpu": Size(960, 30, 42, 2), "full": Size(8000, 250, 130, 6)}


def write_signs(folder: Path, size: Size) -> None:
    """Writes ``<number>.npy``, ``(frames, landmarks, 3)`` in half precision, and ``signs.json``: the sign of each."""
    rng = random.Random(0)
    generator = torch.Generator().manual_seed(0)
    shapes = torch.randn(size.signs, 2, size.landmarks, 3, generator=generator) * 0.1
    decreasing = 1 / torch.arange(1, HARMONICS + 1)[:, None, None]
    paths = torch.randn(size.signs, HARMONICS, PARTS, 3, generator=generator) * decreasing
    signs = []
    for number in range(size.sequences):
        signs.append(rng.randrange(size.signs))
        length = min(max(round(rng.lognormvariate(math.log(MEDIAN_FRAMES), SPREAD)), LEAST_FRAMES), MOST_FRAMES)
        frames = perform(shapes[signs[-1]], paths[signs[-1]], length, rng)
        frames += 0.02 * torch.randn(frames.shape, generator=generator)
        np.save(folder / f"{number}.npy", frames.half().numpy())
    (folder / "signs.json").write_text(json.dumps(signs))


def perform(shapes: torch.Tensor, paths: torch.Tensor, length: int, rng: random.Random) -> torch.Tensor:
    """A sign by a signer of its own: ``(length, landmarks, 3)``, NaN where a part was not found.

    Args:
        shapes: ``(2, landmarks, 3)``, before and after.
        paths: ``(HARMONICS, PARTS, 3)``.
        length: Frames.
        rng: Draws signer and gaps.
    """
    progress = torch.linspace(0, 1, length) ** rng.uniform(0.7, 1.4)
    waves = torch.sin(math.pi * progress[:, None] * torch.arange(1, HARMONICS + 1))
    moved = torch.einsum("fh,hpc->fpc", waves, paths)
    for part in range(PARTS):
        if rng.random() < GAP_PROBABILITY:
            start = rng.randrange(length)
            moved[start : start + rng.randrange(1, length // 2), part] = math.nan
    shape = torch.lerp(shapes[:1], shapes[1:], progress[:, None, None])
    part_of = torch.arange(shape.shape[1]) * PARTS // shape.shape[1]
    return rng.uniform(0.7, 1.3) * (shape + moved[:, part_of]) + rng.uniform(-0.5, 0.5)


class Signs(Dataset[dict[str, Any]]):
    """Sequences, read and augmented on every access: ``(frames, 6 × landmarks)`` places and velocities, and the sign.

    Args:
        folder: Made by `write_signs`.
        max_len: Frames that are kept.
    """

    def __init__(self, folder: Path, max_len: int) -> None:
        self.folder = folder
        self.max_len = max_len
        self.signs: list[int] = json.loads((folder / "signs.json").read_text())

    def __len__(self) -> int:
        return len(self.signs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        kept = np.load(self.folder / f"{index}.npy", mmap_mode="r")[: self.max_len]
        places = augment(normalise(torch.from_numpy(kept.astype(np.float32))), self.max_len).flatten(1)
        velocities = torch.diff(places, dim=0, prepend=places[:1])
        return {"features": torch.cat([places, velocities], dim=1), "labels": self.signs[index]}


def normalise(places: torch.Tensor) -> torch.Tensor:
    """``(frames, landmarks, 3)`` around their mean, in units of their spread; what was not found is in the middle."""
    centred = places - places.nanmean((0, 1))
    return centred.nan_to_num() / centred.square().nanmean().sqrt()


def augment(places: torch.Tensor, max_len: int) -> torch.Tensor:
    """``(frames, landmarks, 3)`` at another speed, turned and zoomed a little, with a stretch of frames left out."""
    speed = MAX_SPEED ** random.uniform(-1, 1)
    length = min(max(round(len(places) / speed), LEAST_FRAMES), max_len)
    resampled = functional.interpolate(places.flatten(1).T[None], length, mode="linear")[0]
    places = resampled.T.reshape(length, -1, 3)
    angle = math.radians(random.uniform(-MAX_TURN_DEGREES, MAX_TURN_DEGREES))
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    places[..., :2] = places[..., :2] @ turn
    masked = round(random.uniform(0, MASKED_SHARE) * length)
    places.narrow(0, random.randint(0, length - masked), masked).zero_()
    return places * (1 + random.uniform(-MAX_ZOOM, MAX_ZOOM))


def sequence_length(sample: dict[str, Any]) -> int:
    """Frames of a sample."""
    return len(sample["features"])


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch as long as its longest: ``(batch, frames, …)`` features, ``(batch, frames)`` mask, True where real."""
    lengths = torch.tensor([sequence_length(sample) for sample in samples])
    return {
        "features": pad_sequence([sample["features"] for sample in samples], batch_first=True),
        "labels": torch.tensor([sample["labels"] for sample in samples]),
        "mask": torch.arange(int(lengths.max())) < lengths[:, None],
    }


class SignTransformer(nn.Module):
    """``(batch, frames, features)`` with their mask to ``(batch, signs)`` scores."""

    def __init__(self, size: Size, dim: int, max_len: int) -> None:
        super().__init__()
        if dim % HEAD_WIDTH:
            raise ValueError(f"dim={dim} was given, but a multiple of {HEAD_WIDTH} was expected")
        self.inputs = nn.Linear(6 * size.landmarks, dim)
        self.positions = nn.Embedding(max_len, dim)
        layer = nn.TransformerEncoderLayer(
            dim, dim // HEAD_WIDTH, 4 * dim, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, size.layers, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, size.signs)

    def forward(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Scores from the mean over the real frames."""
        positions = torch.arange(features.shape[1], device=features.device)
        states = self.inputs(features) + self.positions(positions)
        states = self.encoder(states, src_key_padding_mask=~mask)
        real = mask[..., None]
        scores: torch.Tensor = self.head((states * real).sum(1) / real.sum(1))
        return scores


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of the signs."""
    return functional.cross_entropy(model(batch["features"], batch["mask"]), batch["labels"], label_smoothing=0.1)


def build(*, scale: Scale = "auto", dim: int = 192, max_len: int = 384) -> Workload:
    """The workload as the guide finds it.

    Args:
        scale: ``cpu`` is small enough for two cores, ``full`` has more landmarks, signs and layers; ``auto`` chooses.
        dim: Of the transformer; the guide's large one has 384.
        max_len: Frames of a sequence that are kept.
    """
    scale = chosen_scale(scale)
    size = SIZES[scale]
    name = f"signs-{size.sequences}-{size.signs}-{size.landmarks}"
    return Workload(
        model=SignTransformer(size, dim, max_len),
        dataset=Signs(written_once(name, functools.partial(write_signs, size=size)), max_len),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=5e-4, weight_decay=0.01),
        baseline=BEFORE,
        collate_fn=collate,
        clip_grad_norm=1.0,
        sample_size=sequence_length,
        name=f"asl_transformer ({scale})",
    )
