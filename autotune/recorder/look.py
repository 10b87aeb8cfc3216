"""A look at a script: it trains a few steps unchanged, reports its loop to the parent, and ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..sandbox.inside import begin_training, watch_reading
from ..timing.devices import uuids
from ..timing.failing import sentence_of
from ..timing.wire import Wire
from . import hooks
from .batches import Watched
from .ending import at_end, end_burst, give_up, has_ended, rest_in_the_end
from .observer import Observer
from .order import seed_start
from .ranks import Meeting, this_rank
from .saving import leave_out_checkpoints

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

LATE_SHARE = 0.5
"""Share of a look's time limit after which fewer steps are enough: one more may take as long again. Not tuned."""


def begin(orders: dict[str, Any]) -> None:
    """Observes the script while it trains, and reports to the parent; also its end, if it never trains."""
    Look(orders)


class Look:
    """A thorough observer in a seeded script, which saves no checkpoints, and ends when enough is seen.

    Args:
        orders: ``socket``: the parent's; ``port``: where ranks may meet; ``seconds``: time limit of the look;
            ``reads``: see `Observer`;
            ``sandbox``, ``shared``: see `arrival`.
    """

    def __init__(self, orders: dict[str, Any]) -> None:
        self._socket, self._process_id = orders["socket"], os.getpid()
        self._wire = Wire.to(self._socket)
        self._wire.send("imported")
        self._any_network, self._shared = orders["sandbox"]["any_network"], orders["shared"]
        watch_reading(lambda host: self._wire.send("reads", host=host))
        seed_start()
        leave_out_checkpoints()
        Meeting(orders["port"])
        hooks.on_iterate(self._on_iterate)
        self._observer = Observer(
            self._finish,
            lambda error: give_up(self._wire, error),
            self._on_step,
            is_thorough=True,
            reads=orders["reads"],
            late_seconds=LATE_SHARE * orders["seconds"],
        )
        at_end(self._report_end)

    def _on_iterate(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any]:
        return Watched(iterate(loader), self._on_draw)

    def _on_draw(self, _: Any) -> None:
        """Ends a script again that has caught its end and continues to draw."""
        if has_ended() and torch.is_grad_enabled():
            end_burst()

    def _on_step(self, steps: int) -> None:
        if steps == 1:
            if os.getpid() != self._process_id:  # the script trains in a process that it has forked
                self._wire, self._process_id = Wire.to(self._socket), os.getpid()
            self._begin_training()
        self._wire.send("training", pid=os.getpid(), steps=steps, rank=this_rank(), gpus=uuids())

    def _begin_training(self) -> None:
        """Reports that start-up is over; connections are restricted from here on."""
        self._wire.send("begins")
        begin_training(self._shared, any_network=self._any_network)

    def _finish(self, seen: dict[str, Any]) -> None:
        """Reports what was seen, and leaves the script."""
        rest_in_the_end(self._wire)
        self._wire.send("result", value=seen)
        end_burst()

    def _report_end(self, error: BaseException | None) -> None:
        """Reports to the parent that the script ends before enough is seen."""
        message = sentence_of(error) if error is not None else None
        self._wire.send("ended", error=message, **self._outline())

    def _outline(self) -> dict[str, Any]:
        counts, seen = self._observer.counts, None
        with contextlib.suppress(Exception):  # the script's own end is reported in any case
            seen = self._observer.seen()
        return {**counts, "seen": seen}
