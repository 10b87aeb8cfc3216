"""What a job sets up before it trains."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from autotune.bursts.hosts.protocol import PipeReporter, Request
from autotune.bursts.jobs import prepared as preparing
from autotune.bursts.jobs.prepared import CompilerWatch, prepared
from autotune.training.tuned import Tuned


class Pretended(Tuned):
    """A config on a device that this machine lacks."""

    def __init__(self, *args: Any, device: str) -> None:
        super().__init__(*args)
        self.device = torch.device(device)

    def apply_process_settings(self) -> None:
        """Changes nothing."""


@pytest.mark.parametrize(("device", "tunes"), [("cpu", True), ("cuda", False)])
def test_only_a_cpus_players_need_a_steady_malloc(device: Any, tunes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, the allocator is a knob, which a host must not turn for all that it plays."""
    tuned: list[torch.device] = []
    monkeypatch.setattr(preparing, "Tuned", Pretended)
    monkeypatch.setattr(preparing, "tune_allocator", tuned.append)
    request = Request(job="host", import_as="tests.workloads.tiny:build", device=device, steady_malloc=True)
    with prepared(request, PipeReporter(io.BytesIO())):
        assert bool(tuned) is tunes


def test_what_is_compiled_for_another_player_is_not_counted() -> None:
    """Also a function that the other one has compiled already: for the second player it is the first time."""

    @torch.compile(backend="eager", dynamic=False)
    def scaled(tensor: torch.Tensor, by: float) -> torch.Tensor:
        torch._dynamo.graph_break()
        return tensor * by

    counts = []
    for factors in ((1.0, 2.0), (3.0,), ()):
        watch = CompilerWatch()
        watch.begin()
        for factor in factors:
            scaled(torch.ones(2), factor)
        watch.end()
        counts.append(watch.counts())
    first, second, third = counts
    assert (first["graph_breaks"] or 0) > 0
    assert (first["recompiles"] or 0) > 0
    assert second["recompiles"] == 0
    assert third == {"graph_breaks": 0, "cudagraph_skips": 0, "recompiles": 0}
