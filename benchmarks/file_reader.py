"""A script that the loader bounds: two workers read thousands of small files, and a small model trains on them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FILES, BYTES = 4000, 12288
EPOCHS = 10_000


class Files(Dataset[tuple[torch.Tensor, int]]):
    """Each sample is a file, which is opened, read and scaled."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raw = np.frombuffer(self._paths[index].read_bytes(), dtype=np.uint8).astype(np.float32) / 255
        return torch.from_numpy(raw.reshape(16, -1).mean(axis=1)), index % 2


def files_in(folder: Path) -> Path:
    """The folder, with files of random bytes in it."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(FILES):
        path = folder / f"{number:05}"
        if not path.exists():
            path.write_bytes(rng.bytes(BYTES))
    return folder


def main() -> None:
    """Trains until it is ended; the argument is the folder of the files."""
    torch.set_num_threads(1)
    place = Path(sys.argv[1] if len(sys.argv) > 1 else Path(tempfile.gettempdir()) / "files")
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Files(files_in(place)), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in range(EPOCHS):
        for samples, labels in loader:
            loss = nn.functional.cross_entropy(model(samples), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


if __name__ == "__main__":
    main()
