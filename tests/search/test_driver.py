"""The search loop on a made-up surface with a virtual clock: what it finds, in what order, and when it stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from autotune.errors import Interrupted, IsolationError
from autotune.knobs import build_space
from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import pair_apart
from autotune.measuring.progress import Progress
from autotune.measuring.records import Burst, Outcome, Point, Profile
from autotune.search.proposal import ALLOCATOR, BASELINE, BUNDLE, ELIMINATION, GAIN, Proposal
from autotune.search.refusals import refusal
from autotune.search.stopping import Budget
from autotune.sessions.options import Options
from autotune.sessions.tuning import Tuning
from autotune.sessions.tuning_result import judge
from autotune.timing.failing import PINNING
from tests.factories import make_burst
from tests.search.surface import example_rate, finished, journal_storage, make_search, make_space
from tests.spaces import gpu_machine, make_facts


def best_rate() -> float:
    """The optimum of the example surface."""
    best = TrainConfig(batch_size=64, precision="bf16", allocator="tuned", memory_format="channels_last", num_workers=2)
    return example_rate(best)


def test_the_baseline_runs_first() -> None:
    """Whatever is found is compared with what the user trains with today."""
    search, surface = finished()
    assert surface.ran[0] == search.baseline
    assert search.log.trials[0].stage == BASELINE


def test_the_best_is_found_and_confirmed() -> None:
    """On a surface whose gains multiply, the chosen config comes within 3 % of the optimum."""
    search, _ = finished()
    best, speedup, reason = judge(search, "budget")
    assert example_rate(best.config) >= 0.97 * best_rate()
    assert reason is None
    assert speedup is not None
    assert speedup.ci95.low <= example_rate(best.config) / example_rate(search.baseline.config) <= speedup.ci95.high


@pytest.mark.parametrize("change", [{"samples": 900}, None], ids=["other samples", "fewer blocks"])
def test_allocators_in_bursts_without_common_blocks_are_compared_apart(change: dict[str, int] | None) -> None:
    """Whole bursts took turns, since memory did not hold both: their blocks are no pairs."""
    search, surface = make_search(example_rate, budget_seconds=120)
    play = surface.play

    def apart(*args: Any) -> list[Burst]:
        theirs, own = play(*args)
        assert own.measurement is not None
        first, *rest = own.measurement.blocks
        blocks = (first.model_copy(update=change), *rest) if change is not None else tuple(rest)
        return [theirs, own.model_copy(update={"measurement": own.measurement.model_copy(update={"blocks": blocks})})]

    surface.play = apart  # type: ignore[method-assign]
    pair = search._bursts.compare_fresh(search.baseline.changed({"allocator": "tuned"}), ALLOCATOR, "")
    assert pair is not None
    assert pair.blocks == 0


class FullStorage(optuna.storages.InMemoryStorage):
    """A storage whose disk is full after some values have been written."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self._left = writes

    def _write(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError("no space left")

    def create_new_trial(self, *args: Any, **named: Any) -> int:
        """Writes a trial."""
        self._write()
        return super().create_new_trial(*args, **named)

    def set_trial_user_attr(self, *args: Any) -> None:
        """Writes a value."""
        self._write()
        super().set_trial_user_attr(*args)

    def set_trial_state_values(self, *args: Any, **named: Any) -> bool:
        """Writes how a trial ended."""
        self._write()
        return super().set_trial_state_values(*args, **named)


@pytest.mark.parametrize("writes", range(0, 100, 7))
@pytest.mark.parametrize("sampler", ["bayes", "tpe"])
def test_a_storage_that_fails_ends_no_search(sampler: str, writes: int) -> None:
    """Between turns, or in the middle of one whose other trials are open."""
    space = make_space(only=("precision", "allocator", "memory_format"))
    storage = FullStorage(writes)
    search, _ = make_search(example_rate, budget_seconds=30, space=space, sampler=sampler, storage=storage)
    search.run()
    assert judge(search, "budget")[1] is not None
    assert all(trial.state.is_finished() for trial in search.log.study.trials)


@pytest.mark.parametrize("sampler", ["bayes", "tpe", "random"])
def test_every_sampler_serves(sampler: str) -> None:
    """Each sampler of the command line carries a search on."""
    space = make_space(only=("precision", "allocator", "memory_format", "num_workers", "prefetch_factor"))
    search, _ = make_search(example_rate, budget_seconds=60, space=space, sampler=sampler)
    assert search.run() in {"budget", "plateau", "exhausted"}
    assert GAIN in {trial.stage for trial in search.log.trials}


@pytest.mark.parametrize("budget_seconds", [10.0, 30.0, 120.0])
def test_the_budget_is_kept(budget_seconds: float) -> None:
    """On its clock the search ends within its budget, even when bursts hang to their deadline."""
    search, surface = make_search(example_rate, budget_seconds=budget_seconds)
    surface.cost = 2.0
    search.run()
    assert surface.clock.now <= budget_seconds
    hanging, surface = make_search(example_rate, budget_seconds=budget_seconds, cost=10**9)
    hanging.run()
    assert surface.clock.now <= budget_seconds


def test_nothing_larger_than_an_oom_runs() -> None:
    """After an out-of-memory, no batch of that size or above runs with the same memory-relevant knobs."""
    space = make_space(effective_batch=None)
    search, _ = make_search(example_rate, budget_seconds=120, space=space, oom_above=128)
    search.run()
    ooms = [trial.burst.point for trial in search.log.trials if trial.burst.outcome is Outcome.OOM]
    assert ooms
    for index, point in enumerate(ooms):
        assert refusal(point, space, [t for t in search.log.trials if t.burst.point in ooms[:index]]) is None


def test_nothing_faster_keeps_the_baseline() -> None:
    """When every candidate is as fast as the baseline, the baseline is the answer and no speed-up is claimed."""
    search, _ = make_search(lambda _: 1000.0, budget_seconds=120)
    search.run()
    best, speedup, reason = judge(search, "budget")
    assert best == search.baseline
    assert speedup is None
    assert "no candidate was significantly faster" in (reason or "")


def test_a_failing_baseline_does_not_end_the_search() -> None:
    """A baseline that runs out of memory leaves the candidates to be tried."""
    space = make_space(effective_batch=None)
    search, _ = make_search(example_rate, budget_seconds=120, space=space, oom_above=32)
    search.run()
    best = search.log.incumbent()
    assert best is not None
    assert best.burst.point.config.batch_size <= 32


def test_the_search_stops_as_exhausted_when_all_is_tried() -> None:
    """A space of two knobs is used up long before an hour."""
    space = make_space(only=("precision", "allocator"))
    search, surface = make_search(lambda _: 1000.0, budget_seconds=3600, space=space)
    assert search.run() in {"exhausted", "plateau"}
    assert len(set(surface.ran)) <= 4


def test_a_search_that_lacks_the_time_for_a_promising_candidate_ends_with_the_budget() -> None:
    """A longer one would try it; a plateau is where none promises enough."""
    search, surface = make_search(example_rate, budget_seconds=60, space=make_space(only=("num_workers",)))
    search._bursts.search(Proposal(search.baseline, BASELINE, ""))
    surface.clock.now = 59.0
    assert search._chooser.next([]) is None
    assert search._chooser.ended == "budget"


def test_the_target_stops_the_search() -> None:
    """A GPU as busy as was asked, and end to end as fast as compute alone: no more bursts are spent."""
    search, surface = make_search(example_rate, budget_seconds=3600, noise=0.0, activity=0.97)
    assert search.run() == "target"
    assert "compute" in surface.parts
    assert surface.clock.now < 600


@pytest.mark.parametrize("activity", [None, 0.6])
def test_a_ceiling_alone_is_no_target(activity: float | None) -> None:
    """As fast as compute alone, but another precision or compiling could raise that."""
    search, _ = make_search(example_rate, budget_seconds=120, noise=0.0, activity=activity)
    assert search.run() != "target"


def test_pins_hold_for_every_candidate() -> None:
    """A pinned knob never varies; only the baseline may differ from it."""
    space = make_space(pinned={"precision": "fp32", "num_workers": 1})
    search, surface = make_search(example_rate, space=space)
    search.run()
    for point in surface.ran:
        if point != search.baseline:
            assert (point.config.precision, point.config.num_workers) == ("fp32", 1)


def test_the_effective_batch_is_held() -> None:
    """Every burst trains with the baseline's effective batch."""
    _, surface = finished()
    assert {point.config.effective_batch for point in surface.ran} == {64}


def test_explored_parameters_are_searched() -> None:
    """Values for build's own arguments are tried."""
    space = make_space(explored={"width": (16, 32)})
    search, surface = make_search(example_rate, budget_seconds=120, space=space)
    search.run()
    assert {16, 32} <= {point.parameters.get("width") for point in surface.ran}


def test_explored_parameters_keep_to_the_pins() -> None:
    """Also while the baseline, which has another precision, is the fastest."""
    space = make_space(explored={"width": (16, 32)}, pinned={"precision": "bf16"}, only=["memory_format"])
    search, surface = make_search(
        lambda config: 950.0 if config.precision == "bf16" else 1000.0, budget_seconds=120, noise=0.0, space=space
    )
    search.run()
    candidates = [point for point in surface.ran if point != search.baseline]
    assert {16, 32} <= {point.parameters.get("width") for point in candidates}
    assert {point.config.precision for point in candidates} == {"bf16"}
    assert search.log.standings()[0].point == search.baseline


def test_a_seed_makes_the_search_repeatable() -> None:
    """The same seed proposes the same points in the same order."""
    search, surface = make_search(example_rate, budget_seconds=120)
    search.run()
    assert surface.ran == finished()[1].ran


def test_a_resumed_search_repeats_no_burst(tmp_path: Path) -> None:
    """A run that was killed goes on from its journal."""
    storage = tmp_path / "run.journal"
    search, surface = make_search(example_rate, storage=journal_storage(storage))
    original = surface.run

    def run_until_killed(*args):  # type: ignore[no-untyped-def]
        if len(surface.ran) == 7:
            raise Interrupted
        return original(*args)

    surface.run = run_until_killed  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        search.run()
    done = [trial.burst.point for trial in search.log.trials]
    assert len(done) == 7
    resumed, surface = make_search(example_rate, storage=journal_storage(storage))
    assert [trial.burst.point for trial in resumed.log.trials] == done
    resumed.run()
    assert resumed._bursts.progress.baseline == resumed.baseline  # which no burst has shown
    fresh = [trial for trial in resumed.log.trials if not trial.resumed and trial.round is None]
    assert fresh
    assert not {trial.burst.point for trial in fresh} & set(done)


@pytest.mark.parametrize(
    ("options", "breaks"),
    [
        ({"pinned": {"num_workers": 1}}, {"num_workers": 2}),
        ({"pinned": {"num_workers": "<=1"}}, {"num_workers": 2}),
        ({"only": ["num_workers"]}, {"precision": "bf16"}),
        ({"effective_batch": 128}, {"precision": "bf16"}),
        ({}, {"depth": 2}),
        ({}, {"precision": "bf16", "compile_mode": "default", "fp8_linear": True}),
    ],
)
def test_a_resumed_search_leaves_out_what_its_options_do_not_allow(
    options: dict[str, Any], breaks: dict[str, Any]
) -> None:
    """It neither starts from the best of the earlier run nor answers with it."""
    storage = optuna.storages.InMemoryStorage()
    first, _ = make_search(example_rate, storage=storage, space=make_space(explored={"depth": (1, 2)}))
    broken = first.baseline.changed(breaks)
    for burst in (make_burst(1000.0, batch_size=64), make_burst(9000.0).model_copy(update={"point": broken})):
        first.log.record(burst, GAIN, "")
    resumed, _ = make_search(example_rate, storage=storage, space=make_space(**options))
    resumed.run()
    assert [trial.burst.point for trial in resumed.log.trials if trial.resumed] == [first.baseline]
    assert resumed.confirmation.answer() != broken


@pytest.mark.parametrize(
    "options",
    [
        {"pinned": {"num_workers": 2}},
        {"pinned": {"num_workers": "<=2"}},
        {"only": ["num_workers"]},
        {"budget_seconds": 1.0},
    ],
)
def test_a_resumed_search_keeps_what_its_options_allow(options: dict[str, Any]) -> None:
    """Other options alone make nothing that was measured worthless."""
    storage = optuna.storages.InMemoryStorage()
    first, _ = make_search(example_rate, storage=storage)
    first.log.record(make_burst(1000.0, batch_size=64), BASELINE, "")
    first.log.record(make_burst(1200.0, batch_size=64, num_workers=2), GAIN, "")
    resumed, _ = make_search(example_rate, storage=storage, space=make_space(**options))
    resumed.run()
    assert sum(trial.resumed for trial in resumed.log.trials) == 2


def test_a_pair_whose_partner_is_left_out_does_not_count() -> None:
    """Workers gain 1.2 over the baseline; half precision, beside which they played, is not allowed any more."""
    storage = optuna.storages.InMemoryStorage()
    first, _ = make_search(example_rate, storage=storage)
    log, half, workers = first.log, first.baseline.changed({"precision": "bf16"}), {"num_workers": 2}
    log.record(make_burst(1000.0, batch_size=64), BASELINE, "")
    log.record(make_burst(2000.0).model_copy(update={"point": half}), GAIN, "", pair_apart(first.baseline, 2.0))
    log.record(make_burst(1200.0, batch_size=64, **workers), GAIN, "", pair_apart(half, 0.6))
    resumed, _ = make_search(example_rate, storage=storage, space=make_space(only=["num_workers"]))
    resumed.log.leave_out_disallowed(resumed.baseline)
    best = resumed.log.incumbent()
    assert best is not None
    assert best.burst.point == first.baseline.changed(workers)


@pytest.mark.parametrize(
    "options",
    [
        {"pinned": {"num_workers": 1, "memory_format": "channels_last"}},
        {"pinned": {"num_workers": "<=1"}, "baseline": TrainConfig(batch_size=64, num_workers=2)},
        {"effective_batch": 48},
        {"effective_batch": 48, "oom_above": 40},
        {"effective_batch": 48, "oom_above": 20},
    ],
    ids=["two pins", "a limit", "another effective batch", "of a half that fits", "of a quarter that fits"],
)
def test_no_candidate_breaks_what_the_options_ask_for(options: dict[str, Any]) -> None:
    """Neither the points with fewer changes, which are tried last, nor the comparison of allocators."""
    own = {key: value for key, value in options.items() if key not in {"baseline", "oom_above"}}
    facts = {"baseline": options["baseline"]} if "baseline" in options else {}
    space = make_space(facts=facts, **own)
    most = options.get("oom_above", 10**6)
    search, _ = make_search(example_rate, space=space, budget_seconds=200, oom_above=most)
    search.run()
    points = {trial.burst.point for trial in search.log.trials if trial.stage != BASELINE} - {search.baseline}
    fitting = [point for point in points if point.config.batch_size <= most]
    assert fitting
    assert [point.config for point in fitting if not search.space.allows(point.config, point.parameters)] == []


def test_a_resumed_search_leaves_out_nothing_of_a_fitted_baseline() -> None:
    """Candidates have the smaller batch that fits, though --only does not name it."""
    storage, space = optuna.storages.InMemoryStorage(), make_space(only=["precision", "num_workers"])
    first, _ = make_search(example_rate, storage=storage, space=space, oom_above=20)
    first.run()
    resumed, _ = make_search(example_rate, storage=storage, space=space, oom_above=20)
    resumed.run()
    assert first.baseline.config.batch_size == 16
    known = [trial.burst.point for trial in resumed.log.trials if trial.resumed]
    assert known == [trial.burst.point for trial in first.log.trials if trial.burst.outcome is not Outcome.TIMEOUT]


def test_a_journal_cut_in_mid_line_is_read_up_to_there(tmp_path: Path) -> None:
    """What was finished before the cut is known, and new trials can be added."""
    storage = tmp_path / "run.journal"
    search, _ = make_search(example_rate, budget_seconds=30, storage=journal_storage(storage))
    search.run()
    before = len(search.log.trials)
    content = storage.read_bytes()
    storage.write_bytes(content[:-30])
    resumed, _ = make_search(example_rate, budget_seconds=60, storage=journal_storage(storage))
    assert before - 1 <= len(resumed.log.trials) <= before
    resumed.run()
    assert len(resumed.log.trials) > before


def test_points_with_equal_content_are_equal() -> None:
    """Points are told apart by what they run."""
    one, other = (
        Point(config=TrainConfig(), parameters={"a": 1, "b": 2}),
        Point(config=TrainConfig(), parameters={"b": 2, "a": 1}),
    )
    assert one == other
    assert len({one, other}) == 1


def test_a_profile_that_cannot_be_taken_loses_nothing() -> None:
    """Not even where the system has no process left for it: what was found stands."""

    class Exhausted:
        """Has no process left."""

        def profile(self, point: Point, deadline_seconds: float) -> Profile:
            """Fails as the isolation does."""
            raise IsolationError("no process could be started")

    search, _ = finished()
    tuning = Tuning(Options(target="made.up:build"), Progress(), Budget(60.0))
    found: dict[Point, Profile] = {}
    tuning._profile(Exhausted(), search, found)  # type: ignore[arg-type]
    assert found == {}


def test_the_bundle_comes_first_and_without_its_harmful_setting_it_is_better() -> None:
    """What the hardware suggests holds one setting that costs a third: elimination finds it."""

    def rate(config: TrainConfig) -> float:
        return example_rate(config) * (0.65 if config.memory_format == "channels_last" else 1.0)

    search, _ = make_search(rate, budget_seconds=120)
    search.run()
    stages = [trial.stage for trial in search.log.trials if trial.stage not in {BASELINE, ALLOCATOR}]
    assert stages[0] == BUNDLE
    assert stages.index(ELIMINATION) < len(stages)
    assert judge(search, "budget")[0].config.memory_format == "contiguous"
    assert judge(search, "budget")[0].config.precision == "bf16"


def test_nothing_is_pinned_again_where_that_failed() -> None:
    """The bundle's other settings are not given up."""
    loader = ("num_workers", "prefetch_factor", "pin_memory", "non_blocking")
    space = build_space(gpu_machine(), make_facts(), device="cuda", effective_batch=64, only=loader)
    search, surface = make_search(
        example_rate, budget_seconds=200, space=space, device="cuda", fits=lambda config: not config.pin_memory
    )
    surface.misfit = Outcome.HOST_OOM, f"{PINNING}: RuntimeError: CUDA error: out of memory"
    search.run()
    first = next(turn for turn in surface.turns if any(point.config.pin_memory for point in turn))
    assert all(point in first for point in surface.ran if point.config.pin_memory)
    assert judge(search, "budget")[0].config.num_workers


@pytest.mark.parametrize(("price", "paid"), [(5.0, True), (10_000.0, False)])
def test_a_first_compile_is_paid_where_its_gain_is_worth_it(price: float, paid: bool) -> None:
    """What takes longer than there is never begins."""
    search, surface = make_search(example_rate, budget_seconds=120, compile_cost=20.0)
    modes = {"default": price}
    from autotune.knobs import compiling

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "COMPILE_SECONDS", {**compiling.COMPILE_SECONDS, **modes})
        search.run()
    assert any(point.config.compile_mode is not None for point in surface.ran) is paid


