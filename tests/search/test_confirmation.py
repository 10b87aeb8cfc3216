"""The end of a search, on a made-up surface with a virtual clock: the race, the answer, the worth of each change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.errors import Interrupted
from autotune.knobs.config import TrainConfig
from autotune.measuring.numerics import Agreement, NumericsGuard, Trace
from autotune.measuring.records import Burst, Outcome, Point
from autotune.results.result import CONFIRM, PROVING, UNINTERRUPTED
from autotune.search.proposal import BUNDLE, Proposal
from autotune.search.stopping import FINISHING_SECONDS, PROFILE_MAX_SECONDS, Budget
from autotune.sessions.tuning_result import judge
from tests.search.surface import example_rate, finished, make_search, make_space


def test_confirmation_survives_an_interruption(tmp_path: Path) -> None:
    """What was confirmed before Ctrl-C is the answer of the partial result."""
    search, surface = make_search(example_rate, budget_seconds=120)
    original = surface.run

    def run_until_interrupted(point, plan, deadline):  # type: ignore[no-untyped-def]
        if any(trial.round == 2 for trial in search.log.trials):
            raise Interrupted
        return original(point, plan, deadline)

    surface.run = run_until_interrupted  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        search.run()
    best, speedup, _ = judge(search, "budget")
    assert best != search.baseline
    assert speedup is not None


@pytest.mark.parametrize(
    ("late", "ends", "confirmed"),
    [("both", False, True), ("the candidate", False, False), ("the candidate", True, True)],
    ids=["both", "the candidate", "the budget ended"],
)
def test_a_round_that_time_cuts_off_takes_nothing_back(late: str, ends: bool, confirmed: bool) -> None:
    """Two pairs stand; a third in which the baseline failed too, or the budget ended, says nothing of the candidate."""
    space = make_space(only=("precision", "memory_format", "num_workers"))  # allocators play a round of their own
    search, surface = make_search(example_rate, budget_seconds=120, space=space)
    original = surface.play
    rounds = 0
    cut: set[Point] = set()

    def play(points, plan, deadline):  # type: ignore[no-untyped-def]
        nonlocal rounds
        rounds += 1
        bursts = original(points, plan, deadline)
        if rounds != 3:
            return bursts
        ended = Burst(point=search.baseline, outcome=Outcome.TIMEOUT, reason="it was still in its phase", seconds=1.0)
        fails = [late == "both" or burst.point != search.baseline for burst in bursts]
        surface.clock.now += 1000 * ends
        cut.update(burst.point for burst in bursts if burst.point != search.baseline)
        return [
            ended.model_copy(update={"point": burst.point}) if fails[number] else burst
            for number, burst in enumerate(bursts)
        ]

    surface.play = play  # type: ignore[method-assign]
    search.run()
    assert rounds >= 3
    assert bool(cut & {one.point for one in search.confirmation.confirmed()}) == confirmed


def test_the_failure_that_rules_a_point_out_is_named() -> None:
    """Not an earlier one in a round in which the baseline failed too."""
    search, _ = make_search(example_rate)
    baseline, candidate = search.baseline, search.baseline.changed({"precision": "bf16"})
    for point, reason, number in ((baseline, "a", 0), (candidate, "excused", 0), (candidate, "its own", 1)):
        burst = Burst(point=point, outcome=Outcome.CRASHED, reason=reason, seconds=1.0)
        search.log.record(burst, CONFIRM, "", round_number=number)
    assert search.confirmation.why_out(candidate) == "it ended as crashed when it was measured again: its own"


@pytest.mark.parametrize(("clock", "confirmed"), [(1500.0, True), (2500.0, False)], ids=["equal", "faster"])
def test_a_gain_of_the_clock_alone_is_none(clock: float, confirmed: bool) -> None:
    """A card that clocks higher for half precision trains as much more with it: that is told, and not the answer."""

    def is_half(config: TrainConfig) -> bool:
        return config.precision == "bf16"

    search, _ = make_search(
        lambda config: 1600.0 if is_half(config) else 1000.0,
        budget_seconds=120,
        space=make_space(only=("precision",)),
        clock_mhz=lambda config: clock if is_half(config) else 1500.0,
    )
    search.run()
    best, speedup, reason = judge(search, "budget")
    assert (best != search.baseline) == confirmed
    assert (speedup is not None) == confirmed
    assert ("the card ran faster: 2,500 MHz" in (reason or "")) != confirmed


@pytest.mark.parametrize(
    ("alone", "precision", "claims"),
    [(1600.0, "bf16", 1.6), (1300.0, "bf16", 1.3), (900.0, "fp32", None), (0.0, "fp32", None)],
    ids=["as in turns", "slower", "slower than before", "fails"],
)  # fmt: skip
def test_a_long_run_can_lower_a_claim_or_refute_it(alone: float, precision: str, claims: float | None) -> None:
    """What trains 1.6 times as fast in turns is claimed to be as fast as it is by itself."""
    space = make_space(only=("precision",))
    search, surface = make_search(
        lambda config: 1600.0 if config.precision == "bf16" else 1000.0, budget_seconds=120, space=space, noise=0.005
    )
    in_turns, turns_rate = surface.run, surface.rate

    def run(point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        is_long = plan.turn_seconds is not None and point.config.precision == "bf16"
        surface.rate = (lambda _: alone or 1.0) if is_long else turns_rate
        surface.fails = "out of workers" if is_long and not alone else None
        return in_turns(point, plan, deadline_seconds)

    surface.run = run  # type: ignore[method-assign]
    search.run()
    best, speedup, reason = judge(search, "budget")
    assert best.config.precision == precision
    if claims is None:
        assert speedup is None
        assert "at-least" not in (reason or "")
    else:
        assert speedup is not None
        assert speedup.ratio == pytest.approx(claims, rel=0.05)


@pytest.mark.parametrize(("gain", "confirmed"), [(1.7, True), (1.05, False)])
def test_a_budget_of_few_bursts_confirms_a_large_gain(gain: float, confirmed: bool) -> None:
    """The search leaves time for the rounds that fit, and few rounds are enough where much is gained."""
    space = make_space(only=("precision",))
    search, _ = make_search(
        lambda config: gain * 1000.0 if config.precision == "bf16" else 1000.0, budget_seconds=20, space=space, cost=6.0
    )
    search.run()
    best, speedup, reason = judge(search, "budget")
    assert (best != search.baseline) == confirmed
    assert sum(trial.stage == CONFIRM for trial in search.log.trials) == 2
    assert confirmed == (speedup is not None)
    assert confirmed or "give a longer --budget" in str(reason)


def test_a_finalist_that_disappoints_makes_room_for_the_next() -> None:
    """What half precision gains in the search is nothing in fresh processes, and the next best point is confirmed."""

    def rate(config: TrainConfig, of_bf16: float) -> float:
        return 1000.0 * (
            of_bf16 if config.precision == "bf16" else 1.4 if config.memory_format == "channels_last" else 1
        )

    space = make_space(only=("precision", "memory_format"))
    search, surface = make_search(lambda config: rate(config, 1.6), budget_seconds=90, space=space, cost=6.0)
    original = surface.play

    def play(points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        in_search, surface.rate = surface.rate, lambda config: rate(config, 1.0)
        bursts = original(points, plan, deadline_seconds)
        surface.rate = in_search
        return bursts

    surface.play = play  # type: ignore[method-assign]
    search.run()
    best, speedup, _ = judge(search, "budget")
    assert (best.config.precision, best.config.memory_format) == ("fp32", "channels_last")
    assert speedup is not None
    assert speedup.ratio == pytest.approx(1.4, rel=0.1)


def test_where_no_round_fits_the_first_challenge_takes_the_time() -> None:
    """It is not killed, though it takes longer than guessed, and says what a longer budget may confirm."""
    space = make_space(only=("precision",))
    search, _ = make_search(
        lambda config: 1700.0 if config.precision == "bf16" else 1000.0, budget_seconds=15, space=space, cost=6.0
    )
    search.run()
    best, speedup, reason = judge(search, "budget")
    assert (best, speedup) == (search.baseline, None)
    assert "precision=bf16 seemed 1.7" in str(reason)


def test_time_is_kept_back_for_the_confirmation() -> None:
    """The search proper ends while the confirmation's share of the budget is left."""
    clock = [0.0]
    budget = Budget(60.0, clock=lambda: clock[0])
    clock[0] = 45.0
    assert budget.searching_seconds == 0.0
    assert budget.remaining == pytest.approx(13.0)


