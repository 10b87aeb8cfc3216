"""Reading lines of digits: convolutions and a bidirectional LSTM, trained with CTC on images of very different widths.

    autotune --model benchmarks.guides.ctc_tips:build --budget 5m
    autotune --model benchmarks.guides.ctc_tips:build --budget 5m --explore watch_loss=true,false

After a guide for CTC training on any one GPU, which names things to do and hardly a number. Its reader starts from
PyTorch's defaults, here with batch 16. It advises workers "by measurement" (two stand here, since somebody has to
start somewhere), pinned memory with non_blocking, mixed precision with care for CTC, and a fused optimizer; a larger
batch, which is a variant, since it changes what is learned; and to leave cuDNN's own choice of kernels off where
shapes vary, as here. It warns of waiting for the device at each step: ``watch_loss`` does just that.

The guide's own data are not public. Here, lines are drawn once, as JPEG files; each access decodes one and distorts it.
"""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import TrainConfig, Workload
from autotune.knobs.config import Parameters
from benchmarks.guides import Scale, chosen_scale, written_once

BEFORE = TrainConfig(batch_size=16)
GUIDE = BEFORE.replace(num_workers=2, pin_memory=True, non_blocking=True, precision="fp16", optimizer_impl="fused")
VARIANTS = {"larger batch": GUIDE.replace(batch_size=32), "CTC unstable": GUIDE.replace(precision="fp32")}
VARIANT_PARAMETERS: dict[str, Parameters] = {}
SYMBOLS = 11
"""The blank of CTC, then ten digits."""
LEAST_DIGITS, MORE_DIGITS, MOST_DIGITS = 3, 7, 32
"""Lines have a few digits, and then exponentially more; `MORE_DIGITS` on average."""
NOISE_SHARE, JPEG_QUALITY = 0.2, 85
PAPER = 220
MAX_STRETCH, MAX_SHEAR, MAX_JITTER, BLUR_PROBABILITY = 0.15, 0.15, 0.4, 0.3


class Size(NamedTuple):
    """How large the workload is.

    Attributes:
        lines: Number of them.
        height: Pixels of a line; a multiple of 16.
        width: Channels of the first convolution.
    """

    lines: int
    height: int
    width: int


SIZES = {"cpu": Size(1600, 32, 32), "full": Size(16_000, 64, 64)}


def write_lines(folder: Path, size: Size) -> None:
    """Writes ``<number>.jpg``, grey, and ``digits.json``: what each line says."""
    rng = random.Random(0)
    font = ImageFont.load_default(0.75 * size.height)
    texts = []
    for number in range(size.lines):
        length = min(LEAST_DIGITS + int(rng.expovariate(1 / MORE_DIGITS)), MOST_DIGITS)
        texts.append("".join(rng.choices("0123456789", k=length)))
        line = draw_line(texts[-1], size.height, font, rng)
        noise = Image.frombytes("L", line.size, rng.randbytes(line.width * line.height))
        Image.blend(line, noise, rng.uniform(0, NOISE_SHARE)).save(folder / f"{number}.jpg", quality=JPEG_QUALITY)
    (folder / "digits.json").write_text(json.dumps(texts))


def draw_line(
    text: str, height: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, rng: random.Random
) -> Image.Image:
    """A text in dark ink on light paper, each digit a little higher or lower than the last."""
    steps = [font.getlength(digit) + rng.uniform(0, 0.1) * height for digit in text]
    line = Image.new("L", (round(sum(steps) + 0.6 * height), height), round(rng.uniform(0.8, 1.1) * PAPER))
    draw = ImageDraw.Draw(line)
    left = 0.3 * height
    for digit, step in zip(text, steps, strict=True):
        draw.text((left, rng.uniform(0, 0.15) * height), digit, fill=rng.randrange(90), font=font)
        left += step
    return line