def test_several_candidates_play_the_incumbent_at_once() -> None:
    """In the same turns; one that compiles for the first time plays alone."""
    search, surface = make_search(example_rate, budget_seconds=240, compile_cost=20.0)
    search.run()
    assert max(map(len, surface.turns)) == 4
    first = next(turn for turn in surface.turns if any(one.config.compile_mode is not None for one in turn))
    assert len(first) == 1


def test_a_candidate_that_waits_for_its_turn_is_closed_when_the_search_ends() -> None:
    """An open trial would repel the sampler, and keep other machines from its point."""
    search, _ = make_search(example_rate, budget_seconds=4.5)
    waiting = search.baseline.changed({"compile_mode": "default"})
    search._waiting = search.log.ask(waiting), Proposal(waiting, GAIN, "")
    assert search.run() == "budget"
    assert all(trial.state.is_finished() for trial in search.log.study.trials)


def test_a_candidate_that_waits_for_its_turn_is_not_played_once_it_is_refused() -> None:
    """The turn before may have shown that its memory does not suffice."""
    search, _ = make_search(example_rate)
    search.log.record(make_burst(1000.0, batch_size=64), BASELINE, "")
    waiting = search.baseline.changed({"compile_mode": "default"})
    search._waiting = search.log.ask(waiting), Proposal(waiting, GAIN, "")
    search.log.record(Burst(point=waiting, outcome=Outcome.OOM, seconds=1.0), GAIN, "")
    assert waiting not in [proposal.point for _, proposal in search._next_turn()]


def test_a_candidate_that_fails_leaves_the_others() -> None:
    """A setting that crashes is out, and the rest is found."""
    search, _ = make_search(example_rate, budget_seconds=120, fits=lambda c: c.memory_format == "contiguous")
    search.run()
    best = judge(search, "budget")[0].config
    assert best.memory_format == "contiguous"
    assert best.precision == "bf16"


def test_reasons_say_what_the_model_expected() -> None:
    """Each trial of the model names between what its gain is expected, and the cost."""
    search, _ = finished()
    reasons = [trial.reason for trial in search.log.trials if trial.stage == GAIN]
    assert reasons
    assert all("expected between" in reason and "costs" in reason for reason in reasons)
