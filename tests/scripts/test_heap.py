"""A burst trains with the heap that the script's evaluation leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.recorder.malloc_state import LARGEST_THRESHOLD_BYTES
from autotune.scripts import Script
from tests.scripts.conftest import SeenIn

TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(256, 8), torch.randint(0, 2, (256,)))
loader = DataLoader(data, batch_size=16)
model = nn.Sequential(nn.Linear(8, 8192), nn.ReLU(), nn.Linear(8192, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{before}
for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    {after}
"""
WIDEST_BYTES = 16 * 8192 * 4
"""What the first layer returns for a batch."""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "pass", 0),
        ("other = DataLoader(data, batch_size=64)", "for x, y in other: model(x)", 4 * WIDEST_BYTES),
        ("other = DataLoader(data, batch_size=8)", "for x, y in other: model(x)", 0),
        ("other = DataLoader(data, batch_size=10_000)", "for x, y in other: model(x)", 16 * WIDEST_BYTES),
        ("", "model.eval(); torch.no_grad()(model)(data.tensors[0]); model.train()", LARGEST_THRESHOLD_BYTES),
        ("frozen = nn.Linear(1, 1).eval()", "pass", 0),
        ("torch.jit.trace(model, data.tensors[0][:32])", "pass", 0),
    ],
    ids=[
        "no evaluation",
        "larger batches",
        "smaller batches",
        "larger than the data",
        "all at once",
        "frozen",
        "traced",
    ],
)
def test_what_evaluation_frees_is_told_by_its_batches(
    before: str, after: str, expected: int, tmp_path: Path, seen_in: SeenIn
) -> None:
    """The widest activation of training, in the evaluation's larger batch; where that is not known, the most."""
    (tmp_path / "train.py").write_text(TRAINING.format(before=before, after=after))
    assert seen_in(Script((sys.executable, "train.py"))).evaluation_bytes == expected


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc alone is told")
def test_a_freed_chunk_keeps_later_ones_off_mmap() -> None:
    """The second lowest bit of the word before a chunk tells, in glibc, whether it came by mmap."""
    code = """
import ctypes
from autotune.recorder.malloc_state import free_chunk
library = ctypes.CDLL(None)
if not hasattr(library, "gnu_get_libc_version"):
    raise SystemExit
library.malloc.restype = ctypes.c_void_p
def comes_by_mmap():
    return bool(ctypes.c_size_t.from_address(library.malloc(ctypes.c_size_t(8 << 20)) - 8).value & 2)
assert comes_by_mmap()
free_chunk(16 << 20)
assert not comes_by_mmap()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