class TextLines(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Lines, decoded and augmented on every access: ``(1, height, width)`` with ink positive, and ``(digits,)`` from 1.

    Args:
        folder: Made by `write_lines`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts: list[str] = json.loads((folder / "digits.json").read_text())

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with Image.open(self.folder / f"{index}.jpg") as file:
            line = distort(file.convert("L"))
        pixels = torch.frombuffer(bytearray(line.tobytes()), dtype=torch.uint8)
        image = pixels.reshape(1, line.height, line.width).float() / 255
        return (0.5 - image) / 0.25, torch.tensor([int(digit) + 1 for digit in self.texts[index]])


def distort(line: Image.Image) -> Image.Image:
    """A line stretched and slanted, with its brightness and contrast changed, and blurred now and then."""
    stretch, shear = 1 + random.uniform(-MAX_STRETCH, MAX_STRETCH), random.uniform(-MAX_SHEAR, MAX_SHEAR)
    # PIL asks where each new pixel comes from: old x = x / stretch + shear · (y − height / 2).
    matrix = (1 / stretch, shear, -shear * line.height / 2, 0, 1, 0)
    size = (round(stretch * line.width), line.height)
    line = line.transform(size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=PAPER)
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast):
        line = enhance(line).enhance(1 + random.uniform(-MAX_JITTER, MAX_JITTER))
    return line.filter(ImageFilter.GaussianBlur(1)) if random.random() < BLUR_PROBABILITY else line


class Lines(NamedTuple):
    """A batch, as wide as its widest line.

    Attributes:
        images: ``(batch, 1, height, width)``.
        targets: The digits of all lines, one line after the other.
        widths: Pixels of each line.
        lengths: Digits of each line.

    Widths and lengths are plain numbers on purpose: CTC wants them on the CPU, and would wait for the device to bring
    them back.
    """

    images: torch.Tensor
    targets: torch.Tensor
    widths: tuple[int, ...]
    lengths: tuple[int, ...]


def line_width(sample: tuple[torch.Tensor, torch.Tensor]) -> int:
    """Pixels of a sample's line."""
    return sample[0].shape[2]


def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> Lines:
    """Pads the lines on the right."""
    widths = tuple(line_width(sample) for sample in samples)
    images = [functional.pad(image, (0, max(widths) - image.shape[2])) for image, _ in samples]
    targets = [digits for _, digits in samples]
    return Lines(torch.stack(images), torch.cat(targets), widths, tuple(len(digits) for digits in targets))


def frames_of(width: int) -> int:
    """Frames that the network makes of so many pixels: its first two convolutions halve the width."""
    return -(-width // 4)


class Reader(nn.Module):
    """``(batch, 1, height, width)`` images to ``(width / 4, batch, symbols)`` scores."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        plan = ((1, width, 2), (width, 2 * width, 2), (2 * width, 4 * width, 1), (4 * width, 4 * width, 1))
        self.cnn = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(inputs, outputs, 3, stride=(2, stride), padding=1, bias=False),
                    nn.BatchNorm2d(outputs),
                    nn.ReLU(),
                )
                for inputs, outputs, stride in plan
            )
        )
        self.lstm = nn.LSTM(4 * width * (size.height // 16), 4 * width, bidirectional=True)
        self.head = nn.Linear(8 * width, SYMBOLS)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the symbols, frame by frame."""
        frames = self.cnn(images).permute(3, 0, 1, 2).flatten(2)
        states, _ = self.lstm(frames)
        scores: torch.Tensor = self.head(states)
        return scores


def loss(model: nn.Module, batch: Any, *, watch_loss: bool) -> torch.Tensor:
    """CTC, in fp32 whatever the model computes in: it adds up tiny probabilities over many frames."""
    lines = Lines(*batch)
    likely = model(lines.images).float().log_softmax(2)
    frames = tuple(frames_of(width) for width in lines.widths)
    value = functional.ctc_loss(likely, lines.targets, frames, lines.lengths)  # type: ignore[arg-type]
    if watch_loss:
        value.item()
    return value


def build(*, scale: Scale = "auto", watch_loss: bool = False) -> Workload:
    """The workload as the guide finds it.

    Args:
        scale: ``cpu`` is small enough for two cores, ``full`` has lines and layers of twice the size; ``auto`` chooses.
        watch_loss: Read the loss at each step, as one does to log it: training waits for the device.
    """
    scale = chosen_scale(scale)
    size = SIZES[scale]
    name = f"lines-{size.lines}-{size.height}"
    return Workload(
        model=Reader(size),
        dataset=TextLines(written_once(name, functools.partial(write_lines, size=size))),
        loss=functools.partial(loss, watch_loss=watch_loss),
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        baseline=BEFORE,
        collate_fn=collate,
        sample_size=line_width,
        name=f"ctc_tips ({scale})",
    )
