"""Telling spoken words apart: a convolutional and a recurrent network on frames of features, with MixUp.

    autotune --model benchmarks.guides.cnn_lstm:build --budget 5m
    autotune --model benchmarks.guides.cnn_lstm:build --budget 5m --effective-batch free
    autotune --model benchmarks.guides.cnn_lstm:build --budget 5m --explore mixup_prob=0.5,0.2,0

After a guide for a GPU with 12 GB: batch 256, fp32, 4 workers and pinned memory before; it advises fp16, cuDNN's own
choice of kernels and 8 workers, and then a batch of 384 or 512, or accumulation. (Its reader starts from
deterministic kernels, which are no knob here: PyTorch's default stands for them.)

A larger batch is another effective batch, which changes what is learned: the guide keeps its learning rate. So `GUIDE`
is the rest of the advice at the 256 that it starts from, to be compared with what autotune finds at 256 too. The larger
batches are variants, for comparison with ``--effective-batch free``.

The guide's own data are not public. Here, words of two vowels are synthesised once, as WAV files; each access reads
one, disturbs it and computes its log-mel spectrogram.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
import wave
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import TrainConfig, Workload
from autotune.knobs.config import Parameters
from benchmarks.guides import Scale, chosen_scale, written_once

BEFORE = TrainConfig(batch_size=256, num_workers=4, pin_memory=True)
GUIDE = BEFORE.replace(precision="fp16", cudnn_benchmark=True, num_workers=8)
VARIANTS = {
    "batch 384": GUIDE.replace(batch_size=384),
    "batch 512": GUIDE.replace(batch_size=512),
    "accumulation 2": GUIDE.replace(accumulation_steps=2),
    "less MixUp": GUIDE,
    "CNN frozen": GUIDE,
}
VARIANT_PARAMETERS: dict[str, Parameters] = {"less MixUp": {"mixup_prob": 0.2}, "CNN frozen": {"freeze_cnn": True}}
CHANNELS, HIDDEN = (64, 128, 256), 256
MIXUP_ALPHA = 0.4
FORMANTS = ((730, 1090), (270, 2290), (300, 870), (530, 1840), (570, 840))
"""The two lowest resonances of five vowels, in Hz (Peterson and Barney, 1952)."""
WORDS = tuple(itertools.permutations(range(len(FORMANTS)), 2))
FORMANT_DECAY = 400.0
"""Per second: how fast a resonance dies away after each pulse of the voice."""
MAX_SHIFT, MAX_NOISE, MASKED_SHARE = 0.1, 0.05, 0.2


class Size(NamedTuple):
    """How large the workload is.

    Attributes:
        clips: Number of them.
        rate: Samples per second.
        samples: Of a clip.
        window: Samples that a frame looks at.
        hop: Samples from one frame to the next.
        bands: Features of a frame.
    """

    clips: int
    rate: int
    samples: int
    window: int
    hop: int
    bands: int


SIZES = {"cpu": Size(3072, 8000, 4000, 256, 128, 16), "full": Size(8192, 16_000, 32_000, 1024, 160, 64)}


def write_clips(folder: Path, size: Size) -> None:
    """Writes ``<number>.wav``, 16-bit mono, and ``words.json``: the word of each clip."""
    rng = random.Random(0)
    noise = torch.Generator().manual_seed(0)
    words = []
    for number in range(size.clips):
        words.append(rng.randrange(len(WORDS)))
        signal = speak(words[-1], size, rng) + rng.uniform(0.01, 0.1) * torch.randn(size.samples, generator=noise)
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(size.rate)
            file.writeframes((signal.clamp(-1, 1) * 32767).short().numpy().tobytes())
    (folder / "words.json").write_text(json.dumps(words))


def speak(word: int, size: Size, rng: random.Random) -> torch.Tensor:
    """A word by a speaker of its own, somewhere in ``(samples,)`` of silence."""
    share = rng.uniform(0.6, 0.9)
    time = torch.arange(size.samples) / size.rate
    progress = ((time * size.rate / size.samples - rng.uniform(0, 1 - share)) / share).clamp(0, 1)
    pitch = rng.uniform(90, 220) * (1.1 - 0.2 * progress)
    since_pulse = (pitch.cumsum(0) / size.rate) % 1 / pitch
    second = torch.sigmoid(20 * (progress - 0.5))
    signal = torch.zeros(size.samples)
    for resonances in zip(*(FORMANTS[vowel] for vowel in WORDS[word]), strict=True):
        start, end = (rng.uniform(0.9, 1.1) * frequency for frequency in resonances)
        frequency = start + (end - start) * second
        signal += torch.exp(-FORMANT_DECAY * since_pulse) * torch.sin(2 * math.pi * frequency * since_pulse)
    return 0.4 * torch.sin(math.pi * progress) * signal


class Clips(Dataset[tuple[torch.Tensor, int]]):
    """Clips, read and augmented on every access: ``(1, frames, bands)`` of log power, and the word.

    Args:
        folder: Made by `write_clips`.
        size: That it was made with.
    """

    def __init__(self, folder: Path, size: Size) -> None:
        self.folder = folder
        self.size = size
        self.words: list[int] = json.loads((folder / "words.json").read_text())
        self.window = torch.hann_window(size.window)
        self.filters = mel_filters(size)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with wave.open(str(self.folder / f"{index}.wav")) as file:
            signal = torch.frombuffer(bytearray(file.readframes(file.getnframes())), dtype=torch.int16) / 32768
        signal = signal.roll(round(random.uniform(-MAX_SHIFT, MAX_SHIFT) * len(signal)))
        signal += random.uniform(0, MAX_NOISE) * torch.randn(len(signal))
        spectrum = torch.stft(signal, self.size.window, self.size.hop, window=self.window, return_complex=True)
        features = torch.log(self.filters @ spectrum.abs().square() + 1e-5).T
        features = (features - features.mean()) / features.std()
        return mask(features)[None], self.words[index]


def mel_filters(size: Size) -> torch.Tensor:
    """Triangles that overlap by half, evenly spaced in mel: ``(bands, frequencies)``."""
    top = 2595 * math.log10(1 + size.rate / 2 / 700)
    corners = 700 * (10 ** (torch.linspace(0, top, size.bands + 2) / 2595) - 1)
    frequencies = torch.linspace(0, size.rate / 2, size.window // 2 + 1)
    low, middle, high = (corners[first : first + size.bands, None] for first in range(3))
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return torch.minimum(rising, falling).clamp(min=0)


def mask(features: torch.Tensor) -> torch.Tensor:
    """``(frames, bands)`` with a stretch of frames and one of bands at their mean, as in SpecAugment."""
    for dim, length in enumerate(features.shape):
        masked = round(random.uniform(0, MASKED_SHARE) * length)
        features.narrow(dim, random.randint(0, length - masked), masked).zero_()
    return features


class Recogniser(nn.Module):
    """``(batch, 1, frames, bands)`` features to ``(batch, words)`` scores.

    Args:
        bands: Of a frame; a multiple of 8.
        freeze_cnn: Train the recurrent part and the head only.
    """

    def __init__(self, bands: int, *, freeze_cnn: bool) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                    nn.BatchNorm2d(outputs),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                )
                for inputs, outputs in itertools.pairwise((1, *CHANNELS))
            )
        )
        self.lstm = nn.LSTM(CHANNELS[-1] * (bands // 2 ** len(CHANNELS)), HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, len(WORDS))
        self.cnn.requires_grad_(not freeze_cnn)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Scores of the words."""
        frames = self.cnn(features).transpose(1, 2).flatten(2)
        states, _ = self.lstm(frames)
        scores: torch.Tensor = self.head(states.mean(1))
        return scores


