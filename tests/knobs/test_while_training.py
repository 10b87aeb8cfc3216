"""What a training may try while it runs: the class of each knob, and the candidates for what a training reports."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.hardware import Hardware
from autotune.knobs import KNOBS, LiveFacts, TrainConfig, allowed_knobs, can_share_process, live_candidates
from autotune.knobs.knob import ByLeave
from tests.spaces import cpu_machine, gpu_machine

LOADER: dict[str, Any] = {
    "samples": 1000, "iterable": False, "arguments": {"batch_size": 32, "num_workers": 0, "prefetch_factor": None},
}  # fmt: skip
FACTS: dict[str, Any] = {
    "device": "cpu", "cpus": 2, "threads": 2, "loader": LOADER, "forms": ["foreach", "fused"], "form": "default",
    "step_seconds": 0.1, "wait_share": 0.5, "batch_bytes": 10**6,
}  # fmt: skip
WORKING = {**LOADER, "arguments": {**LOADER["arguments"], "num_workers": 2, "prefetch_factor": 2}}


def test_what_each_knob_does_to_a_training_that_runs() -> None:
    """Stated on the knob; by leave with a sentence, and what is not named no such training can take."""
    assert {name for name, knob in KNOBS.items() if knob.while_training == "neutral"} == {
        "num_workers", "prefetch_factor", "pin_memory", "non_blocking", "num_threads", "optimizer_impl",
        "sdpa_backend", "memory_format",
    }  # fmt: skip
    by_leave = {name: knob.while_training for name, knob in KNOBS.items() if isinstance(knob.while_training, ByLeave)}
    assert by_leave.keys() == {"precision", "compile_mode", "dataloader_in_order"}
    assert all(isinstance(one, ByLeave) and len(one.changes.split()) > 3 for one in by_leave.values())


@pytest.mark.parametrize(
    ("machine", "changes", "first"),
    [
        pytest.param(
            cpu_machine(), {}, ["num_workers=1 prefetch_factor=2", "num_workers=1 prefetch_factor=4", "num_threads=1"],
            id="waits",
        ),
        pytest.param(
            cpu_machine(), {"wait_share": 0.9}, ["num_workers=2 prefetch_factor=2", "num_workers=2 prefetch_factor=4"],
            id="waits most of the time",
        ),
        pytest.param(
            cpu_machine(), {"wait_share": 0.0}, ["num_threads=1", "optimizer_impl=fused", "optimizer_impl=foreach"],
            id="does not wait",
        ),
        pytest.param(
            cpu_machine(), {"wait_share": 0.05}, ["num_threads=1", "optimizer_impl=fused"], id="waits hardly"
        ),
        pytest.param(
            cpu_machine(), {"wait_share": 0.0, "loader": WORKING, "forms": []},
            ["num_threads=1", "num_workers=1", "num_workers=0 prefetch_factor=None"], id="idle workers",
        ),
        pytest.param(cpu_machine(), {"threads": 1, "loader": None, "forms": []}, ["num_threads=2"], id="one thread"),
        pytest.param(
            cpu_machine(), {"threads": 2, "cpus": 2, "loader": None, "forms": [], "convolves": [2]},
            ["memory_format=channels_last", "num_threads=1"], id="images",
        ),
        pytest.param(
            cpu_machine(), {"form": "fused", "loader": None, "threads": 1, "cpus": 1}, ["optimizer_impl=foreach"],
            id="fused already",
        ),
        pytest.param(
            gpu_machine(),
            {"device": "cuda", "cpus": 6, "fixed_shapes": True, "convolves": [2], "left": {"memory_format": "kept"}},
            ["num_workers=4 prefetch_factor=2", "pin_memory=True", "num_workers=4 prefetch_factor=4",
             "optimizer_impl=fused"],
            id="gpu that waits",
        ),
        pytest.param(
            gpu_machine(), {"device": "cuda", "wait_share": 0.0}, ["optimizer_impl=fused", "num_threads=1"],
            id="busy gpu",
        ),
        pytest.param(
            cpu_machine(), {"device": "cuda", "wait_share": 0.0},
                ["optimizer_impl=fused", "num_threads=1", "pin_memory=True"],
            id="gpu that no driver tells of",
        ),
        pytest.param(
            cpu_machine(), {"left": {"num_workers": "iterable", "num_threads": "it compiles"}},
            ["optimizer_impl=fused", "optimizer_impl=foreach"], id="left alone",
        ),
    ],
)  # fmt: skip
def test_the_most_promising_candidates_come_first(machine: Hardware, changes: dict[str, Any], first: list[str]) -> None:
    """One knob with what goes with it; none is what the training has already."""
    found = live_candidates(LiveFacts(**{**FACTS, **changes}), machine)
    names = [
        " ".join(f"{knob}={now}" for knob, (_, now) in config.changes_from(found.baseline).items())
        for config in found.configs
    ]
    assert names[: len(first)] == first
    assert len(set(names)) == len(names)


def test_a_training_that_waits_tries_several_numbers_of_workers_up_to_the_cpus() -> None:
    """The fewest that read as fast as it trains come first, then the neighbours of that."""
    found = live_candidates(LiveFacts(**{**FACTS, "cpus": 6, "wait_share": 0.65}), cpu_machine())
    workers = [config.num_workers for config in found.configs if config.num_workers and config.prefetch_factor == 2]
    assert workers == [2, 4, 1, 6]


def test_cudnns_search_needs_another_process() -> None:
    """CuDNN keeps the plan of each convolution that ran: switching the search in a process changes nothing."""
    assert not can_share_process(TrainConfig(cudnn_benchmark=True), TrainConfig())
    facts = {**FACTS, "device": "cuda", "cpus": 6, "fixed_shapes": True, "convolves": [2]}
    assert not any(config.cudnn_benchmark for config in live_candidates(LiveFacts(**facts), gpu_machine()).configs)


def test_what_is_left_alone_has_a_reason() -> None:
    """The training's own, or that of the knob's rule."""
    left = live_candidates(LiveFacts(**{**FACTS, "cpus": 1, "left": {"num_workers": "iterable"}}), cpu_machine()).left
    assert left["num_workers"] == "iterable"
    assert left["num_threads"] == "torch already uses the one CPU that is usable"
    assert "pin_memory" not in left


@pytest.mark.parametrize(
    ("allowed", "changes", "tried"),
    [
        ("", {}, set()),
        ("precision", {}, {"bf16", "tf32"}),
        ("precision", {"left": {"precision": "the script chooses its precision itself"}}, set()),
    ],
)
def test_what_is_learned_changes_only_by_leave(allowed: str, changes: dict[str, Any], tried: set[str]) -> None:
    """Precision is tried where the user allows it, and where the script does not choose its own."""
    facts = {**FACTS, "device": "cuda", "wait_share": 0.0, "allowed": allowed_knobs(allowed), **changes}
    found = live_candidates(LiveFacts(**facts), gpu_machine())
    assert {config.precision for config in found.configs} - {found.baseline.precision} == tried


@pytest.mark.parametrize(
    ("allowed", "changes", "reason"),
    [
        ("compile_mode,precision", {}, None),
        ("", {}, None),
        ("compile_mode", {"device": "cpu", "packages": []}, "a C++ compiler"),
        ("compile_mode", {"left": {"compile_mode": "its batches differ"}}, "its batches differ"),
    ],
)
def test_compiling_is_tried_last(allowed: str, changes: dict[str, Any], reason: str | None) -> None:
    """By leave, in the default mode alone: compiled code depends on most of the others."""
    facts = {**FACTS, "device": "cuda", "cpus": 6, "fixed_shapes": True, "packages": ["triton"], **changes}
    found = live_candidates(LiveFacts(**facts, allowed=allowed_knobs(allowed)), gpu_machine())
    is_tried = "compile_mode" in allowed and reason is None
    assert [config.compile_mode for config in found.configs if config.is_compiled] == ["default"] * is_tried
    assert found.configs[-1].is_compiled is is_tried
    assert (reason or "") in found.left.get("compile_mode", "")


@pytest.mark.parametrize("name", ["dataloader_in_order", "memory_format", "num_workers", "colour"])
def test_leave_for_anything_else_is_refused(name: str) -> None:
    """A layout may make the training fail; neutral settings need no leave."""
    with pytest.raises(UsageError, match=rf"--allow: expected names among .*precision.*, got {name}; pass these"):
        allowed_knobs(f"precision,{name}")
