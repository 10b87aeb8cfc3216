"""The search inside a training: when it begins, what it leaves alone, and how it ends."""

from __future__ import annotations

import itertools
import math
import random
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, default_collate

from autotune.recorder.changes import Changes
from autotune.recorder.live import pools, steps, training
from autotune.results.live import Story
from autotune.torch_settings import process_settings
from tests.live.conftest import Time
from tests.live.loops import OF_LOADER, OTHERS, Advice, Alternating, Numbers, candidate

_, FOREACH, ONE_THREAD = OTHERS
WORKERS = {"no workers": {}, "workers": {"num_workers": 1}, "persist": {"num_workers": 1, "persistent_workers": True}}
Tuned = Callable[..., tuple[training.LiveTraining, Advice]]
Ids = list[list[int]]


class FirstWins(Alternating):
    """The first candidate wins, and no other one is ever decided."""

    first: training.Evidence | None = None

    @property
    def verdict(self) -> str | None:
        """By the order of first looks."""
        if self.logs:
            FirstWins.first = FirstWins.first or self
        return "won" if FirstWins.first is self else None


class NeverWins(Alternating):
    """Every candidate loses."""

    @property
    def verdict(self) -> str | None:
        """With its first pair."""
        return "lost" if self.logs else None


class Wins(Alternating):
    """Every candidate wins, by a tenth."""

    ratio = 1.1  # type: ignore[assignment]

    @property
    def verdict(self) -> str | None:
        """With its first pair."""
        return "won" if self.logs else None


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tuned]:
    """Begins to tune this process: blocks are of two steps, and nothing is too costly."""
    hasty = {"WARM_SECONDS": 0.0, "BLOCK_SECONDS": 0.0, "FEWEST_STEPS": 2}
    patient = dict.fromkeys(("WORST", "AGED_TIMES"), 1e9)  # however slow a neighbour makes a step
    for name, value in {**hasty, **patient}.items():
        monkeypatch.setattr(training, name, value)
    monkeypatch.setattr(steps, "ODD_TIMES", 1e9)
    monkeypatch.setattr(training.Ledger, "allows", lambda *_, **__: True)
    monkeypatch.setattr(training.Ledger, "may_lose", lambda *_: 1e9)
    monkeypatch.setattr(FirstWins, "first", None)
    begun: list[training.LiveTraining] = []

    def begin(*candidates: dict[str, Any], evidence: type[training.Evidence] = Alternating) -> Any:
        monkeypatch.setattr(training, "Evidence", evidence)
        advice = Advice(candidates)
        begun.append(training.LiveTraining(advice, 2))
        return begun[-1], advice

    yield begin
    for live in begun:
        live.end()
    training._active.clear()


