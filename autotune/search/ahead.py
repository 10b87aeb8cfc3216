"""What compiles while others play: where processors are to spare, that minute is not lost to the search."""

from __future__ import annotations

from collections.abc import Callable

from autotune.hardware import DeviceKind
from autotune.knobs import TrainConfig
from autotune.measuring import Point
from autotune.search.bursts import Bursts
from autotune.search.stages import Proposal
from autotune.search.stopping import compiled_alike

SPARE_CPUS = 4
"""A compiler beside a duet disturbs both sides alike, but should find processors that neither of them needs. Chosen."""
SIDES = 3
"""So many processes are alive then: the incumbent, a candidate, and what compiles."""


class Ahead:
    """Holds one proposal at most, whose process compiles beside the duets of others.

    Args:
        bursts: Starts it.
        cpus: Processors that may be used.
        device: The kind of device.
        memory_limit_bytes: Of all processes together; None: not known.
    """

    def __init__(self, bursts: Bursts, cpus: int, device: DeviceKind, memory_limit_bytes: int | None) -> None:
        self._bursts = bursts
        self._cpus, self._device, self._memory_limit_bytes = cpus, device, memory_limit_bytes
        self._held: Proposal | None = None

    def next(self, ask: Callable[[], Proposal | None]) -> Proposal | None:
        """What to run now: what has been compiled meanwhile, else what is asked for; None when there is nothing.

        What is asked for and takes long to compile is begun, and the next is asked for.

        Args:
            ask: The next proposal that may run, if there is one.
        """
        while not (self._held is not None and self._bursts.is_prepared):
            proposal = ask()
            if proposal is None:  # nothing else to do: it is waited for
                break
            if not self._may_compile_beside(proposal.point):
                return proposal
            self._bursts.prepare(proposal.point, proposal.stage)
            self._held = proposal
        held, self._held = self._held, None
        return held

    @property
    def is_compiling(self) -> bool:
        """Whether something compiles beside what runs."""
        return self._held is not None

    def refusal(self, point: Point) -> str | None:
        """Why a point must not run now: it compiles beside others, or would be a second one to do so."""
        if self._held is None:
            return None
        if point == self._held.point:
            return "it is being compiled"
        return "another config is being compiled" if self._takes_long(point) else None

    def _takes_long(self, point: Point) -> bool:
        """Whether a point compiles, and its code is not in the compiler's cache yet."""
        return point.config.compile_mode is not None and not compiled_alike(point.config, self._bursts.trials)

    def _may_compile_beside(self, point: Point) -> bool:
        best = self._bursts.log.incumbent()
        if best is None or not self._takes_long(point):
            return False
        measured = self._bursts.log.measurement(best.burst.point)
        taken = measured.device_memory_bytes if measured is not None else None
        fits = taken is None or self._memory_limit_bytes is None or SIDES * taken <= self._memory_limit_bytes
        return fits and self._bursts.side_by_side and self._spare_cpus(best.burst.point.config) >= SPARE_CPUS

    def _spare_cpus(self, config: TrainConfig) -> int:
        computing = 1 if self._device != "cpu" else config.num_threads or self._cpus
        return self._cpus - computing - config.num_workers
