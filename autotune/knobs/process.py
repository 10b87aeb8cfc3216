"""The knobs of the whole process: threads, memory allocator, cuDNN's search."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.knobs.config import Scalar
from autotune.knobs.context import Choices, SearchContext, offer
from autotune.knobs.knob import Knob
from autotune.recorder.effects import Effects
from autotune.torch_settings import in_force
from autotune.torch_settings.process_settings import let_cudnn_search, set_allocator, set_threads

_BESIDE_A_GPU = (1, 2, 4)
"""Threads of the CPU where a GPU trains. Beside an H100, torch's own number burned 61 % of 16 CPUs in one process,
whose rate varied from 175 to 295 samples/s. Not tuned."""
_BEFORE_TRAINING = "set for the process when training starts"


def _allocators(context: SearchContext) -> Choices | str:
    """How memory is allocated."""
    if context.device == "cuda":
        return Choices(("default", "tuned"), "expandable segments waste less memory, so that larger batches fit")
    if context.device != "cpu":
        return f"the allocator of {context.device} has nothing to tune"
    system = context.hardware.software.os.lower()
    if "linux" not in system and "glibc" not in system:
        return "only glibc's allocator on Linux can be tuned"
    return Choices(("default", "tuned"), "keeping large blocks saves a system call and page faults for each tensor")


def _preferred_allocator(context: SearchContext, _: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
    return ("tuned",) if context.device == "cpu" else ()


def _threads(context: SearchContext) -> Choices | str:
    """Threads of one operation on the CPU, where workers want cores as well."""
    cpu = context.hardware.cpu
    if cpu.budget == 1:
        return "torch already uses the one CPU that is usable"
    own = context.start.num_threads
    if context.device != "cpu":
        few: list[Scalar] = [own, *(count for count in _BESIDE_A_GPU if count < cpu.budget and count != own)]
        return offer(few, "a GPU computes, and threads that wait for small operations on the CPU take it from others")
    counts = {max(1, cpu.budget * quarters // 4) for quarters in (1, 2, 3, 4)}
    if own is None and cpu.physical_cores == cpu.budget:
        counts.discard(cpu.budget)  # torch uses them all by default
    values: list[Scalar] = [own, *sorted(counts - {own})]
    return offer(values, f"some of the {cpu.budget} usable CPUs may be better left to the workers")


def _preferred_threads(context: SearchContext, picked: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
    """One if operations are tiny, else the cores that workers leave: waiting threads take twice as long."""
    if context.device != "cpu":
        return ()
    if context.overhead_bound:
        return (1,)
    workers = int(picked.get("num_workers") or 0)
    return (max(1, context.hardware.cpu.budget - workers),) if workers else ()


def _cudnn_search(context: SearchContext) -> Choices | str:
    """Whether cuDNN searches for its fastest convolution."""
    if context.device != "cuda":
        return "cuDNN runs on NVIDIA GPUs only"
    if context.facts.deterministic:  # each start may find another algorithm the fastest
        return "the script asks for deterministic results"
    if not context.facts.convolves:
        return "no convolutions are seen whose algorithm cuDNN would search"
    if not context.facts.fixed_shapes:
        return "shapes vary from batch to batch, and cuDNN would search again for each"
    return Choices((False, True), "shapes are fixed, so cuDNN searches its algorithms once")


KNOBS = (
    Knob(
        name="num_threads", scope="live", while_training="neutral", when="two CPUs or more",
        why="with fewer threads of an operation, workers have cores of their own, and tiny operations do not wait",
        candidates=_threads, prefers=_preferred_threads, priority={"gpu": 140, "cpu": 60}, guide=130, scale="linear",
        part="both",  # workers compete with computing for cores
        affects={"host memory", "compiled code", "cores"},
        on_process=set_threads, reads=in_force.threads, without_word=_BEFORE_TRAINING,
    ),
    Knob(
        name="allocator", scope="process", when="on the CPU with glibc",
        why="blocks that are kept save a system call and page faults for each tensor; expandable segments waste less",
        candidates=_allocators, prefers=_preferred_allocator, priority={"gpu": 130, "cpu": 10}, guide=140,
        affects={"memory", "host memory"}, devices={"cpu", "cuda"},
        on_process=set_allocator, reads=in_force.allocator, shows=Effects.allocates, starts_as_read=True,
        without_word=_BEFORE_TRAINING,
        trials={"tuned": {"cpu", "cuda"}},
    ),
    Knob(
        name="cudnn_benchmark", scope="process",  # cuDNN keeps the plan of each convolution that the process has run
        when="the model convolves, shapes are fixed, and results need not be deterministic",
        why="cuDNN tries its algorithms for each convolution, once, and keeps the fastest",
        candidates=_cudnn_search, prefers=(True,), priority={"gpu": 110}, guide=20,
        affects={"arithmetic"}, devices={"cuda"}, words={"lightning": ("benchmark",)},
        written={"lightning": lambda on, _: {"benchmark": on}},
        on_process=let_cudnn_search, reads=in_force.cudnn_search, starts_as_read=True, without_word=_BEFORE_TRAINING,
        trials={True: {"cuda", "rocm"}},
    ),
)  # fmt: skip