def loss(model: nn.Module, batch: Any, *, mixup_prob: float) -> torch.Tensor:
    """Mean cross-entropy; with this probability, that of each clip mixed with another of its batch."""
    features, words = batch
    if random.random() >= mixup_prob:
        return functional.cross_entropy(model(features), words)
    share = random.betavariate(MIXUP_ALPHA, MIXUP_ALPHA)
    others = torch.randperm(len(words), device=words.device)
    scores = model(torch.lerp(features[others], features, share))
    own, other = functional.cross_entropy(scores, words), functional.cross_entropy(scores, words[others])
    return share * own + (1 - share) * other


def build(*, scale: Scale = "auto", mixup_prob: float = 0.5, freeze_cnn: bool = False) -> Workload:
    """The workload as the guide finds it.

    Args:
        scale: ``cpu`` is small enough for two cores, ``full`` has clips of two seconds; ``auto`` chooses.
        mixup_prob: Share of the batches that are mixed.
        freeze_cnn: Train the recurrent part and the head only.
    """
    scale = chosen_scale(scale)
    size = SIZES[scale]
    name = f"clips-{size.clips}-{size.samples}-{size.rate}"
    return Workload(
        model=Recogniser(size.bands, freeze_cnn=freeze_cnn),
        dataset=Clips(written_once(name, functools.partial(write_clips, size=size)), size),
        loss=functools.partial(loss, mixup_prob=mixup_prob),
        optimizer=lambda params: torch.optim.AdamW(params, lr=5e-5, weight_decay=0.01),
        baseline=BEFORE,
        name=f"cnn_lstm ({scale})",
    )
