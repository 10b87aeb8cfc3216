"""Records of a look at a script. The recorder, which runs inside the script, sends them as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.knobs import KNOBS

VARYING = 2
"""Steps are unequal amounts of work if one calls models more than this many times as often as another. Not tuned."""


@dataclass(frozen=True)
class SeenLoader:
    """A loader that feeds training, in the words of DataLoader.

    Attributes:
        key: The key by which the recorder finds it again.
        dataset: The class of its data set.
        samples: The length of the data set; None if it has none.
        iterable: Whether the data set is iterated, not indexed.
        own_batches: Whether the script makes its batches itself.
        own_iterator: Whether the loader's class makes its own iterator.
        arguments: The arguments of DataLoader that are plain values; ``batch_size`` is None if the script makes its
            batches.
        reads_batches: Whether whole batches are read at once.
        passed: Passes through such a loader before the pass in which training begins.
        begun_anew: Passes that began between steps before the previous one had ended.
        is_cycled: Whether `itertools.cycle` replays its first epoch.
        copied: Why copies of its data set in workers would not read what one process reads; None if nothing is seen.
        samplers: The classes of the script's own samplers.
        feedback: Why their indices cannot be drawn ahead; None if nothing is seen.
        keeps_samples: Whether the data set, read without workers, keeps what was read from it.
    """

    key: str
    dataset: str
    samples: int | None
    iterable: bool
    own_batches: bool
    own_iterator: bool
    arguments: dict[str, Any]
    reads_batches: bool
    passed: int
    begun_anew: int
    is_cycled: bool
    copied: str | None
    samplers: list[str]
    feedback: str | None
    keeps_samples: bool


@dataclass(frozen=True)
class SeenScript:
    """A script's training, as its first steps show it.

    Attributes:
        argv: The words that its file was run with.
        first_argv: The same when torch was imported: with ``python -m``, the file may still have been unknown.
        source: The places in its files that may be changed, from `recorder.sites`; see `facts.source_of`.
        processes: How many processes train, ranks included.
        ranks: The size of its process group.
        beside: How many processes were started along with the one that trains.
        thread: The script's own thread that draws batches ahead of training, if any.
        frameworks: The frameworks that it imports.
        cuda_opened: Whether it holds a CUDA context.
        fork_unsafe_reason: Why it could not be forked when its loader was first iterated; None if it could.
        seconds_to_loop: Time from its start until it trains.
        device: The device that it trains on.
        gpus: By rank, the UUIDs of the NVIDIA GPUs that it uses.
        threads: Threads of one operation on the CPU.
        default_threads: The same before the script began.
        loaders: The loaders that feed training, the most used first; empty: steps are counted.
        samples: The sizes of the first batches.
        facts: What `knobs.WorkloadFacts` takes as it is.
        step_samples: The size of a batch, where there is no loader.
        accumulation: Micro-batches of a step.
        draws_ahead: Whether all micro-batches of a step are drawn before the first is trained on.
        opens_group: Whether the script opens its process group itself.
        models: The keys by which the recorder finds the models again.
        model_names: Their classes.
        precision: The type that the script itself chooses to compute in; None: fp32.
        in_force: The values that torch has for knobs, as far as they can be read.
        compiled: Whether the script compiles.
        calls_unseen: Whether its models compute past torch's hooks, though nothing is compiled.
        step_calls: Calls of models in each step, where no loader feeds training.
        ddp: The arguments of its DistributedDataParallel; None without one.
        optimizers: How many optimizers step.
        optimizer: The class of the first one.
        updates_itself: Whether no optimizer of torch steps: the script changes its weights itself.
        evaluation_bytes: Bytes of the largest chunk that evaluation frees.
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
    gpus: list[list[str]]
    threads: int
    default_threads: int
    loaders: tuple[SeenLoader, ...]
    samples: list[int]
    facts: dict[str, Any]
    step_samples: int
    accumulation: int
    draws_ahead: bool
    opens_group: bool
    models: list[str]
    model_names: list[str]
    precision: str | None
    in_force: dict[str, Any]
    compiled: bool
    calls_unseen: bool
    step_calls: list[int]
    ddp: dict[str, Any] | None
    optimizers: int
    optimizer: str | None
    updates_itself: bool
    evaluation_bytes: int

    @property
    def chosen(self) -> dict[str, Any]:
        """The values that the script has set itself. Where the default is None, whatever torch has is no choice."""
        own = {name: (value, KNOBS[name].default) for name, value in self.in_force.items()}
        return {name: value for name, (value, default) in own.items() if default is not None and value != default}

    @property
    def steps_vary(self) -> bool:
        """Whether some steps hold far more work than others, for example where each is an episode."""
        return len(self.step_calls) > 1 and max(self.step_calls) > VARYING * min(self.step_calls)

    @property
    def used_gpus(self) -> list[str]:
        """UUIDs of all NVIDIA GPUs that train, each once."""
        return list(dict.fromkeys(uuid for of_rank in self.gpus for uuid in of_rank))

    @classmethod
    def of(cls, report: Mapping[str, Any], processes: int) -> SeenScript:
        """Makes the record from the recorder's report, and from the number of processes that train."""
        names = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in report.items() if name in names}
        loaders = tuple(SeenLoader(**loader) for loader in report["loaders"])
        return cls(**{**values, "loaders": loaders, "processes": processes})
