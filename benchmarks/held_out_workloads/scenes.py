"""A small variational autoencoder of crops that are decoded from JPEG on each access: its loader sets the pace."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import Workload

SIDE, CROP = 96, 64


class Crops(Dataset[torch.Tensor]):
    """``(3, 32, 32)`` floats in [0, 1]: a random part of a JPEG, half of them mirrored, made smaller.

    Args:
        count: JPEG files, which are kept in memory as bytes.
    """

    def __init__(self, count: int) -> None:
        photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
        generator = torch.Generator().manual_seed(0)
        self.files: list[bytes] = []
        for number in range(count):
            photograph = photographs[number % len(photographs)]
            left = int(torch.randint(photograph.width - SIDE, (), generator=generator))
            top = int(torch.randint(photograph.height - SIDE, (), generator=generator))
            file = io.BytesIO()
            photograph.crop((left, top, left + SIDE, top + SIDE)).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        left, top, mirrored = torch.randint(SIDE - CROP, (3,)).tolist()
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        image = image.resize((32, 32), Image.Resampling.BICUBIC, box=(left, top, left + CROP, top + CROP))
        if mirrored % 2:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels: torch.Tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return pixels


class VAE(nn.Module):
    """``(batch, 3, 32, 32)`` to the same, with mean and logarithm of the variance of what lies between.

    Args:
        width: Channels of the first layer.
        latent: Numbers that an image becomes.
    """

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(128 * width, 2 * latent),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(latent, 128 * width), nn.ReLU(), nn.Unflatten(1, (2 * width, 8, 8)),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits of the pixels, means, logarithms of variances."""
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        drawn = mean + torch.randn_like(mean) * torch.exp(log_variance / 2)
        return self.decoder(drawn), mean, log_variance


def loss(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The negative evidence lower bound of a pixel."""
    logits, mean, log_variance = model(images)
    apart: torch.Tensor = (mean**2 + log_variance.exp() - 1 - log_variance).mean() / 2
    return functional.binary_cross_entropy_with_logits(logits, images) + apart


def build(width: int = 16, latent: int = 32) -> Workload:
    """The workload as it is trained today."""
    return Workload(
        model=VAE(width, latent),
        dataset=Crops(1500),
        loss=loss,
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        batch_size=64,
        name="scenes",
    )
