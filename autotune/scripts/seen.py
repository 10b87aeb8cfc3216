"""What a look at a script has seen, as records: the recorder, which runs inside the script, tells it as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VARYING = 2
"""Times as many calls of models as in another step, from which on steps are no equal amounts of work. Chosen."""


@dataclass(frozen=True)
class SeenLoader:
    """A loader that feeds training, in the words of DataLoader.

    Attributes:
        key: By which it is known again.
        dataset: Its class.
        samples: Of the data set; None where it has no length.
        iterable: Whether the data set is iterated, not indexed.
        own_batches: Whether the script makes its batches itself.
        own_iterator: Whether its class makes the iterator itself.
        batch_size: Of its batches; None where the script makes them.
        num_workers: As given.
        prefetch_factor: As given.
        pin_memory: As given.
        persistent_workers: As given.
        in_order: As given.
        reads_batches: Whether whole batches are read at once.
        passed: Passes through one like it before the one that training begins in.
        begun_anew: Passes that began between steps when the one before had not come to its end.
        is_cycled: Whether `itertools.cycle` replays its first epoch.
        keeps_samples: Whether the data set, read without workers, keeps what was read from it.
    """

    key: str
    dataset: str
    samples: int | None
    iterable: bool
    own_batches: bool
    own_iterator: bool
    batch_size: int | None
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    in_order: bool
    reads_batches: bool
    passed: int
    begun_anew: int
    is_cycled: bool
    keeps_samples: bool


@dataclass(frozen=True)
class SeenScript:
    """A script's training, as its first steps show it.

    Attributes:
        argv: The words that its file was run with.
        first_argv: The same as torch was imported: of ``python -m`` the file may not have been known yet.
        source: Where its files say what may be changed, as `recorder.sites` tells it; see `facts.source_of`.
        processes: That train; ranks among them.
        ranks: Of its process group.
        beside: Processes that were started along with the one that trains.
        thread: Of the script's own, that draws batches ahead of training.
        frameworks: That are imported.
        cuda_opened: Whether it holds a CUDA context.
        fork_unsafe_reason: Why it could not be forked as its loader was iterated for the first time; None: it could.
        seconds_to_loop: From its start until it trains.
        device: That it trains on.
        threads: Of one operation on the CPU.
        default_threads: The same before the script began.
        loaders: That feed training, the one that is drawn from most first; none: steps are counted.
        samples: Of the first batches.
        batch_bytes: Of a batch.
        pass_bytes: That a micro-batch moves at least, but for its samples.
        update_bytes: That a step of the optimizer moves at least.
        padding_fraction: Of the tokens of the first batches; None: they do not show it.
        sample_seconds: To read a sample.
        sample_wait_fraction: Of that, in which no processor computed.
        images: Whether weights have four dimensions.
        fixed_shapes: Whether all batches have one shape.
        step_samples: Of a batch that no loader told of.
        accumulation: Micro-batches of a step.
        draws_ahead: Whether all of a step's are drawn before one is trained on.
        opens_group: Whether the script opens its process group itself.
        models: By which they are known again.
        model_names: Their classes.
        tensors: Of weights.
        weights: In them.
        shapes: Hash of the weights' shapes.
        blocks: Alike blocks that hold most of the weights.
        recomputable_blocks: Those whose forward may run twice.
        attention: Whether torch's attention was called.
        small_operators_fraction: Of a step's time, in operators that take next to none.
        precision: Type that the script computes in by itself; None: fp32.
        chosen: What it has told torch besides, by knob.
        compiled: Whether the script compiles.
        calls_unseen: Whether its models compute past torch's hooks, though nothing is compiled.
        step_calls: Calls of models in each step, where no loader feeds training.
        ddp: How its gradients are exchanged, in DistributedDataParallel's arguments; None: not by that.
        optimizers: That step, in number.
        optimizer: The class of the first.
        optimizer_impls: Forms that it accepts.
        updates_itself: Whether no optimizer of torch steps: the script changes its weights itself.
        evaluation_bytes: Of the largest chunk that evaluation frees.
        torchao: Whether it is installed there.
    """

    argv: list[str]
    first_argv: list[str]
    source: dict[str, Any]
    processes: int
    ranks: int
    beside: int
    thread: str | None
    frameworks: list[str]
    cuda_opened: bool
    fork_unsafe_reason: str | None
    seconds_to_loop: float
    device: str
    threads: int
    default_threads: int
    loaders: tuple[SeenLoader, ...]
    samples: list[int]
    batch_bytes: int
    pass_bytes: int
    update_bytes: int
    padding_fraction: float | None
    sample_seconds: float
    sample_wait_fraction: float
    images: bool
    fixed_shapes: bool
    step_samples: int
    accumulation: int
    draws_ahead: bool
    opens_group: bool
    models: list[str]
    model_names: list[str]
    tensors: int
    weights: int
    shapes: str
    blocks: int
    recomputable_blocks: int
    attention: bool
    small_operators_fraction: float
    precision: str | None
    chosen: dict[str, Any]
    compiled: bool
    calls_unseen: bool
    step_calls: list[int]
    ddp: dict[str, Any] | None
    optimizers: int
    optimizer: str | None
    optimizer_impls: list[str]
    updates_itself: bool
    evaluation_bytes: int
    torchao: bool

    @property
    def steps_vary(self) -> bool:
        """Whether some steps hold far more work than others, as where each is an episode."""
        return len(self.step_calls) > 1 and max(self.step_calls) > VARYING * min(self.step_calls)

    @classmethod
    def of(cls, told: Mapping[str, Any], processes: int) -> SeenScript:
        """What the recorder told of a look, in which so many processes trained."""
        names = {field.name for field in dataclasses.fields(cls)}
        known = {name: value for name, value in told.items() if name in names}
        loaders = tuple(SeenLoader(**loader) for loader in told["loaders"])
        return cls(**{**known, "loaders": loaders, "processes": processes})
