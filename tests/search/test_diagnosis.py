"""What limits the training, and the advice on what only its author can change."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.hardware.model import Peaks
from autotune.knobs.config import TrainConfig
from autotune.knobs.facts import WorkloadFacts
from autotune.measuring.memory_model import Line
from autotune.measuring.records import Block, Measurement, Profile, SampleCost, SamplePart, Synchronisation
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.search.diagnosis import Evidence, advise, copy_ceiling
from tests.factories import make_gpu, make_hardware
from tests.search.surface import make_facts


def measured(rate: float, wait: float = 0.0, **changes: Any) -> Measurement:
    """A second of training at a rate, of which a share was spent waiting."""
    return Measurement(
        blocks=(Block(samples=round(rate), seconds=1.0, data_wait_seconds=wait),), start_seconds=0.0,
        build_seconds=0.0, warmup_seconds=0.0, **changes,
    )  # fmt: skip


def test_the_copy_is_bounded_by_the_measured_bandwidth() -> None:
    """Batches of 64 samples and a megabyte, at a gigabyte a second to each rank's device."""
    peaks = Peaks(host_to_device_bytes_per_second=1e9)
    hardware = make_hardware(make_gpu(), peaks=peaks)
    facts = make_facts(batch_bytes=10**6)
    assert copy_ceiling(hardware, "cuda", facts) == pytest.approx(64_000)
    assert copy_ceiling(hardware, "cuda", facts, ranks=4) == pytest.approx(256_000)
    assert copy_ceiling(hardware, "cpu", facts) is None


def advice(wait: float = 0.0, *, ceilings: dict[str, float | None] | None = None, **changes: Any) -> str:
    """What is advised to a training of 1,000 samples/s, in one text."""
    fields = {
        name: changes.pop(name)
        for name in ("device", "memory_limit_bytes", "facts", "memory", "batch_is_free", "profile")
        if name in changes
    }
    evidence = Evidence(
        TrainConfig(batch_size=10, num_workers=2), measured(1000, wait, **changes), ceilings or {}, cpus=2, **fields
    )
    return "\n".join(advise(evidence))


def test_without_evidence_nothing_is_advised() -> None:
    """A training that waits for nothing and lacks nothing needs no advice."""
    assert advice(0.01, ceilings={"compute": 1020.0}, profile=Profile(), device="cuda") == ""


def padded(share: float | None, in_order: float | None = None) -> WorkloadFacts:
    """Facts of texts with a share of padding, and with less if batched by length."""
    return make_facts(padding_fraction=share, sorted_padding_fraction=in_order)


def test_padding_is_told_where_there_is_much() -> None:
    """With what computing it could cost at most; a tenth is the least."""
    assert "41 % of the tokens are padding" in advice(facts=padded(0.41))
    assert "up to 1.69×" in advice(facts=padded(0.41))
    assert advice(facts=padded(0.05)) == advice(facts=padded(None)) == ""


@pytest.mark.parametrize(
    ("in_order", "waits", "words"),
    [(0.2, 0.0, "could gain 1.33×"), (0.2, 0.5, "could gain 1.14×"), (0.39, 0.0, "")],
    ids=["computing", "half waits", "lengths alike"],
)
def test_sorting_by_length_gains_what_the_lengths_say(in_order: float, waits: float, words: str) -> None:
    """40 % of padding rather than 20 %; only of the time in which training computes."""
    text = advice(waits, facts=padded(0.4, in_order), ceilings={"compute": 1000.0})
    assert words in text
    assert bool(words) == ("and 20 % if" in text)


MIB = 2**20
LANGUAGE = make_facts(classes=2**15, score_bytes=64 * MIB)  # 512 tokens, or two chunks, in fp32


def test_a_fused_loss_is_advised_with_what_it_saves() -> None:
    """Three copies of ten samples' scores, without those of a chunk; the line of memory says what then fits."""
    text = advice(
        facts=LANGUAGE, device_memory_bytes=3000 * MIB, memory_limit_bytes=4200 * MIB,
        memory=Line(1000 * MIB, 200 * MIB, 0.0),
    )  # fmt: skip
    assert "1.88 GiB at its peak, 3 times its scores over 32,768 classes" in text
    assert "would save about 1.81 GiB of 2.93 GiB" in text
    assert "micro-batches of about 78 samples rather than 16" in text  # (4200 - 1000 - 64) / (0.2 * 200)


@pytest.mark.parametrize(
    ("facts", "changes"),
    [(LANGUAGE, {"compile_mode": "default"}), (make_facts(), {}), (make_facts(classes=10, score_bytes=40), {})],
    ids=["compiled with the loss", "no cross-entropy", "few classes"],
)
def test_no_fused_loss_where_it_saves_little(facts: WorkloadFacts, changes: dict[str, Any]) -> None:
    """Compiled code holds one copy or less."""
    config = TrainConfig(batch_size=10, **changes)
    assert advise(Evidence(config, measured(1000, device_memory_bytes=3000 * MIB), facts=facts)) == ()


@pytest.mark.parametrize(
    ("gain", "words"), [(1.5, "could gain 1.33×, ever larger ones up to 2.00×"), (1.1, ""), (None, "")]
)
def test_an_effective_batch_that_leaves_the_device_unused_is_named(gain: float | None, words: str) -> None:
    """By the rates of a whole step and of one with half of its samples; not where the search tries larger ones."""
    text = advice(profile=Profile(batch_gain=gain))
    assert words in text
    assert bool(words) == ("--effective-batch free" in text)
    assert advice(profile=Profile(batch_gain=gain), batch_is_free=True) == ""


