"""What a tuning comes to: the answer with its reason, and each trial as the result file keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.hardware.model import Peaks
from autotune.knobs import TrainConfig
from autotune.measuring.objective import SAMPLES_PER_SECOND
from autotune.measuring.pairs import UNKNOWN, Pair
from autotune.measuring.records import Burst, Outcome, Point
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.results.result import CONFIRM, Side
from autotune.search.driver import StoppedBy
from autotune.search.ranking import Standing
from autotune.search.rounds import Confirmed
from autotune.search.trials import Trial
from autotune.sessions.options import Options
from autotune.sessions.tuning_result import Setting, _diagnosis, judge, trial_record, unmet
from tests.factories import make_burst, make_gpu, make_hardware, make_measurement
from tests.spaces import make_facts

BASELINE, INCUMBENT = make_burst(1000), make_burst(1300, pin_memory=True)
CANDIDATE = make_burst(1400, pin_memory=True, precision="bf16")
BEFORE = Trial(BASELINE, "baseline", "")


def search_of(*confirmed: Confirmed, trials: Sequence[Trial] = (), incumbent: Burst = CANDIDATE) -> Any:
    """As much of a search as is judged: what was confirmed, and a candidate that seems faster than the baseline."""
    answer = next((one.point for one in confirmed if one.speedup.confirmed), BASELINE.point)
    return SimpleNamespace(
        baseline=BASELINE.point,
        confirmation=SimpleNamespace(
            confirmed=lambda: list(confirmed), answer=lambda: answer, why_out=lambda _: None, ran_faster=lambda _: None
        ),
        space=SimpleNamespace(is_empty=False, parameters={}),
        log=SimpleNamespace(
            objective=SAMPLES_PER_SECOND,
            incumbent=lambda: Trial(incumbent, "sampler", ""),
            trials=[BEFORE, *trials],
            can_resume=True,
        ),
    )


def confirmed(low: float, high: float, pairs: int) -> Confirmed:
    """The candidate after its rounds."""
    return Confirmed(CANDIDATE.point, Speedup(ratio=1.2, ci95=Interval(low, high), pairs=pairs))


def test_a_confirmed_candidate_is_the_answer() -> None:
    """With its speed-up, and nothing to explain."""
    winner = confirmed(1.1, 1.3, 4)
    assert judge(search_of(winner), "budget") == (winner.point, winner.speedup, None)


def test_a_gain_that_may_be_none_leaves_the_baseline_and_is_told_with_its_interval() -> None:
    """What was reached is the reader's to judge."""
    point, speedup, reason = judge(search_of(confirmed(0.98, 1.4, 4)), "budget")
    assert (point, speedup) == (BASELINE.point, None)
    assert str(reason).endswith("the best candidate reached 1.20× (95 % interval 0.980 – 1.40, 4 interleaved pairs)")


def test_a_gain_that_is_not_beyond_doubt_says_what_is_missing() -> None:
    """Its interval excludes 1, which looks like a gain."""
    _, speedup, reason = judge(search_of(confirmed(1.001, 1.4, 4)), "budget")
    assert speedup is None
    assert str(reason).endswith(
        "4 interleaved pairs); a gain counts only if its interval, made 1.35 times as wide, still excludes 1"
    )


def test_candidates_that_were_all_slower_are_told_as_such() -> None:
    """None of them is the best of anything; a single pair may show any ratio."""
    slower = Confirmed(CANDIDATE.point, Speedup(ratio=0.378, ci95=Interval(0.36, 0.39), pairs=4))
    told = "all candidates that were measured again were slower: at best 0.378× (95 % interval 0.360 – 0.390, 4 "
    assert str(judge(search_of(slower), "budget")[2]).startswith(told)
    undecided = Confirmed(CANDIDATE.point, Speedup(ratio=0.482, ci95=Interval(0.054, 4.29), pairs=1))
    told = "no candidate was significantly faster than the baseline: the best candidate reached 0.482×"
    assert str(judge(search_of(undecided), "budget")[2]).startswith(told)


def test_a_gain_of_what_trains_something_else_is_told_as_such() -> None:
    """A resumed run may find it among its rounds."""
    search = search_of(confirmed(1.1, 1.3, 4))
    search.confirmation.answer, search.confirmation.why_out = (lambda: BASELINE.point), (lambda _: "it does not train")
    assert str(judge(search, "budget")[2]).startswith(
        "what seems faster, 1.20× (95 % interval 1.10 – 1.30, 4 interleaved pairs): it "
    )