class Trained:
    """A model that is trained batch by batch; notes the samples."""

    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        self.model = nn.Sequential(nn.Linear(16, 4), nn.Dropout(0.1))
        self.optimizer = optimizer(self.model.parameters(), lr=1e-3)
        self.ids: Ids = []

    def step(self, batch: Any) -> None:
        """One step."""
        values, labels, ids = batch
        nn.functional.cross_entropy(self.model(values), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ids.append(ids.tolist())


def loader_of(samples: int = 160, **arguments: Any) -> DataLoader[Any]:
    """A loader that shuffles."""
    torch.manual_seed(0)
    random.seed(0)
    return DataLoader(Numbers(samples=samples), **{"batch_size": 4, "shuffle": True, **arguments})


def decided(advice: Advice) -> list[str]:
    """The knobs of candidates that are decided."""
    return [knob for event in advice.events if event["event"] == "decided" for knob in event["knobs"]]


def last_over(advice: Advice) -> dict[str, Any]:
    """The last end of the search."""
    return [event for event in advice.events if event["event"] == "over"][-1]


def holds_a_pass(arguments: dict[str, Any], goes_on: str) -> Ids:
    """A pass begins before the first step, for the shapes; it may be drawn from again. So does another loader's."""
    loader, trained = loader_of(**arguments), Trained()
    held = iter(loader)
    trained.ids.append(next(held)[2].tolist())
    other = iter(loader_of(samples=40))
    next(other)
    for _ in range(4):
        for number, batch in enumerate(loader):
            trained.step(batch)
            if goes_on == "within the search" and number % 8 == 7:
                trained.ids += [ids.tolist() for _, _, ids in itertools.islice(held, 1)]
    if goes_on == "after all":
        trained.ids += [ids.tolist() for _, _, ids in held]
    return trained.ids


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", ["never", "within the search", "after all"])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_pass_that_is_held_is_forgotten_until_it_is_read(tuned: Tuned, workers: str, goes_on: str) -> None:
    """It hands out its own samples; where two passes are read at once, the loader is left alone."""
    plain = holds_a_pass(WORKERS[workers], goes_on)
    _, advice = tuned(*OF_LOADER[:2], ONE_THREAD)
    assert holds_a_pass(WORKERS[workers], goes_on) == plain
    assert "num_threads" in decided(advice)
    why = last_over(advice)["left"].get("num_workers")
    if goes_on == "within the search" and workers != "persist":  # of those that persist, torch makes one iterator
        assert why == "several passes through the loader are read at once"
    else:
        assert "num_workers" in decided(advice)
        assert why is None


@pytest.mark.parametrize("plays", ["wins", "has won", "plays"])
def test_a_data_set_that_changes_late_is_read_as_by_the_script(tuned: Tuned, plays: str) -> None:
    """Workers hand out nothing that is older, whether they race, have won, or the search is over; none start again."""

    def train() -> Ids:
        loader, trained = loader_of(), Trained()
        for _ in range(3):
            for batch in loader:
                trained.step(batch)
                if len(trained.ids) in {30, 31, 70}:
                    loader.dataset.level += 1000  # type: ignore[attr-defined]
        return trained.ids

    plain = train()
    evidence = {"wins": FirstWins, "has won": Wins, "plays": Undecided}[plays]
    offered = OF_LOADER[:1] if plays == "has won" else OF_LOADER[:2]
    live, advice = tuned(*offered, evidence=evidence)
    assert train() == plain
    why = last_over(advice)["left"]["num_workers"] if plays != "plays" else live.left["num_workers"]
    assert why == "the script changes what its data set reads while it trains, which workers would not see"
    assert not live._incumbent.loader
    if plays != "plays":
        verdicts = [event["verdict"] for event in advice.events if event["event"] == "decided"]
        assert (verdicts[0], verdicts[-1], last_over(advice)["won"]) == ("won", "failed", {})


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("others", [[], [candidate(optimizer_impl="fused")]], ids=["over", "goes on"])
def test_what_has_won_beside_workers_is_tried_again_without_them(
    tuned: Tuned, others: list[dict[str, Any]], is_killed: bool
) -> None:
    """What has won before them stays; the gain is that of the settings that training has in the end."""
    workers = candidate(num_workers=1, prefetch_factor=2)
    offered = [FOREACH, workers, ONE_THREAD, *others]
    live, advice = tuned(*offered, evidence=Wins)
    loader, trained = loader_of(400), Trained()
    for _ in range(3):
        for batch in loader:
            trained.step(batch)
            if len(live._winners) == 3 and (passing := live._pass) is not None and is_killed:
                for worker in getattr(passing.pool._batches, "_workers", ()):
                    worker.kill()
            elif len(live._winners) == 3:
                loader.dataset.level += 1000  # type: ignore[attr-defined]
    told = [(one["name"], one["verdict"]) for one in advice.events if one["event"] == "decided"]
    story = Story()
    story.add({"event": "planned", "candidates": {one["name"]: one["knobs"] for one in offered}, "left": {}})
    for event in advice.events:
        story.add(event)
    again = [(one["name"], "won") for one in (ONE_THREAD, *others)]
    assert told == [*[(one["name"], "won") for one in offered[:3]], (workers["name"], "failed"), *again]
    changed = {knob: value for one in offered if one is not workers for knob, value in one["knobs"].items()}
    assert story.won == dict(live._incumbent.knobs) == changed
    assert story.gained is not None
    assert story.gained[0] == pytest.approx(live._gain) == pytest.approx(1.1 ** (len(offered) - 1))
    assert story.is_complete


NET = nn.Linear(16, 4)
NETS = {"net": NET, "weights": [NET.weight], "optimizer": torch.optim.SGD(NET.parameters(), lr=0.1)}
SCHEDULE = Namespace(noise=0.0)


def _by_global(samples: Any) -> Any:
    return default_collate(samples) if NET is not None else None


def _by_dictionary(samples: Any) -> Any:
    return default_collate(samples) if NETS["optimizer"] else None


def _by_closure(samples: Any, net: nn.Module = NET) -> Any:
    return default_collate(samples) if net is not None else None


def _by_helper(samples: Any) -> Any:
    return _by_global(samples)


class Miner:
    """Trains, and chooses its samples."""

    def __init__(self) -> None:
        self.net, self.other = NET, 0

    def collate(self, samples: Any) -> Any:
        """By what a method of its own says."""
        return default_collate(samples) if self.chosen() else None

    def chosen(self) -> bool:
        """By the model."""
        return self.net is not None


def _by_schedule(samples: Any) -> Any:
    values, labels, ids = default_collate(samples)
    return values + SCHEDULE.noise, labels, ids


@pytest.mark.parametrize("collate", [_by_global, _by_dictionary, _by_closure, _by_helper, Miner().collate])
def test_reading_that_uses_what_trains_gets_no_workers(tuned: Tuned, collate: Callable[[Any], Any]) -> None:
    """Workers would have an older copy of the model."""
    _, advice = tuned(*OF_LOADER[:2])
    trained = Trained()
    for batch in loader_of(collate_fn=collate):
        trained.step(batch)
    assert decided(advice) == []
    assert advice.facts["left"]["num_workers"].startswith("reading the data uses a ")


def test_reading_by_a_schedule_of_the_loops_gets_no_workers(tuned: Tuned) -> None:
    """An object of options that is read is watched like the data set."""
    _, advice = tuned(*OF_LOADER[:2])
    trained = Trained()
    for batch in loader_of(collate_fn=_by_schedule):
        trained.step(batch)
        SCHEDULE.noise += 0.1
    assert decided(advice) == []
    assert "changes while it is read or trained on" in advice.facts["left"]["num_workers"]


def test_a_sampler_whose_generator_the_script_holds_draws_no_sooner(tuned: Tuned) -> None:
    """An epoch that is left early would leave the generator elsewhere."""

    def train() -> Ids:
        data, generator = Numbers(), torch.Generator().manual_seed(1)
        sampler = RandomSampler(data, replacement=True, generator=generator)
        loader, trained = loader_of(shuffle=None, sampler=sampler), Trained()
        for _ in range(8):
            for number, batch in enumerate(loader):
                trained.step(batch)
                if number == 14:
                    break
        return trained.ids

    plain = train()
    tuned(*OF_LOADER)
    assert train() == plain


def draws_pass_by_pass() -> Ids:
    """Each step begins a pass."""
    loader, trained = loader_of(), Trained()
    for _ in range(100):
        trained.step(next(iter(loader)))
    return trained.ids


def has_epochs_of_a_batch() -> Ids:
    """Each step begins a pass, and ends it."""
    loader, trained = loader_of(samples=4), Trained()
    for _ in range(100):
        for batch in loader:
            trained.step(batch)
    return trained.ids


def acts_between_steps() -> Ids:
    """The model is evaluated before each step."""
    loader, trained = loader_of(), Trained()
    for _ in range(4):
        for batch in loader:
            trained.model.eval()
            trained.model.train()
            trained.step(batch)
    return trained.ids


@pytest.mark.parametrize(
    ("train", "is_loader_left"),
    [(draws_pass_by_pass, True), (has_epochs_of_a_batch, True), (acts_between_steps, False)],
)
def test_what_recurs_in_each_step_is_part_of_it(tuned: Tuned, train: Callable[[], Ids], is_loader_left: bool) -> None:
    """The search begins all the same; a loader is left alone where each step begins a pass."""
    plain = train()
    live, advice = tuned(ONE_THREAD, FOREACH, OF_LOADER[0])
    assert train() == plain
    assert {"num_threads", "optimizer_impl"} <= {*decided(advice)}
    assert live.left.get("num_workers") == ("each step begins a pass through a loader" if is_loader_left else None)


@pytest.mark.parametrize("begins_at", [10, 20, 60])
def test_a_loader_is_tuned_wherever_in_its_epoch_the_search_may_begin(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch, begins_at: int
) -> None:
    """With the last step of an epoch, its pass is over, and the next one has not begun."""
    live, advice = tuned(OF_LOADER[0])
    monkeypatch.setattr(training, "WARM_SECONDS", math.inf)
    loader, trained = loader_of(samples=80), Trained()
    for number, batch in enumerate(itertools.chain.from_iterable(loader for _ in range(8)), 1):
        if number == begins_at:
            monkeypatch.setattr(training, "WARM_SECONDS", 0.0)
        trained.step(batch)
    assert live.left == {}
    assert "num_workers" in decided(advice)


@pytest.mark.parametrize(
    ("every", "samples", "why"),
    [
        (1, 240, "several loaders feed training"),
        (3, 240, None),
        (3, 8, None),  # its second pass begins in the step in which the search does
        (100, 240, None),
        (0, 240, "no loader feeds most of the steps"),
    ],
)
def test_the_loader_that_feeds_each_step_is_tuned(tuned: Tuned, every: int, samples: int, why: str | None) -> None:
    """Another one may feed some steps besides, the one in which the search begins, too; of kept batches, none feeds."""

    def train() -> Ids:
        loader, trained = loader_of(), Trained()
        batches = iter(loader) if every else iter(list(loader))
        others = itertools.chain.from_iterable(itertools.repeat(loader_of(samples=samples)))
        for number in range(38):
            batch = next(batches)
            if every and (number + 1 - steps.WARM_STEPS) % every == 0:
                trained.ids.append(next(others)[2].tolist())
            trained.step(batch)
        return trained.ids

    plain = train()
    live, advice = tuned(OF_LOADER[0], FOREACH)
    assert train() == plain
    assert live.left.get("num_workers") == why
    assert ("num_workers" in decided(advice)) is (why is None)


def test_a_script_without_a_loader_is_told_so(tuned: Tuned) -> None:
    """Everything else is tried."""
    live, advice = tuned(OF_LOADER[0], FOREACH)
    trained, batch = Trained(), (torch.randn(4, 16), torch.zeros(4, dtype=torch.long), torch.arange(4))
    for _ in range(38):
        trained.step(batch)
    assert live.left["num_workers"] == "no loader was seen to feed training"
    assert decided(advice) == ["optimizer_impl"]


def test_what_is_known_of_another_loader_is_not_said_of_the_one_that_is_tuned(tuned: Tuned, tmp_path: Path) -> None:
    """Its batches do not count, nor do those before training; its shapes, random numbers and file are its own."""
    live, advice = tuned(OF_LOADER[0])
    file = (tmp_path / "data").open("w+b", buffering=0)

    def collate(samples: Any) -> Any:
        file.write(b"read")
        return torch.rand(1), default_collate(samples)

    loader, trained = loader_of(), Trained()
    others = itertools.chain.from_iterable(itertools.repeat(loader_of(samples=24, batch_size=2, collate_fn=collate)))
    for batch in itertools.islice(loader, 20):
        size = sum(part.nbytes for part in batch)
    for number, batch in enumerate(loader):
        if number % 3 == 0:
            list(itertools.islice(others, 10))
        trained.step(batch)
    known = {name: advice.facts[name] for name in ("fixed_shapes", "moves_augmentation", "batch_bytes", "left")}
    assert known == {"fixed_shapes": True, "moves_augmentation": False, "batch_bytes": size, "left": {}}
    assert live._draws.per_step(str(live._key)) == 1.0


def test_a_pass_before_training_does_not_hide_what_reading_does(tuned: Tuned) -> None:
    """A loop over many batches, for their mean and deviation."""

    def train() -> Ids:
        loader, trained = loader_of(), Trained()
        loader.dataset.draws = random.Random(0)  # type: ignore[attr-defined]
        for values, _, _ in DataLoader(loader.dataset, batch_size=4):
            trained.ids.append(values.tolist())
        for batch in itertools.chain.from_iterable(loader for _ in range(2)):
            trained.step(batch)
            trained.ids.append(batch[0].tolist())
        return trained.ids

    plain = train()
    live, advice = tuned(OF_LOADER[0])
    assert train() == plain
    assert "a generator of random numbers" in live.left["num_workers"]
    assert decided(advice) == []


@pytest.mark.parametrize("is_over", [True, False])
def test_another_optimizer_ends_the_search_and_keeps_what_has_won(tuned: Tuned, is_over: bool) -> None:
    """As the next fold begins: loader and process keep the faster setting, the new optimizer its own form."""
    loader = loader_of()
    workers = candidate(num_workers=1, prefetch_factor=2)
    _, advice = tuned(workers, *[] if is_over else [FOREACH], evidence=FirstWins)
    first = Trained()
    for _ in range(4):
        for batch in loader:
            first.step(batch)
    del first
    second = Trained()
    for _ in range(2):
        for batch in loader:
            second.step(batch)
    why = "all candidates are decided" if is_over else "another optimizer steps now"
    over = last_over(advice)
    assert (over["won"], over["why"]) == ({"num_workers": 1, "prefetch_factor": 2}, why)
    assert over["complete"] is is_over
    assert iter(loader).pool.loader.num_workers == 1
    assert second.optimizer.param_groups[0]["foreach"] is None


def test_a_second_fit_leaves_the_verdict_of_the_first(tuned: Tuned) -> None:
    """Its log says what won, though the script's own setting is in force again."""
    live, advice = tuned(ONE_THREAD, evidence=FirstWins)
    threads, trained = torch.get_num_threads(), Trained()
    for batch in itertools.chain.from_iterable(loader_of() for _ in range(2)):
        trained.step(batch)
    live.end()
    assert [event["won"] for event in advice.events if event["event"] in {"over", "ended"}] == [{"num_threads": 1}] * 2
    assert torch.get_num_threads() == threads


def test_nothing_of_ours_stays_on_what_is_trained(tuned: Tuned) -> None:
    """Once the search is over, if no winner changes it."""
    trained = Trained()
    before = [{*vars(part)} for part in (trained.model, trained.optimizer)]
    _, advice = tuned(candidate(precision="bf16"), FOREACH, evidence=NeverWins)
    for batch in itertools.chain.from_iterable(loader_of() for _ in range(4)):
        trained.step(batch)
    assert last_over(advice)["complete"]
    assert decided(advice) == ["precision", "optimizer_impl"]
    assert [{*vars(part)} for part in (trained.model, trained.optimizer)] == before


def test_a_training_that_ends_too_soon_says_so(tuned: Tuned) -> None:
    """The recorder saw it, but had no time."""
    loader = loader_of()
    live, advice = tuned(ONE_THREAD)
    trained = Trained()
    for batch, _ in zip(loader, range(3), strict=False):
        trained.step(batch)
    live._at_exit()
    assert last_over(advice)["why"] == "the training ended after 3 steps, before other settings could be tried"


def test_a_fused_form_whose_kernel_is_missing_is_not_offered(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch declares it, and raises within the script's step."""

    def missing(*_: Any, **__: Any) -> None:
        raise NotImplementedError("_fused_adagrad_")

    monkeypatch.setattr(sys.modules[torch.optim.Adagrad.__module__], "_fused_adagrad", missing)
    loader, trained = loader_of(), Trained(torch.optim.Adagrad)
    _, advice = tuned()
    advice.answer = lambda: [candidate(optimizer_impl=form) for form in advice.facts["forms"]]
    for batch in loader:
        trained.step(batch)
    assert advice.facts["forms"] == ["foreach"]
    assert decided(advice) == ["optimizer_impl"]


class Undecided(Alternating):
    """Pairs decide nothing."""

    verdict = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("overrun", "is_out"), [({1}, False), ({2, 3}, False), ({1, 3, 5, 7}, False), ({4, 5, 6}, True)]
)
def test_a_candidate_is_out_when_its_blocks_overrun_again_and_again(
    tuned: Tuned, time: Time, monkeypatch: pytest.MonkeyPatch, overrun: set[int], is_out: bool
) -> None:
    """One slow step ends its block, and counts for what it took; the rest of the block counts as the incumbent's."""
    live, advice = tuned(ONE_THREAD, evidence=Undecided)
    monkeypatch.setattr(training, "WORST", 2.0)
    monkeypatch.setattr(training, "BLOCK_SECONDS", 1.0)
    trained = Trained()
    for batch in itertools.chain.from_iterable(loader_of() for _ in range(8)):
        blocks = sum(event["event"] == "playing" and event["name"] != "your own setting" for event in advice.events)
        time.now += 0.5 if live._in_force.process and blocks in overrun else 0.1
        trained.step(batch)
    reasons = [event["reason"] for event in advice.events if event["event"] == "decided"]
    assert reasons == ["its steps take twice as long"] * is_out
    pairs = [event["ratio"] for event in advice.events if event["event"] == "pair"]
    assert min(pairs) > 0.7
    if not is_out:
        assert len(pairs) >= 4
        assert min(pairs) < 0.95


@pytest.mark.parametrize(
    ("where", "ages", "seen", "charged"),
    [
        ("after the step", {2}, True, 0.0),
        ("after the step", {2}, False, 4.4),  # how long the script's own take is not known
        ("after the step", {2, 4}, True, 5.0),  # in one block: what comes again may be its doing
        ("after the step", {0}, True, 5.0),  # what follows the switch may be, too
        ("in the loader", {2}, True, 5.0),
        ("in the forward pass", {2}, True, 5.0),
    ],
)
def test_what_the_script_does_between_two_steps_is_not_charged(
    tuned: Tuned, time: Time, monkeypatch: pytest.MonkeyPatch, where: str, ages: set[int], seen: bool, charged: float
) -> None:
    """A checkpoint within a candidate's block; what the candidate may slow down is charged."""
    left, is_next = {*ages}, seen

    def passes(place: str) -> None:
        nonlocal is_next
        block = live._block
        if place != where or block is None:
            return
        if block.setting is live._incumbent:
            time.now += 5.0 if is_next and block.leads < 0 else 0.0
            is_next = is_next and block.leads >= 0
        elif block.age in left and not is_next:
            left.remove(block.age)
            time.now += 5.0

    monkeypatch.setattr(Numbers, "__getitem__", lambda *_: passes("in the loader") or (torch.ones(16), 0, 0))
    live, _ = tuned(ONE_THREAD, evidence=Undecided)
    monkeypatch.setattr(steps, "ODD_TIMES", 5.0)
    monkeypatch.setattr(training, "BLOCK_SECONDS", 1.0)
    trained = Trained()
    for batch in itertools.chain.from_iterable(loader_of() for _ in range(6)):
        time.now += 0.1
        passes("in the forward pass")
        trained.step(batch)
        passes("after the step")
    assert not left
    assert live._ledger.spent == pytest.approx(charged, abs=0.5)


def test_a_log_that_comes_several_times_a_block_delays_no_block(
    tuned: Tuned, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks go on, and both sides are charged alike."""
    live, advice = tuned(ONE_THREAD, evidence=Undecided)
    monkeypatch.setattr(steps, "ODD_TIMES", 5.0)
    monkeypatch.setattr(training, "BLOCK_SECONDS", 0.4)
    monkeypatch.setattr(training, "EPOCH_BLOCKS", 1)
    trained = Trained()
    for number, batch in enumerate(itertools.chain.from_iterable(loader_of(samples=640) for _ in range(8))):
        time.now += 0.005
        trained.step(batch)
        time.now += 0.04 if number % 20 == 19 else 0.0
    pairs = [event["ratio"] for event in advice.events if event["event"] == "pair"]
    assert len(pairs) > 3
    assert pairs == pytest.approx([1.0] * len(pairs), abs=0.15)
    assert 0.0 <= live._ledger.spent < 0.7


def test_a_fault_as_winners_are_dropped_reaches_no_script(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes up where the script asks for its next batch."""

    def faulty(*_: object) -> None:
        raise RuntimeError("a strange optimizer")

    live, advice = tuned(FOREACH, candidate(num_workers=1, prefetch_factor=2), evidence=Wins)
    loader, trained, read = loader_of(400), Trained(), 0
    for batch in itertools.chain.from_iterable(loader for _ in range(2)):
        trained.step(batch)
        read += 1
        if len(live._winners) == 2 and (passing := live._pass) is not None:
            monkeypatch.setattr(Changes, "on_optimizer", faulty)
            for worker in getattr(passing.pool._batches, "_workers", ()):
                worker.kill()
    assert read == 2 * len(loader)
    assert "a strange optimizer" in last_over(advice)["why"]


def test_a_candidate_that_waits_for_its_next_block_is_not_said_to_play(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`autotune watch` shows what plays now."""
    live, advice = tuned(ONE_THREAD, evidence=Undecided)
    trained = Trained()
    for batch in itertools.chain.from_iterable(loader_of() for _ in range(6)):
        if any(event["event"] == "pair" for event in advice.events):
            monkeypatch.setattr(training.Ledger, "allows", lambda *_, **__: False)
        trained.step(batch)
    assert [event["event"] for event in advice.events if event["event"] in {"playing", "paused"}][-1] == "paused"
    assert live._in_force is live._incumbent


def test_a_machine_that_becomes_slow_holds_no_block_up(
    tuned: Tuned, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps look as if each held something else, and are not charged to the search."""
    live, advice = tuned(ONE_THREAD, evidence=Undecided)
    monkeypatch.setattr(steps, "ODD_TIMES", 5.0)
    trained, blocks = Trained(), []
    for batch in itertools.chain.from_iterable(loader_of() for _ in range(20)):
        time.now += 0.8 if len(blocks) > 2 else 0.1  # the fourth block is the incumbent's
        trained.step(batch)
        blocks = [event for event in advice.events if event["event"] == "block"]
    assert len(blocks) > 6
    assert live._ledger.spent < 8.0


@pytest.mark.parametrize("is_between", [True, False])
def test_a_candidate_that_is_slow_between_steps_is_out(
    tuned: Tuned, time: Time, monkeypatch: pytest.MonkeyPatch, is_between: bool
) -> None:
    """Where two networks step in turn, the other one's pass lies between a step and the next draw."""
    live, advice = tuned(ONE_THREAD, evidence=Undecided)
    for name, value in {"WORST": 2.0, "BLOCK_SECONDS": 1.0}.items():
        monkeypatch.setattr(training, name, value)
    monkeypatch.setattr(steps, "ODD_TIMES", 5.0)
    first, second = Trained(), Trained()
    for batch in itertools.chain.from_iterable(loader_of() for _ in range(6)):
        time.now += 0.1
        first.step(batch)
        time.now += 0.45 if live._in_force.process else 0.0
        if not is_between:
            second.step(batch)
    assert [event["reason"] for event in advice.events if event["event"] == "decided"] == [
        "its steps take twice as long"
    ]


def test_a_loader_of_the_scripts_own_hides_no_checkpoint(
    tuned: Tuned, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, all that lies between two steps counts, once a block, where the incumbent has seen it."""
    live, _ = tuned(ONE_THREAD, evidence=Undecided)
    monkeypatch.setattr(steps, "ODD_TIMES", 5.0)
    monkeypatch.setattr(training, "BLOCK_SECONDS", 1.0)
    trained, left = Trained(), [False, True]
    for batch in list(loader_of()) * 4:
        time.now += 0.1
        block = live._block
        if left and block is not None and block.age > 2 and bool(block.setting.process) is left[0]:
            time.now += 5.0
            left.pop(0)
        trained.step(batch)
    assert not left
    assert live._ledger.spent == pytest.approx(0.0, abs=0.5)


def test_a_checkpoint_between_blocks_makes_no_step_usual(
    tuned: Tuned, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step usually takes decides what candidates cost."""
    live, _ = tuned(ONE_THREAD)
    monkeypatch.setattr(steps, "ODD_TIMES", 5.0)
    monkeypatch.setattr(training.Ledger, "allows", lambda *_, **__: False)
    trained = Trained()
    for number, batch in enumerate(loader_of()):
        time.now += 5.0 if number == 30 else 0.1
        trained.step(batch)
        if number == 30:
            break
    assert live._steps.usual < 0.15


def test_stalls_of_a_winner_save_nothing(tuned: Tuned, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it saves is less than what its steps would have taken in the script's own setting, as that was measured."""
    live, advice = tuned(ONE_THREAD, FOREACH, evidence=FirstWins)
    monkeypatch.setattr(FirstWins, "ratio", 1000.0)
    monkeypatch.setattr(steps, "ODD_TIMES", 5.0)
    trained, won_at = Trained(), 0
    for number, batch in enumerate(itertools.chain.from_iterable(loader_of() for _ in range(20))):
        time.now += 0.1 if not live._in_force.process else 0.1 if number % 7 == 0 else 0.0001
        trained.step(batch)
        won_at = won_at or number * any(event["event"] == "decided" for event in advice.events)
    assert live._gain == 1000.0
    assert 0 < live._ledger.benefit <= 0.1 * (number + 1 - won_at) + 1.0
    assert live._steps.usual < 5.0


@pytest.mark.parametrize(
    ("what", "cached", "is_room"), [(ONE_THREAD, 0, True), (FOREACH, 0, False), (FOREACH, 20, True)]
)
def test_room_on_a_gpu_counts_what_its_allocator_keeps(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch, what: dict[str, Any], cached: int, is_room: bool
) -> None:
    """But for what a step takes at its peak. Threads take none."""
    live, _ = tuned()
    live._device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 40 + cached)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 10)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 40)
    live._candidates.append(what)
    live._next_race()
    assert (live._race is not None) is is_room


@pytest.mark.parametrize("candidates", [(ONE_THREAD, FOREACH, OF_LOADER[1]), (OF_LOADER[1], FOREACH)])
def test_a_script_that_compiles_later_keeps_its_threads_and_optimizer(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch, candidates: tuple[dict[str, Any], ...]
) -> None:
    """Compiled code would hold a candidate's. Loaders are tried all the same."""
    loader, trained, graphs = loader_of(), Trained(), 0
    live, advice = tuned(*candidates)
    monkeypatch.setattr(training, "compiled_graphs", lambda: graphs)
    for batch in itertools.chain.from_iterable(loader for _ in range(4)):
        trained.step(batch)
        graphs |= live._block is not None and live._block.setting is not live._incumbent
    ended = [event for event in advice.events if event["event"] == "decided"]
    reasons = {knob: event["reason"] for event in ended for knob in event["knobs"]}
    assert reasons.get("num_threads", training.COMPILES) == training.COMPILES
    assert reasons["num_workers"] == ""
    assert live.left == {"optimizer_impl": training.COMPILES}
    assert last_over(advice)["why"] == "all candidates are decided"
    assert not live._in_force.process


@pytest.fixture
def python_hears_ctrl_c() -> Iterator[None]:
    """A process of several that run tests may ignore it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("python_hears_ctrl_c")
def test_ctrl_c_as_settings_change_leaves_loader_and_setting_alike(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may catch it and train on."""
    loader, trained = loader_of(), Trained()
    both = {**OF_LOADER[1], "process": ONE_THREAD["process"]}
    came = 0
    set_threads = process_settings.set_threads

    def interrupted(*arguments: Any) -> Any:
        nonlocal came
        came += 1
        if came == 1:
            signal.raise_signal(signal.SIGINT)
        return set_threads(*arguments)

    monkeypatch.setattr(process_settings, "set_threads", interrupted)
    live, _ = tuned(both, evidence=Undecided)
    passing: Any = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        list(map(trained.step, passing))
    assert live._block is not None
    assert live._block.setting is live._in_force
    assert [next(passing), next(passing)]
    assert passing.pool.changed == live._in_force.of_loader != ()


class StopError(Exception):
    """What a script's own handler raises."""


@pytest.mark.usefixtures("python_hears_ctrl_c")
@pytest.mark.parametrize("fails", [True, False])
def test_what_a_script_raises_at_ctrl_c_reaches_it(tuned: Tuned, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """It is no fault of ours, wherever it comes."""

    def stop(*_: Any) -> None:
        raise StopError

    signal.signal(signal.SIGINT, stop)
    live, advice = tuned(ONE_THREAD, evidence=Undecided)
    name = "_enter" if fails else "_play"
    own = getattr(live, name)

    def interrupted(argument: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        own(argument)

    monkeypatch.setattr(live, name, interrupted)
    if fails:
        live._race = training._Race(ONE_THREAD, live._incumbent, training.Evidence(live._spread))
    with pytest.raises(StopError):
        live._on_forward_failed(ValueError("of the model")) if fails else list(map(Trained().step, loader_of()))
    assert not [event for event in advice.events if event["event"] == "over"]


@pytest.mark.usefixtures("python_hears_ctrl_c")
def test_a_second_ctrl_c_does_not_wait() -> None:
    """A pool that starts may hang."""
    reached = []

    def hang() -> None:
        with training._uninterrupted():
            for number in ("first", "second"):
                signal.raise_signal(signal.SIGINT)
                reached.append(number)

    with pytest.raises(KeyboardInterrupt):
        hang()
    assert reached == ["first"]


@pytest.mark.usefixtures("python_hears_ctrl_c")
def test_workers_that_start_while_ctrl_c_waits_hear_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As untuned."""
    with training._uninterrupted():
        monkeypatch.setattr(training.os, "getpid", lambda: 0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        monkeypatch.undo()


def test_a_fault_of_ours_as_a_model_fails_reaches_no_script(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is called again all the same."""

    def faulty(*_: Any) -> None:
        raise OSError("of ours")

    live, advice = tuned(ONE_THREAD)
    live._race = training._Race(ONE_THREAD, live._incumbent, training.Evidence(live._spread))
    monkeypatch.setattr(live, "_enter", faulty)
    live._on_forward_failed(ValueError("of the model"))
    assert last_over(advice)["why"] == "OSError: of ours"


class Unhashable(DataLoader[Any]):
    """As data classes are."""

    __hash__ = None  # type: ignore[assignment]


def test_a_loader_without_a_hash_is_read_as_it_is(tuned: Tuned) -> None:
    """Ours cannot be kept beside it."""
    tuned(ONE_THREAD)
    with torch.no_grad():
        assert len(list(Unhashable(Numbers(samples=8), batch_size=4))) == 2


def test_gradients_that_cannot_be_looked_at_keep_the_fused_form_out(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is made, and all else is tried."""

    def faulty(_: Any) -> None:
        raise RuntimeError("tensors of this kind have no strides")

    live, _ = tuned(ONE_THREAD)
    monkeypatch.setattr(training, "why_not_fused", faulty)
    Trained().step(next(iter(loader_of())))
    assert live._phase == "warms up"
    assert live._unfused == "RuntimeError: tensors of this kind have no strides"


def test_a_step_that_a_cuda_graph_captures_is_left_alone(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the device would end the capture, and with it the training."""
    live, _ = tuned(ONE_THREAD)
    live._device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    Trained().step(next(iter(loader_of())))
    assert live._steps.count == 0


def test_workers_that_start_with_an_epoch_are_charged(
    tuned: Tuned, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of a pass is not, since it holds the script's own evaluation."""
    start = pools.Pool.start

    def slow(pool: pools.Pool) -> None:
        time.now += 1.0
        start(pool)

    monkeypatch.setattr(pools.Pool, "start", slow)
    loader, trained, charged = loader_of(samples=64), Trained(), []
    live, _ = tuned(OF_LOADER[1], evidence=Undecided)
    for _ in range(10):
        before = live._ledger.spent
        batches = iter(loader)
        if live._in_force.loader:
            charged.append(live._ledger.spent - before)
        for batch in batches:
            time.now += 0.1
            trained.step(batch)
    assert charged
    assert charged == pytest.approx([1.0] * len(charged))