def test_a_slow_sample_is_named_with_its_parts_and_the_gain() -> None:
    """Where training waits, its author learns what for, and what could be gained."""
    parts = (SamplePart(name="augment", where="data.py:40", seconds=0.011),)
    text = advice(0.5, ceilings={"compute": 2300.0}, profile=Profile(sample=SampleCost(seconds=0.014, parts=parts)))
    assert text == (
        "training waits for data 50 % of the time with 2 workers: one sample takes 14 ms, of which 11 ms in augment "
        "(data.py:40); without waiting it could reach up to 2.00× its speed"
    )


def test_computing_bounds_the_gain_of_a_loader_too() -> None:
    """Half of the time waiting: twice as fast at most, and no faster than computing alone."""
    assert "could reach up to 2.00× its speed" in advice(0.5)
    assert "could reach up to 1.50× its speed" in advice(0.5, ceilings={"compute": 1500.0})


def test_full_cpus_rule_more_workers_out() -> None:
    """Only cheaper samples help."""
    assert "more workers would gain nothing" in advice(0.4, telemetry=TelemetrySummary(seconds=1, cpu_fraction=0.99))
    assert "more workers gain nothing" not in advice(0.4, telemetry=TelemetrySummary(seconds=1, cpu_fraction=0.6))


def test_foreign_load_is_named_with_what_it_takes() -> None:
    """A fifth of the CPUs."""
    assert "up to 1.25×" in advice(telemetry=TelemetrySummary(seconds=1, foreign_cpu_fraction=0.2))


def test_short_epochs_are_named() -> None:
    """A loader that takes a tenth of a second to start, five times a second."""
    text = advice(epoch_samples=200, epoch_boundary_seconds=0.1)
    assert "100 ms an epoch" in text


@pytest.mark.parametrize(("used", "told"), [(98, True), (80, False)])
def test_memory_near_its_target_is_named(used: int, told: bool) -> None:
    """The next long sample may end the training."""
    assert ("nearly full" in advice(device_memory_bytes=used * 2**20, memory_limit_bytes=100 * 2**20)) is told


def test_allocator_retries_are_named() -> None:
    """They are waits that a smaller micro-batch avoids."""
    assert "asked again 3 times" in advice(telemetry=TelemetrySummary(seconds=1, allocator_retries=3))


def test_cuda_graphs_that_were_left_out_are_named() -> None:
    """A mode that asks for them falls back to launching each kernel, and says so only in a log."""
    assert "left out CUDA graphs 3 times" in advice(graph_breaks=0, recompiles=0, cudagraph_skips=3)
    assert "CUDA graphs" not in advice(graph_breaks=0, recompiles=0, cudagraph_skips=0)


def test_a_proof_on_a_card_that_throttled_is_advice_once() -> None:
    """In place of what a single measurement shows."""
    telemetry = TelemetrySummary(seconds=1.0, clock_limits=("hw_slowdown",), sm_clock_mhz=900.0)
    given = advise(Evidence(TrainConfig(), measured(1000, telemetry=telemetry), throttled="it throttled"))
    assert [line for line in given if "throttled" in line or "held down" in line] == ["it throttled"]


def test_graph_breaks_are_named() -> None:
    """With the way to find their lines."""
    assert "broke the graph 4 times" in advice(graph_breaks=4, recompiles=0)


def test_waits_for_the_gpu_are_named_by_line() -> None:
    """What removing them could gain is bounded by the share of time in which kernels run."""
    waits = (Synchronisation(operator="aten::_local_scalar_dense", where="train.py:31", calls=1),)
    profile = Profile(busy_fraction=0.5, synchronisations=waits)
    text = advice(device="cuda", profile=profile)
    assert "train.py:31" in text
    assert "up to 2.00×" in text
    assert "train.py" not in advice(device="cpu", profile=profile)
    assert "train.py" not in advice(device="cuda", profile=profile.model_copy(update={"busy_fraction": 0.97}))


def test_many_small_operators_are_named() -> None:
    """A GPU that idles although nobody waits for it."""
    assert "9,000 operators a step" in advice(device="cuda", profile=Profile(busy_fraction=0.3, operator_calls=9000))


@pytest.mark.parametrize(("seconds", "told"), [(0.1, True), (0.001, False)])
def test_emptying_the_cache_is_answered(seconds: float, told: bool) -> None:
    """Fifty batches of ten samples take half a second: a tenth of a second more is a sixth."""
    assert ("empty_cache()" in advice(device="cuda", profile=Profile(empty_cache_seconds=seconds))) is told


def test_clocks_that_are_held_down_are_named() -> None:
    """With the temperature."""
    telemetry = TelemetrySummary(
        seconds=1, clock_limits=("hw_thermal_slowdown",), sm_clock_mhz=1200, temperature_celsius=88
    )
    assert "1200 MHz at 88 °C" in advice(telemetry=telemetry, device="cuda")


def test_power_that_swings_while_the_gpu_waits_is_told() -> None:
    """A guide's own sign of starving."""
    swinging = TelemetrySummary(seconds=1, power_min_watts=60, power_max_watts=200)
    assert "swings between 60 and 200 W" in advice(0.5, device="cuda", telemetry=swinging)
    assert "swings" not in advice(0.5, telemetry=TelemetrySummary(seconds=1, power_min_watts=180, power_max_watts=200))
