"""A look at a script: it trains a few steps as it is, and tells which loop was seen."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from time import perf_counter, process_time, time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import hooks, keeping
from .blocks import count_blocks
from .ending import BurstEnded, end_burst, first_line
from .naming import (
    batches_of,
    class_of,
    is_own_batch_sampler,
    length_of,
    loader_key,
    model_key,
    shapes_hash,
    tensors_in,
)
from .sites import Sites
from .stream import Watched, count_of
from .wire import Wire

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

STEPS, SECONDS, FEWEST_STEPS = 6, 4.0, 3
"""Of the optimizer that steps first: so many, or fewer where they take long."""
SMALL_OPERATOR_MICROSECONDS = 20.0
"""Below, an operator is mostly what calling it costs."""
SAMPLE_SECONDS, MOST_SAMPLES = 0.3, 16


def begin(orders: dict[str, Any]) -> None:
    """Looks on while the script trains, and tells the parent; its end, too, should it never train."""
    Look(orders)


class Look:
    """What was seen so far.

    Args:
        orders: ``socket``: the parent's; ``keep``: the folder that what the script writes is told in.
    """

    def __init__(self, orders: dict[str, Any]) -> None:
        self._wire = Wire.to(orders["socket"])
        self._began = time()
        self._loaders: dict[int, Any] = {}
        self._iterated: Counter[str] = Counter()
        self._passed: dict[int, int] = {}
        self._draws: list[tuple[int, int]] = []  # of what, how many samples; since the first step began
        self._batches: list[list[tuple[int, ...]]] = []
        self._models: dict[int, Any] = {}
        self._optimizers: dict[int, Any] = {}
        self._steps: list[int] = []
        self._marks: list[int] = []  # draws at each step of the optimizer that steps first
        self._first_step = 0.0
        self._facts: dict[str, Any] = {"precision": None, "images": False, "attention": False, "thread": None}
        self._profile: Any = None
        self._sites = Sites()
        self._forwards = 0
        self._done = False
        keeping.keep(orders["keep"])
        hooks.on_iterate(self._on_iterate)
        hooks.on_step(lambda _: None, self._on_step)
        self._end_of_forwards = hooks.on_outermost_forward(self._on_forward)
        self._watch_attention()
        self._tell_of_end()

    def _on_iterate(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any]:
        import torch

        key = loader_key(loader)
        if torch.is_grad_enabled():
            self._passed.setdefault(id(loader), self._iterated[key])
            self._iterated[key] += 1
        self._loaders[id(loader)] = loader
        return Watched(iterate(loader), lambda batch: self._on_draw(loader, batch))

    def _on_draw(self, loader: DataLoader[Any], batch: Any) -> None:
        import torch

        if not torch.is_grad_enabled() or self._done:
            return
        if threading.current_thread() is not threading.main_thread():
            self._facts["thread"] = threading.current_thread().name
        samples = count_of(batch)
        self._draws.append((id(loader), samples))
        tensors = list(tensors_in(batch))
        self._facts["images"] |= any(tensor.dim() == 4 for tensor in tensors)
        self._facts["batch_bytes"] = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self._batches.append([tuple(tensor.shape) for tensor in tensors])
        if len(self._marks) == 2:
            self._start_profile()
        elif self._profile is not None:
            self._end_profile()
        if self._steps and self._is_enough():
            self._finish()

    def _on_forward(self, model: Any, arguments: tuple[Any, ...]) -> None:
        import torch

        self._forwards += 1
        if not torch.is_grad_enabled():
            return
        self._models[id(model)] = model
        self._sites.on_forward(model)
        self._facts["images"] |= any(tensor.dim() == 4 for tensor in tensors_in(arguments))
        if not self._loaders:
            tensor = next((one for one in tensors_in(arguments) if one.dim()), None)
            self._facts["step_samples"] = int(tensor.shape[0]) if tensor is not None else 1
        device = next((weight.device.type for weight in model.parameters()), "cpu")
        self._facts["device"] = device
        if (casts_to := autocast_dtype(device)) is not None:
            self._facts["precision"] = casts_to
        weight = next(model.parameters(), None)
        if weight is not None and weight.dtype in {torch.bfloat16, torch.float16}:
            self._facts["precision"] = str(weight.dtype).removeprefix("torch.")
        compiled = getattr(model, "_compiled_call_impl", None) is not None
        if compiled or type(model).__name__ == "OptimizedModule":
            self._facts["compiled"] = True

    def _on_step(self, optimizer: Optimizer) -> None:
        if self._done:
            return
        if not self._steps:
            self._first_step = perf_counter()
        self._optimizers[id(optimizer)] = optimizer
        self._steps.append(id(optimizer))
        if id(optimizer) == self._steps[0]:
            self._marks.append(len(self._draws))
        if not self._draws and self._is_enough():
            self._finish()

    def _is_enough(self) -> bool:
        count = len(self._marks)
        slow = perf_counter() - self._first_step > SECONDS
        return self._profile is None and (count >= STEPS or (slow and count >= FEWEST_STEPS))

    def _start_profile(self) -> None:
        import torch

        with contextlib.suppress(Exception):
            self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            self._profile.__enter__()

    def _end_profile(self) -> None:
        profile, self._profile = self._profile, None
        with contextlib.suppress(Exception):
            profile.__exit__(None, None, None)
            times = [event.self_cpu_time_total for event in profile.events()]
            self._facts["small_operators_fraction"] = small_fraction(times)

    def _watch_attention(self) -> None:
        import torch

        original = torch.nn.functional.scaled_dot_product_attention

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._facts["attention"] = True
            return original(*args, **kwargs)

        torch.nn.functional.scaled_dot_product_attention = watched

    def _finish(self) -> None:
        """Enough was seen: tells it, and leaves the script."""
        self._done = True
        self._end_of_forwards()
        self._wire.send("result", value=self._seen())
        end_burst()

    def _seen(self) -> dict[str, Any]:
        import torch

        between = self._draws[self._marks[0] : self._marks[-1]] if self._marks else []
        rounds = max(1, len(self._marks) - 1)
        feeding = Counter(loader for loader, _ in between or self._draws[: self._marks[0] if self._marks else 0])
        loaders = [self._loaders[one] for one, _ in feeding.most_common()] if between else []
        main = loaders[0] if loaders else None
        draws = sum(1 for loader, _ in between if main is not None and loader == id(main))
        samples = [count for loader, count in between if main is not None and loader == id(main)]
        per_optimizer = Counter(self._steps)
        models = list(self._models.values())
        first = self._optimizers[self._steps[0]] if self._steps else None
        sample_seconds, wait_fraction = _reading(main)
        return {
            "device": "cpu",
            "compiled": False,
            "small_operators_fraction": 0.0,
            "batch_bytes": 0,
            "step_samples": 1,
            **self._facts,
            "pid": os.getpid(),
            "argv": sys.argv,
            "seconds_to_loop": self._seconds_to_loop,
            "steps": len(self._marks),
            "optimizers": len(per_optimizer),
            "optimizer": type(first).__name__ if first is not None else None,
            "optimizer_impls": _implementations(first),
            "accumulation": max(1, round(draws / rounds)),
            "samples": samples[:20],
            "loaders": [self._described(loader) for loader in loaders],
            "models": [model_key(model) for model in models],
            "model_names": [type(model).__name__ for model in models],
            "tensors": sum(1 for model in models for _ in model.parameters()),
            "weights": sum(weight.numel() for model in models for weight in model.parameters()),
            "shapes": shapes_hash(*models),
            "blocks": sum(count_blocks(model) for model in models),
            "recomputable_blocks": sum(count_blocks(model, recomputable=True) for model in models),
            "fixed_shapes": len({str(shapes) for shapes in self._batches[1:]}) <= 1,
            "sample_seconds": sample_seconds,
            "sample_wait_fraction": wait_fraction,
            "ranks": int(os.environ.get("WORLD_SIZE", "1")),
            "threads": torch.get_num_threads(),
            "source": self._sites.told(loaders, [self._optimizers[one] for one in per_optimizer], models),
            "frameworks": [name for name in ("lightning", "transformers", "accelerate") if name in sys.modules],
            "torch": str(torch.__version__),
            "torchao": importlib.util.find_spec("torchao") is not None,
            "python": sys.version.split()[0],
            "executable": sys.executable,
            "cuda_opened": torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
        }

    @property
    def _seconds_to_loop(self) -> float:
        return time() - self._began

    def _described(self, loader: Any) -> dict[str, Any]:
        """A loader, in the words of DataLoader."""
        from torch.utils.data import IterableDataset

        dataset = loader.dataset
        iterable = isinstance(dataset, IterableDataset)
        size = None if is_own_batch_sampler(loader) else batches_of(loader)[1]
        return {
            "key": loader_key(loader),
            "passed": self._passed.get(id(loader), 0),
            "dataset": class_of(dataset),
            "samples": length_of(dataset),
            "iterable": iterable,
            "own_batches": is_own_batch_sampler(loader) or size is None,
            "batch_size": size,
            "num_workers": loader.num_workers,
            "prefetch_factor": loader.prefetch_factor,
            "pin_memory": bool(loader.pin_memory),
            "persistent_workers": bool(loader.persistent_workers),
            "in_order": bool(getattr(loader, "in_order", True)),
            "reads_batches": iterable or hasattr(dataset, "__getitems__"),
        }

    def _tell_of_end(self) -> None:
        """Should the script end before it has trained, the parent hears what was seen."""
        former = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if isinstance(error, BurstEnded) or self._done:
                os._exit(0)
            former(kind, error, trace)
            sys.stderr.flush()
            self._wire.send("ended", error=f"{kind.__name__}: {first_line(error)}", **self._outline())

        def ended() -> None:
            if self._done:
                os._exit(0)
            self._wire.send("ended", error=None, **self._outline())

        sys.excepthook = hook
        atexit.register(ended)

    def _outline(self) -> dict[str, Any]:
        return {
            "steps": len(self._steps),
            "forwards": self._forwards,
            "draws": len(self._draws),
            "loaders": len(self._loaders),
            "seen": self._seen() if len(self._marks) >= 2 else None,
        }


def small_fraction(times: list[float]) -> float:
    """The share of the operators' time, in microseconds each, that goes to small ones."""
    small = sum(time for time in times if time < SMALL_OPERATOR_MICROSECONDS)
    return small / sum(times) if small else 0.0