@pytest.mark.parametrize(
    ("round_seconds", "kept"),
    [(10.0, 60.0), (20.0, 80.0), (40.0, 90.0), (60.0, 120.0)],
    ids=["the usual share", "four rounds", "a larger share", "two rounds"],
)
def test_long_rounds_leave_time_for_the_search(
    round_seconds: float, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With steps of 6 s on an H100, four rounds took all of 220 s, and the search ended after its first candidate."""
    search, _ = make_search(example_rate, budget_seconds=200)
    for config in (search.space.baseline, search.space.baseline.replace(precision="bf16")):
        search._bursts.search(Proposal(Point(config=config), BUNDLE, "for the test"))
    monkeypatch.setattr(search._bursts.costs, "round_seconds", lambda *_: round_seconds)
    budget = search._bursts.budget
    assert search._bursts.searching_seconds == pytest.approx(budget.confirming_seconds - kept)


def test_a_finalist_with_wrong_numerics_is_replaced_by_the_next() -> None:
    """The fastest that trains the same thing is the answer, and the other is told."""
    notes: list[str] = []

    def measure(point: Point, steps: int, deadline_seconds: float) -> Agreement:
        right = Trace(losses=(1.0,) * steps, gradient_norm=1.0)
        wrong = Trace(losses=(3.0,) * steps, gradient_norm=1.0)
        candidate = wrong if point.config.precision == "bf16" else right
        return Agreement(reference=right, control=right, candidate=candidate, has_batch_norm=False)

    space = make_space()
    guard = NumericsGuard(measure, Point(config=space.baseline), notes.append)
    search, _ = make_search(example_rate, budget_seconds=120, space=space, numerics=guard)
    search.run()
    best, speedup, _ = judge(search, "budget")
    assert speedup is not None
    assert best.config.precision == "fp32"
    assert example_rate(best.config) > 1.2 * example_rate(search.baseline.config)
    assert any("precision=bf16" in note for note in notes)
    verdict = search.confirmation.verdict(best)
    assert verdict is not None
    assert verdict.outcome in {"agrees", "unchanged"}


def test_what_has_taken_part_in_rounds_needs_no_second_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that resumes, or shares a study, knows the rounds of others, and none of their checks."""
    space = make_space()
    right = Trace(losses=(1.0, 1.0), gradient_norm=1.0)
    agreement = Agreement(reference=right, control=right, candidate=right, has_batch_norm=False)
    guard = NumericsGuard(lambda *_: agreement, Point(config=space.baseline))
    search, _ = make_search(example_rate, budget_seconds=120, space=space, numerics=guard)
    search.run()
    before = search.confirmation.answer()
    assert before.config.precision == "bf16"
    monkeypatch.setattr(guard, "_verdicts", {})
    assert search.confirmation.answer() == before


def test_a_finalist_that_cannot_be_checked_in_time_is_replaced_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is the fastest that is known to train the same."""

    def measure(*_: object) -> Agreement:
        raise AssertionError

    space = make_space()
    guard = NumericsGuard(measure, Point(config=space.baseline))
    search, _ = make_search(example_rate, budget_seconds=120, space=space, numerics=guard)
    monkeypatch.setattr(search._bursts.costs, "numerics_steps", lambda *_: 0)
    search.run()
    best, speedup, _ = judge(search, "budget")
    assert speedup is not None
    assert best.config.precision == "fp32"


def test_what_cannot_be_checked_is_no_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the race of the finalist that can win, after its first round."""

    def rate(config: TrainConfig) -> float:
        return 1000.0 * (2.0 if config.precision == "bf16" else 1.0) * (1.2 if config.num_workers else 1.0)

    space = make_space(only=("precision", "num_workers"))
    guard = NumericsGuard(lambda *_: pytest.fail("there is no time"), Point(config=space.baseline))
    search, _ = make_search(rate, budget_seconds=120, space=space, numerics=guard)
    monkeypatch.setattr(search._bursts.costs, "numerics_steps", lambda *_: 0)
    search.run()
    _, speedup, _ = judge(search, "budget")
    assert speedup is not None
    assert speedup.ratio == pytest.approx(1.2, rel=0.05)


def test_a_numerics_check_is_given_the_time_that_it_plans() -> None:
    """Micro-steps of half a second, three of them in each step of the check."""
    asked: list[tuple[int, float]] = []
    right = Trace(losses=(1.0, 0.5), gradient_norm=1.0)

    def measure(_: Point, steps: int, deadline: float) -> Agreement:
        asked.append((steps, deadline))
        return Agreement(reference=right, control=right, candidate=right, has_batch_norm=False)

    space = make_space(only=("precision",))
    search, _ = make_search(
        lambda config: 160.0 if config.precision == "bf16" else 128.0,
        budget_seconds=600,
        space=space,
        numerics=NumericsGuard(measure, Point(config=space.baseline)),
    )
    search.run()
    ((steps, deadline),) = asked
    assert steps > 10
    assert deadline >= steps * 3 * 0.5


@pytest.mark.parametrize("raced", [True, False])
def test_without_time_only_what_has_raced_is_judged(monkeypatch: pytest.MonkeyPatch, raced: bool) -> None:
    """A resumed run may have confirmed it before; what can never be confirmed is worth no check."""
    search, surface = make_search(example_rate, budget_seconds=120)
    search.run() if raced else search._search()
    ran = len(surface.ran)
    judged: list[Point] = []
    monkeypatch.setattr(search.confirmation, "agrees", lambda point: judged.append(point) or True)
    surface.clock.now = 119.0
    search.confirmation.race()
    assert bool(judged) is raced
    assert len(surface.ran) == ran


def test_what_each_change_is_worth_is_known_from_the_search() -> None:
    """On a surface whose gains are known; that of the allocator from its pair of fresh processes."""
    search, surface = make_search(example_rate, budget_seconds=60, cost=1.0, noise=0.0)
    search.run()
    ran = len(surface.ran)
    worth = {row.knob: row for row in search.confirmation.ablation()}
    assert len(surface.ran) == ran
    for knob, gain in (("precision", 1.6), ("allocator", 1.3)):
        assert worth[knob].ratio == pytest.approx(gain, rel=0.06)
        assert worth[knob].ci95.low <= gain <= worth[knob].ci95.high


@pytest.mark.parametrize("knobs", [("memory_format",), ("memory_format", "precision")])
@pytest.mark.parametrize("gain", [1.0, 1.1, 1.5])
def test_rounds_take_all_the_time_whatever_they_show(gain: float, knobs: tuple[str, ...]) -> None:
    """But for the profiles."""

    def rate(config: TrainConfig) -> float:
        changed = (config.memory_format == "channels_last") + (config.precision == "bf16")
        return 1000.0 * gain**changed

    search, surface = make_search(rate, budget_seconds=125, space=make_space(only=knobs), cost=8.0, noise=0.06, seed=1)
    search.run()
    a_round = 8.0  # two sides, each half as long as a challenge
    left = 125 - FINISHING_SECONDS - surface.clock.now
    assert 0 <= left < 2 * a_round + PROFILE_MAX_SECONDS


def test_the_long_runs_come_before_the_rounds_where_both_fit() -> None:
    """So that rounds can take all that is left."""
    search, _ = finished()
    proof = [trial.stage for trial in search.log.trials if trial.stage in PROVING]
    assert proof[:3] == [UNINTERRUPTED, UNINTERRUPTED, CONFIRM]


def test_rounds_come_first_where_there_is_no_time_for_both() -> None:
    """A long run says nothing beside too few rounds."""
    search, _ = make_search(example_rate, budget_seconds=120, cost=8.0)
    search.run()
    proof = [trial.stage for trial in search.log.trials if trial.stage in PROVING]
    assert proof[0] == CONFIRM


def test_a_compiled_winner_is_confirmed_though_compiling_it_first_took_long() -> None:
    """The code is cached by then, and until there are rounds enough to decide, no profile is worth more."""

    def rate(config: TrainConfig) -> float:
        return example_rate(config) * (1.5 if config.compile_mode else 1.0)

    search, surface = make_search(rate, budget_seconds=300, cost=4.0, compile_cost=20.0)
    search.run()
    best, speedup, _ = judge(search, "budget")
    assert best.config.compile_mode == "default"
    assert speedup is not None
    assert speedup.pairs >= 4
    assert surface.clock.now <= 300


def test_a_finalist_that_fails_is_told_with_its_reason() -> None:
    """More time would not help: nobody is told to give a longer budget."""
    search, surface = make_search(example_rate, budget_seconds=120)
    run = surface.run

    def play(points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        failed = {"outcome": Outcome.CRASHED, "reason": "no such luck", "measurement": None}
        bursts = [run(point, plan, deadline_seconds) for point in points]
        return [one if one.point == search.baseline else one.model_copy(update=failed) for one in bursts]

    surface.play = play  # type: ignore[method-assign]
    search.run()
    best, speedup, reason = judge(search, "budget")
    assert (best, speedup) == (search.baseline, None)
    assert reason is not None
    assert "it ended as crashed when it was measured again: no such luck" in reason
    assert "--budget" not in reason