def test_where_nothing_could_be_tried_no_time_was_missing() -> None:
    """A longer budget would try nothing more."""
    search = search_of(incumbent=BASELINE)
    search.space.is_empty = True
    assert judge(search, "budget")[2] == "nothing was left to search"


@pytest.mark.parametrize(
    ("stopped_by", "told"),
    [
        ("plateau", "only the baseline was tried, since nothing was expected to gain enough for its time"),
        (
            "exhausted",
            "only the baseline was tried, since what was left could not run: memory is short, or something like it had "
            "failed",
        ),
        ("budget", "only the baseline was tried, since there was no time; give a longer --budget, or --resume"),
        ("interrupted", "only the baseline was tried, since you interrupted it"),
    ],
)
def test_why_nothing_was_tried_agrees_with_what_ended_the_search(stopped_by: StoppedBy, told: str) -> None:
    """A longer budget is advised only where time was short."""
    assert judge(search_of(incumbent=BASELINE), stopped_by)[2] == told


def met(search: Any, stopped_by: StoppedBy, best: Point = BASELINE.point, **options: Any) -> list[str]:
    """What a result says that its options asked for and it does not have."""
    setting = Setting(Options(target="train:build", **options), make_hardware(), "cpu", make_facts())
    return unmet(search, setting, best, stopped_by)


def test_an_effective_batch_that_the_answer_does_not_have_is_told() -> None:
    """Only the baseline may lack it, and is the answer where nothing else is proven."""
    (note,) = met(search_of(), "budget", effective_batch=96)
    assert note.startswith("--effective-batch 96 is not what this result has: it keeps your 32, ")
    wanted = Point(config=TrainConfig(batch_size=96))
    for best, requested in ((wanted, 96), (BASELINE.point, 32), (wanted, "free"), (BASELINE.point, None)):
        assert not met(search_of(), "budget", best, effective_batch=requested)


@pytest.mark.parametrize(
    ("stopped_by", "why"), [("budget", "there was no time"), ("plateau", "nothing was expected to gain enough")]
)
def test_an_argument_whose_values_were_not_tried_is_told(stopped_by: StoppedBy, why: str) -> None:
    """It would leave the result without a trace."""
    search = search_of(trials=[Trial(make_burst(900, parameters={"depth": 2}), "sampler", "")])
    search.space.parameters = {"width": (64, 256), "depth": (2,)}
    (note,) = met(search, stopped_by)
    assert note.startswith(f"--explore width: none of its values was tried, since {why}")


def test_a_gain_that_keeps_too_little_of_the_fastest_rate_is_told_as_such() -> None:
    """It was confirmed, and is not the answer: the floor is why."""
    search = search_of(confirmed(1.1, 1.3, 4))
    search.confirmation.answer = lambda: BASELINE.point
    point, speedup, reason = judge(search, "budget")
    assert (point, speedup) == (BASELINE.point, None)
    assert "keeps less of the fastest rate than was asked for" in str(reason)


@pytest.mark.parametrize(("pairs", "longer"), [(2, True), (5, False)])
def test_few_pairs_that_confirm_nothing_ask_for_more_time(pairs: int, longer: bool) -> None:
    """The candidate seemed faster, and more pairs may show it."""
    point, speedup, reason = judge(search_of(confirmed(0.99, 1.45, pairs)), "budget")
    assert (point, speedup) == (BASELINE.point, None)
    assert f"{pairs} interleaved pairs)" in str(reason)
    assert str(reason).endswith("give a longer --budget, or --resume") is longer


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        (None, "only the baseline was tried, since there was no time; give a longer --budget, or --resume"),
        (2, "there was no time to find out whether anything is faster; give a longer --budget, or --resume"),
        (9, "nothing was faster than the baseline"),
    ],
)
def test_nothing_faster_is_said_of_what_was_compared(blocks: int | None, told: str) -> None:
    """Of two blocks nothing follows, and less of none."""
    trials = []
    if blocks is not None:
        interval = Interval(0.98, 1.02) if blocks > 2 else Interval(1 / UNKNOWN, UNKNOWN)
        pair = Pair(partner=BASELINE.point, ratio=1.0, ci95=interval, blocks=blocks)
        trials = [Trial(CANDIDATE, "sampler", "", pair=pair)]
    assert judge(search_of(trials=trials, incumbent=BASELINE), "budget") == (BASELINE.point, None, told)