def autocast_dtype(device: str) -> str | None:
    """The type that a device computes in under the script's own autocast; None without one."""
    import torch

    try:
        on, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    except (TypeError, AttributeError):  # torch before 2.4
        on = torch.is_autocast_enabled() if device == "cuda" else torch.is_autocast_cpu_enabled()
        dtype = torch.get_autocast_gpu_dtype() if device == "cuda" else torch.get_autocast_cpu_dtype()
    return str(dtype).removeprefix("torch.") if on else None


def _reading(loader: Any) -> tuple[float, float]:
    """Seconds to read a sample, and the share of them in which no processor computed."""
    dataset: Any = getattr(loader, "dataset", None)
    length = length_of(dataset)
    if not length or not hasattr(dataset, "__getitem__"):
        return 1e-4, 1.0
    began, worked, read = perf_counter(), process_time(), 0
    try:
        while read < min(length, MOST_SAMPLES) and perf_counter() - began < SAMPLE_SECONDS:
            dataset.__getitem__((read * 7919) % length)
            read += 1
    except Exception:  # noqa: BLE001 - a data set that is read by lists of indices, say
        return 1e-4, 1.0
    seconds = max(perf_counter() - began, 1e-9)
    return seconds / max(1, read), min(1.0, max(0.0, 1 - (process_time() - worked) / seconds))


def _implementations(optimizer: Optimizer | None) -> list[str]:
    """Forms that an optimizer accepts, as it was made."""
    import torch

    if optimizer is None:
        return []
    found: list[str] = [form for form in ("foreach", "fused") if form in optimizer.defaults]
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    unfit = optimizer.defaults.get("differentiable") or not all(torch.is_floating_point(weight) for weight in weights)
    return [] if unfit else found
