"""A script that the loader bounds: two workers read thousands of files, and a small model trains on them.

python benchmarks/file_reader.py FOLDER KIND        # KIND: photos (JPEG, decoded) or raw (12 KB, read and scaled)
    python benchmarks/file_reader.py FOLDER KIND time   # only seconds a sample, read in one process, at best of ten
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

FILES, BYTES, SIDE = 4000, 12288, 192
EPOCHS = 10_000


class Files(Dataset[tuple[torch.Tensor, int]]):
    """Each sample is a file, which is opened, read, decoded where it is a photo, and scaled."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._paths, self._kind = sorted(folder.iterdir()), kind

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        content = self._paths[index].read_bytes()
        if self._kind == "photos":
            content = Image.open(io.BytesIO(content)).tobytes()
        values = np.frombuffer(content, dtype=np.uint8).astype(np.float32) / 255
        return torch.from_numpy(values.reshape(16, -1).mean(axis=1)), index % 2


def files_in(folder: Path, kind: str) -> Path:
    """The folder, with files of a kind in it."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(FILES):
        path = folder / f"{number:05}"
        if kind == "photos":
            small = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
            small.resize((SIDE, SIDE)).save(path, format="jpeg")
        else:
            path.write_bytes(rng.bytes(BYTES))
    return folder


def seconds_per_sample(dataset: Files) -> float:
    """What reading takes."""
    began = time.perf_counter()
    for index in range(len(dataset)):
        dataset[index]
    return (time.perf_counter() - began) / len(dataset)


def main() -> None:
    """Trains until it is ended."""
    torch.set_num_threads(1)
    dataset = Files(Path(sys.argv[1]), sys.argv[2])
    if sys.argv[3:] == ["time"]:
        print(min(seconds_per_sample(dataset) for _ in range(10)))
        return
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in range(EPOCHS):
        for samples, labels in loader:
            loss = nn.functional.cross_entropy(model(samples), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


if __name__ == "__main__":
    main()