def test_a_shared_study_is_not_resumed() -> None:
    """It is joined again, so that only a longer budget helps."""
    search = search_of(incumbent=BASELINE)
    search.log.can_resume = False
    assert judge(search, "budget")[2] == "only the baseline was tried, since there was no time; give a longer --budget"


def test_where_all_that_was_tried_failed_its_reason_is_told() -> None:
    """It was not compared with the baseline, so that nothing can be said of that."""
    failed = Burst(point=CANDIDATE.point, outcome=Outcome.CRASHED, seconds=1.0, reason="database is locked")
    search = search_of(trials=[Trial(failed, "sampler", "")], incumbent=BASELINE)
    assert judge(search, "budget")[2] == "nothing that was tried could be trained (database is locked)"


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        (
            {BASELINE.point: 1000.0, CANDIDATE.point: 1400.0},
            "seemed 1.40× faster (95 % interval 1.15 – 1.70) in the search",
        ),
        ({CANDIDATE.point: 1400.0}, "trained in the search"),  # the baseline failed
    ],
)
def test_what_was_never_confirmed_is_told_with_its_ratio(scores: dict[Point, float], told: str) -> None:
    """If the baseline has one."""
    search = search_of()
    search.log.standings = lambda: [Standing(point, score, 0.1) for point, score in scores.items()]
    ending = "but there was no time to confirm it; give a longer --budget, or --resume"
    assert judge(search, "budget")[2] == f"precision=bf16 pin_memory=true {told}, {ending}"


@pytest.mark.parametrize("rate", [900, 1400])
def test_what_did_not_seem_faster_or_is_out_is_not_said_to_have_seemed_so(rate: int) -> None:
    """One that is slower in its only pair, and one that trains something else."""
    rounds = [Trial(burst, CONFIRM, "", round=0) for burst in (BASELINE, make_burst(rate, precision="bf16"))]
    search = search_of(trials=rounds, incumbent=BASELINE)
    if rate == 1400:
        search.confirmation.why_out = lambda _: "it does not train what the baseline trains"
    assert judge(search, "budget")[2] == "nothing was faster than the baseline"


def test_a_trial_keeps_its_duet() -> None:
    """What the partner changed from the baseline, the ratio, and the score that is chained through it."""
    pair = Pair(partner=INCUMBENT.point, ratio=1.1, ci95=Interval(1.05, 1.15), blocks=12)
    record = trial_record(Trial(CANDIDATE, "sampler", "", pair=pair, chained=1430.0), BASELINE.point)
    assert (record.partner, record.ratio, record.ci95) == ({"pin_memory": True}, 1.1, Interval(1.05, 1.15))
    assert record.changes == {"pin_memory": True, "precision": "bf16"}
    assert record.score == 1430.0


def test_a_trial_alone_has_neither_partner_nor_a_score_of_its_own() -> None:
    """Its rate says it all; a failure has not even that."""
    failed = make_burst(None, outcome=Outcome.OOM)
    for burst in (BASELINE, failed):
        record = trial_record(Trial(burst, "baseline", ""), BASELINE.point)
        assert (record.partner, record.ratio, record.ci95, record.score) == (None, None, None, None)


def test_the_copies_of_all_ranks_bound_the_rate_of_all() -> None:
    """Each has a GPU and its bus; the rate is that of all together."""
    search: Any = SimpleNamespace(
        headroom=None,
        baseline=BASELINE.point,
        ceilings=SimpleNamespace(of=lambda _: {}),
        memory_line=lambda _: None,
        confirmation=SimpleNamespace(throttled=lambda _: None),
    )
    hardware = make_hardware(make_gpu(), peaks=Peaks(host_to_device_bytes_per_second=1e9))
    setting = Setting(Options(target="train:build"), hardware, "cuda", make_facts(batch_bytes=10**6))  # of 32 samples
    best = Side(config=TrainConfig(batch_size=64, ranks=2), measurement=make_measurement())
    assert _diagnosis(search, {"best": best}, setting, {}).ceilings["copy"] == pytest.approx(64_000)
