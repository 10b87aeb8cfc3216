"""The doctor's workloads, each with a known property, and a plain loop to compare figures with.

    python -m autotune.doctor.workloads '{"device": "cpu", "seconds": 1, "cases": [[5, 2]]}'

trains the timed workload in a loop that uses nothing of this package's bursts, so that only its own copies make it
wait. It prints the rate of each case in samples per second. Without an argument it answers each line of its input.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from autotune.workload.workload import Workload

BATCH = 4
HUGE_BYTES = 2**50
WARMUP_SECONDS, FILLING_SECONDS = 0.3, 0.01
_MEASURED_CYCLES = 20_000_000


class Numbers(Dataset[Any]):
    """Rows of eight numbers; a batch of them takes a known time to read."""

    def __init__(self, fetch_seconds: float = 0.0, length: int = 100_000) -> None:
        self._fetch_seconds = fetch_seconds
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index % 7 / 7)

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        if self._fetch_seconds:
            time.sleep(self._fetch_seconds)
        return [self[index] for index in indices]


class Timed(nn.Module):
    """A model whose forward takes a known time: of the host on a CPU, of the device alone on a GPU."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self._seconds = seconds

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows, weighted."""
        if rows.device.type == "cuda":
            _sleep(round(self._seconds * _cycles_per_second()))
        else:
            time.sleep(self._seconds)
        return rows * self.weight


@functools.cache
def _cycles_per_second() -> float:
    """The GPU's clock rate, as it runs now."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    _sleep(_MEASURED_CYCLES)  # only raises the clock
    first.record()
    _sleep(_MEASURED_CYCLES)
    last.record()
    last.synchronize()
    return _MEASURED_CYCLES / (float(first.elapsed_time(last)) / 1e3)


def _sleep(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def timed(step_ms: float = 5.0, fetch_ms: float = 0.0) -> Workload:
    """A step and a batch that take known times."""
    model = Timed(step_ms / 1e3)
    return Workload(model, Numbers(fetch_ms / 1e3), _squares, optimizer=_sgd, batch_size=BATCH)


def small() -> Workload:
    """Convolution, attention, normalisation and linear layers, which differ by precision and kernel."""
    return Workload(_Small(), _Images(), _classify, optimizer=_sgd, batch_size=16)


def saturating() -> Workload:
    """Matrix products that keep a GPU busy."""
    return Workload(_Products(4096, 8), Numbers(), _squares, optimizer=_sgd, batch_size=BATCH)


def launching() -> Workload:
    """Hundreds of tiny operators, whose launches a GPU waits for."""
    layers = [layer for _ in range(60) for layer in (nn.Linear(8, 8), nn.Tanh())]
    return Workload(nn.Sequential(*layers), Numbers(), _squares, optimizer=_sgd, batch_size=BATCH)


def out_of_memory(part: str = "forward") -> Workload:
    """A step that asks for more memory than any machine has, in its forward, backward or optimizer."""
    model = _Greedy(part)
    return Workload(model, Numbers(), _squares, optimizer=_hungry if part == "optimizer" else _sgd, batch_size=BATCH)


def filling(mib: int) -> Workload:
    """A step that takes a known time, and memory that it frees again, as activations do."""
    return Workload(_Filling(mib * 2**20), Numbers(), _squares, optimizer=_sgd, batch_size=BATCH)


def compiled_into(folder: str) -> Workload:
    """The small workload, whose compiled code goes to a folder."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    return small()


_WORKLOADS: dict[str, Callable[..., Workload]] = {
    build.__name__: build for build in (timed, small, saturating, launching, out_of_memory, filling, compiled_into)
}


def any_of(workload: str = "small", **parameters: Any) -> Workload:
    """One of these workloads by its name, so that one forkserver serves all of them."""
    return _WORKLOADS[workload](**parameters)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def _squares(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = model(rows)
    return result.float().square().mean()


def _classify(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    return functional.cross_entropy(model(images).float(), labels)


class _Images(Dataset[Any]):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        label = index % 4
        return torch.randn(3, 16, 16, generator=generator) + label / 2, label


class _Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(32)
        self.queries = nn.Linear(32, 96)
        self.out = nn.Linear(32, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.norm(functional.gelu(self.convolution(images)).flatten(2).transpose(1, 2))
        heads = self.queries(tokens).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        result: torch.Tensor = self.out((tokens + mixed.transpose(1, 2).flatten(2)).mean(1))
        return result


class _Products(nn.Module):
    def __init__(self, size: int, times: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.register_buffer("matrix", torch.randn(size, size) / size**0.5)
        self._times = times

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        product: Any = self.matrix
        for _ in range(self._times):
            product = product @ self.matrix
        result: torch.Tensor = rows * self.weight + 0 * product.mean()
        return result


class _Greedy(nn.Module):
    def __init__(self, part: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self._part = part

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        weighted = rows * self.weight
        if self._part == "forward":
            _take(weighted)
        elif self._part == "backward":
            weighted.register_hook(_take)  # type: ignore[no-untyped-call]
        return weighted


def _take(tensor: torch.Tensor) -> None:
    """Allocates more memory than there is, on a tensor's device."""
    torch.empty(HUGE_BYTES, dtype=torch.uint8, device=tensor.device)


def _hungry(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer whose step runs out of memory."""
    optimizer = _sgd(parameters)
    optimizer.register_step_pre_hook(lambda stepped, *_: _take(stepped.param_groups[0]["params"][0]))
    return optimizer


class _Filling(Timed):
    def __init__(self, size_bytes: int) -> None:
        super().__init__(FILLING_SECONDS)
        self._size_bytes = size_bytes

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        size, device = self._size_bytes, rows.device
        filled = _kept(size) if device.type == "cpu" else torch.empty(size, dtype=torch.uint8, device=device)
        return super().forward(rows) + 0 * filled[-1:]


@functools.cache
def _kept(size_bytes: int) -> torch.Tensor:
    """Memory of a CPU: it counts once it is written to, and players of one process find it again."""
    return torch.ones(size_bytes, dtype=torch.uint8)


def plain_rate(device: str, step_ms: float, fetch_ms: float, *, seconds: float) -> float:
    """Samples per second of the timed workload in a plain loop, from one step's launch to another's."""
    workload = timed(step_ms, fetch_ms)
    model = workload.model.to(device)
    optimizer = _sgd(model.parameters())
    loader = DataLoader(workload.dataset, batch_size=BATCH)
    began = now = 0.0
    samples, warm = 0, time.perf_counter() + WARMUP_SECONDS
    for batch in loader:
        _squares(model, batch.to(device)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        if began:
            samples += len(batch)
            if now - began > seconds:
                break
        elif now > warm:
            began = now
    return samples / (now - began)


if __name__ == "__main__":
    for line in sys.argv[1:] or sys.stdin:
        request = json.loads(line)
        rates = [plain_rate(request["device"], *case, seconds=request["seconds"]) for case in request["cases"]]
        print(json.dumps(rates), flush=True)
