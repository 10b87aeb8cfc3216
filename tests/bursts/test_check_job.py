"""The look at a workload before the search: what is wrong in one sentence, and what is found out when nothing is."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from autotune import TrainConfig
from autotune.bursts.jobs import look_job as check
from autotune.bursts.jobs.feed import copied
from autotune.bursts.jobs.look_job import check_workload
from autotune.errors import ConfigError, WorkloadError
from autotune.knobs.facts import WorkloadFacts
from autotune.recorder.samplers import FEEDBACK
from autotune.search.diagnosis import SCORE_CHUNK, saved_by_chunks
from autotune.workload.target import load_workload
from tests.knobs.models import Residual, stack
from tests.spaces import cpu_machine, space_of
from tests.workloads import kept_open, mistakes


def facts_of(**changes: Any) -> WorkloadFacts:
    """What is found out about a sound workload with some changes."""
    return check_workload(mistakes.workload(**changes), "train:build", "cpu")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("empty_stream", "the dataset yields no sample; check its path or its filter"),
        ("sampler_of_a_stream", "torch's DataLoader refuses the dataset or the sampler: ValueError"),
        ("sample_raises", "reading a sample of the dataset raised: FileNotFoundError: scan-0.png; fix it"),
        ("ragged_samples", "8 samples of type tuple cannot be collated into a batch (stack expects each tensor"),
        ("none_samples", "samples of type NoneType cannot be collated"),
        ("collate_raises", "collate_fn raised: KeyError: 'input_ids'"),
        ("collate_raises_on_few", "collate_fn raised: ValueError: eight are needed"),
        ("loss_raises", "loss(model, batch) raised: "),
        ("loss_per_sample", "loss: expected a scalar, got a tensor of shape (8,); take its .mean()"),
        ("loss_as_float", "loss: expected a scalar tensor, got a float; return the tensor itself"),
        ("loss_as_output", "loss: expected a scalar tensor, got a dict; return the tensor itself"),
        ("loss_detached", "the loss has no gradient; compute it from the model's output"),
        ("loss_nan", "the loss of the first batch is nan; check the data"),
        ("loss_of_another_model", "no parameter of the model got a gradient; compute the loss with the model"),
        ("optimizer_raises", "making the optimizer raised: ValueError: Invalid learning rate: -1.0"),
        ("optimizer_of_wrong_type", "optimizer: expected a torch.optim.Optimizer, got a list"),
        ("optimizer_of_another_model", "the optimizer holds no parameter of the model; make it from the params"),
        ("optimizer_with_closure", "the backward pass or the optimizer step raised: TypeError: LBFGS.step()"),
        ("clip_as_text", "the backward pass or the optimizer step raised: "),
        ("out_of_memory", "with a smaller batch_size and more accumulation_steps"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(name: str, words: str) -> None:
    """Target, what was expected, what it got, the remedy: for all that only a step can show."""
    target = f"tests.workloads.mistakes:{name}"
    workload = load_workload(target)
    with pytest.raises(WorkloadError) as caught:
        check_workload(workload, target, "cpu")
    message = str(caught.value)
    assert message.startswith(f"{target}: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("sample_raises", 'raise FileNotFoundError(f"scan-{index}.png")'),
        ("collate_raises", 'raise KeyError("input_ids")'),
        ("loss_raises", "features, labels = batch"),
        ("optimizer_raises", "return torch.optim.SGD(params, lr=-1.0)"),
    ],
)
def test_the_users_last_frame_is_theirs(name: str, line: str) -> None:
    """Where their code raised, the trace ends in the line of theirs that did, below nobody else's."""
    workload = load_workload(f"tests.workloads.mistakes:{name}")
    with pytest.raises(WorkloadError) as caught:
        check_workload(workload, "train:build", "cpu")
    trace = caught.value.trace or ""
    assert line in trace
    files = [text for text in trace.splitlines() if text.lstrip().startswith('File "')]
    assert all("mistakes.py" in text for text in files)


@pytest.mark.parametrize("name", ["loss_as_float", "loss_per_sample", "ragged_samples", "empty_stream"])
def test_without_an_exception_of_theirs_there_is_no_trace(name: str) -> None:
    """What we found out by looking has no traceback to show."""
    workload = load_workload(f"tests.workloads.mistakes:{name}")
    with pytest.raises(WorkloadError) as caught:
        check_workload(workload, "train:build", "cpu")
    assert caught.value.trace is None


def test_an_interruption_is_not_swallowed() -> None:
    """Ctrl-C in the user's loss is an interruption."""

    def interrupted(model: nn.Module, batch: Any) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        facts_of(loss=interrupted)


def test_an_implementation_that_the_optimizer_lacks_is_told() -> None:
    """A baseline that asks for what there is none of cannot be measured."""
    baseline = TrainConfig(batch_size=8, optimizer_impl="fused")
    with pytest.raises(ConfigError, match="RMSprop has no such form; use optimizer_impl=default"):
        facts_of(baseline=baseline, optimizer=torch.optim.RMSprop)


def test_a_sound_workload_is_described() -> None:
    """Sizes, shapes and what applies to it, as the search needs them."""
    facts = facts_of(name="toy")
    assert (facts.target, facts.name, facts.samples, facts.parameters) == ("train:build", "toy", 64, 10)
    assert facts.batch_bytes == 8 * 4 * 4 + 8 * 8
    assert facts.baseline == TrainConfig(batch_size=8)
    assert facts.optimizer_impls == ("foreach", "fused")
    assert facts.fixed_shapes
    assert facts.convolves == ()
    assert not facts.has_attention


def test_a_sparse_batch_is_described() -> None:
    """Its bytes are those that it stores; torch refuses ``nbytes`` of it."""

    def collate(samples: list[Any]) -> Any:
        inputs, targets = default_collate(samples)
        return inputs.to_sparse(), targets

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0].to_dense()), batch[1])

    assert facts_of(collate_fn=collate, loss=loss).batch_bytes > 0


def test_blocks_that_repeat_are_counted() -> None:
    """What may be compiled once for all, or computed again."""
    facts = facts_of(model=nn.Sequential(*stack(3, 4), nn.Linear(4, 2)))
    assert (facts.repeated_blocks, facts.recomputable_blocks) == (3, 3)
    assert facts_of().repeated_blocks == 0


class Remembering(Residual):
    """A block with a buffer that its forward pass changes, replaces, only reads, or makes longer."""

    def __init__(self, kind: str) -> None:
        super().__init__(4)
        self.kind = kind
        self.register_buffer("kept", torch.zeros(3), persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The residual block's own."""
        kept: torch.Tensor = self.kept
        if self.kind == "changes":
            kept.data.add_(1)
        elif self.kind == "replaces":
            self.kept = kept + 1
        elif self.kind == "grows" and len(kept) < 9:
            self.kept = torch.arange(9.0)
        return super().forward(features) + kept.mean() * 0


@pytest.mark.parametrize(("kind", "recomputable"), [("changes", 0), ("replaces", 0), ("reads", 3), ("grows", 3)])
def test_blocks_that_change_their_buffers_are_not_computed_twice(kind: str, recomputable: int) -> None:
    """Spectral norms and codebooks would; masks stay, and tables of rotary positions grow as they are needed."""
    facts = facts_of(model=nn.Sequential(*(Remembering(kind) for _ in range(3)), nn.Linear(4, 2)))
    assert (facts.repeated_blocks, facts.recomputable_blocks) == (3, recomputable)


def test_the_operations_of_a_step_are_counted() -> None:
    """Of four features to two classes: a product forward, one for the weights' gradient, two operations a term."""
    assert facts_of(batch_size=8).flops_per_sample == 2 * (2 * 4 * 2)


@pytest.mark.parametrize("raises", [False, True])
def test_a_model_whose_operations_cannot_be_counted_is_sound(raises: bool) -> None:
    """It has no matrix product, or does what torch's counting cannot bear; its gradients are left as they were."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            if raises and _get_current_dispatch_mode() is not None:
                raise NotImplementedError
            return features[:, :2] * self.weight

    assert facts_of(model=Scale()).flops_per_sample is None


def test_a_stream_has_no_length() -> None:
    """An iterable dataset without a length is sound; its samples are not counted."""
    assert facts_of(dataset=mistakes.Stream(64)).samples is None


def test_a_stream_may_tell_a_length() -> None:
    """It cannot be indexed all the same: its largest samples are not looked for."""
    facts = facts_of(dataset=mistakes.SizedStream(64), sample_size=len)
    assert (facts.samples, facts.largest_samples) == (64, ())


class Noisy(Dataset[Any]):
    """Rows with noise from a generator of its own; the same rows each time if it is drawn once."""

    def __init__(self, *, once: bool) -> None:
        self.generator = torch.Generator()
        self.rows = [torch.randn(4, generator=self.generator) for _ in range(64)]
        self.once = once

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = 0.0 if self.once else torch.randn(4, generator=self.generator)
        return self.rows[index] + noise, 0


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (Noisy(once=True), ""),
        (Noisy(once=False), "would repeat each other"),
        (mistakes.SizedStream(64), "repeats its samples in every worker"),
        (kept_open.build(at_once=False).dataset, ""),
        (kept_open.build(at_once=True).dataset, "whose place workers would share"),
    ],
    ids=["drawn once", "drawn at each reading", "a stream with a length", "a file opened by reading", "an open file"],
)
def test_data_that_workers_would_not_read_alike_get_none(dataset: Any, reason: str) -> None:
    """Copies in workers would draw the same noise, each yield all samples, or move each other's place in a file."""
    facts = facts_of(dataset=dataset)
    assert reason in (facts.copied_reason or "")
    space = space_of(cpu_machine(), facts)
    assert ("num_workers" in space.choices) == (not reason)


class Hardest(Sampler[int]):
    """Draws by losses."""

    def __init__(self) -> None:
        self.losses = torch.zeros(64)

    def __iter__(self) -> Iterator[int]:
        yield from self.losses.argsort()

    def __len__(self) -> int:
        return 64


@pytest.mark.parametrize("step", [0.0, 1.0])
def test_a_sampler_that_training_changes_gets_no_workers(step: float) -> None:
    """They would need its indices ahead of training."""
    sampler = Hardest()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if step:
            sampler.losses += step
        return functional.cross_entropy(model(batch[0]), batch[1])

    facts = facts_of(sampler=sampler, loss=loss)
    assert facts.feedback_reason == (FEEDBACK if step else None)


def test_a_dataset_smaller_than_a_batch_is_sound() -> None:
    """All there is makes the batch."""
    facts = facts_of(dataset=mistakes.dataset(3))
    assert (facts.samples, facts.batch_bytes) == (3, 3 * 4 * 4 + 3 * 8)


class OwnWeights(nn.Linear):
    """Convolves by a function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each output is a channel."""
        return nn.functional.conv1d(x[:, None], self.weight[:, None], self.bias).flatten(1)


def test_convolutions_are_noticed() -> None:
    """By their dimensions, in modules or functions; a weight of four dimensions, as a bias of attention, is none."""
    model = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2), nn.Flatten(1), nn.Unflatten(1, (1, 2)))
    model.append(nn.Sequential(nn.ConvTranspose1d(1, 1, 1), nn.Flatten()))
    assert facts_of(model=model).convolves == (1, 2)
    assert facts_of(model=OwnWeights(4, 2)).convolves == (1,)
    biased = nn.Linear(4, 2)
    biased.relative = nn.Parameter(torch.ones(1, 1, 2, 2))
    assert facts_of(model=biased).convolves == ()


def test_attention_is_noticed() -> None:
    """Scaled dot-product attention is seen when it runs, wherever it is called from."""

    def attends(model: nn.Module, batch: Any) -> torch.Tensor:
        features = model(batch[0])[None, None]
        return functional.scaled_dot_product_attention(features, features, features).square().mean()

    assert facts_of(loss=attends).has_attention


@pytest.mark.parametrize("batch_size", [8, 1])
def test_padded_batches_have_no_fixed_shapes(batch_size: int) -> None:
    """Sentences of several lengths make batches of several shapes, which a batch of one sample cannot hide."""

    def pad(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        words, labels = zip(*samples, strict=True)
        return pad_sequence(words, batch_first=True), torch.tensor(labels)

    sentences = mistakes.Mapped(lambda index: (torch.ones(1 + index), 0))
    model = nn.Linear(1, 2)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0].sum(1, keepdim=True)), batch[1])

    facts = facts_of(dataset=sentences, collate_fn=pad, model=model, loss=loss, batch_size=batch_size)
    assert not facts.fixed_shapes


def contrast(model: nn.Module, batch: Any) -> torch.Tensor:
    """Tells each sample from the others of its batch."""
    scores = model(batch[0])
    return functional.cross_entropy(functional.normalize(scores) @ functional.normalize(scores).T, batch[1] * 0)


def noisy(model: nn.Module, batch: Any) -> torch.Tensor:
    """The mean over samples, of which each gets some noise, as a diffusion model's does."""
    return ((model(batch[0]) - 3 * torch.randn(len(batch[1]), 2)) ** 2).mean()


def over_tokens(model: nn.Module, batch: Any) -> torch.Tensor:
    """The mean over tokens; some samples have many."""
    counts = batch[0].abs().sum(1)
    return (counts * functional.cross_entropy(model(batch[0]), batch[1], reduction="none")).sum() / counts.sum()


@pytest.mark.parametrize(
    ("loss", "is_coupled"),
    [
        (mistakes.loss, False),
        (over_tokens, False),
        (noisy, False),
        (contrast, True),
        (lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"), True),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_loss_that_is_no_average_over_samples_is_known(loss: Any, is_coupled: bool, seed: int) -> None:
    """Micro-batches of another size would train something else, which no comparison of equal batches shows."""
    torch.manual_seed(seed)
    samples = [(torch.randn(4) * 3, index % 2) for index in range(64)]
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    facts = facts_of(dataset=mistakes.Mapped(lambda index: samples[index]), model=model, loss=loss)
    assert (facts.coupling > 0.01) == is_coupled
    assert all(part.training for part in model.modules())


def labelled(index: int) -> dict[str, Any]:
    """A sample by the names of its parts."""
    return {"features": torch.full((4,), float(index)), "labels": index % 2}


def test_a_collation_may_change_the_samples() -> None:
    """It takes the labels out, as many a collation of transformers does."""

    def collate(samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.tensor([sample.pop("labels") for sample in samples])
        return torch.stack([sample["features"] for sample in samples]), labels

    assert facts_of(dataset=mistakes.Mapped(labelled), collate_fn=collate).batch_bytes == 8 * (4 * 4 + 8)


def popping(model: nn.Module, batch: mistakes.Encoding) -> torch.Tensor:
    """Takes the labels out of the batch, and gives the features another shape, in place."""
    return functional.cross_entropy(model(batch["features"].unsqueeze_(1)).squeeze(1), batch.pop("labels"))


def test_a_loss_may_change_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of the check gets a batch of its own, also those that are timed."""
    steps = []

    def paced(step: Callable[[Any], object], _: torch.device, make: Callable[[], Any]) -> dict[str, Any]:
        steps.extend(step(make()) for _ in range(3))
        return {}

    monkeypatch.setattr(check, "pace_of", paced)
    facts = facts_of(dataset=mistakes.Mapped(labelled), collate_fn=mistakes.encode, loss=popping)
    assert len(steps) == 3
    assert facts.flops_per_sample is not None
    assert facts.batch_bytes == 8 * (4 * 4 + 8)


def test_only_the_first_loss_is_that_of_the_first_batch() -> None:
    """A step may take too far; it is for bursts to tell, by the loss that they train with."""
    assert facts_of(optimizer=lambda weights: torch.optim.SGD(weights, lr=math.inf)).parameters == 10


def test_what_is_copied_is_no_more_than_the_batch() -> None:
    """A row of all data is copied without them; an open file is passed on as it is."""
    everything = torch.zeros(1000, 4)
    row = copied({"features": everything[0]})["features"]
    assert row.untyped_storage().nbytes() == 4 * 4
    with open(__file__) as file:
        sample = {"file": file}
        assert copied(sample) is sample


@pytest.mark.parametrize("seed", range(8))
def test_random_numbers_of_a_collate_fn_are_no_coupling(seed: int) -> None:
    """As masks of a language model: each look at the halves draws others."""

    def masks(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        values, labels = zip(*samples, strict=True)
        return torch.stack(values) * (torch.rand(len(values), 4) > 0.5) * 9, torch.tensor(labels)

    torch.manual_seed(seed)
    samples = [(torch.randn(4), index % 2) for index in range(64)]
    facts = facts_of(dataset=mistakes.Mapped(lambda index: samples[index]), collate_fn=masks)
    assert facts.coupling == 0


def test_a_slow_batch_is_tried_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check takes seconds, however large the batch; the bytes are those of a whole one all the same."""
    monkeypatch.setattr(check, "FETCH_SECONDS", 0.02)
    read = []

    def slow(index: int) -> tuple[torch.Tensor, int]:
        read.append(index)
        time.sleep(0.02)
        return torch.ones(4), 0

    facts = facts_of(dataset=mistakes.Mapped(slow), batch_size=64)
    assert len(read) < 64  # a look at whether samples are always the same reads some of them again
    assert facts.batch_bytes == 64 * (4 * 4 + 8)
    assert facts.sample_seconds >= 0.02


@pytest.mark.parametrize("waits", [True, False])
def test_it_is_known_whether_reading_waits_or_computes(waits: bool) -> None:
    """What computes is stopped at once with its process; a wait goes on, and ends unseen."""

    def read(index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.02) if waits else sum(range(300_000))
        return torch.ones(4), 0

    fraction = facts_of(dataset=mistakes.Mapped(read), batch_size=8).sample_wait_fraction
    assert fraction > 0.8 if waits else fraction < 0.8


def test_samples_are_drawn_by_the_sampler() -> None:
    """A sampler that knows which samples can be read is followed."""

    def read(index: int) -> tuple[torch.Tensor, int]:
        if index < 32:
            raise FileNotFoundError(index)
        return torch.ones(4), 0

    dataset = mistakes.Mapped(read)
    assert facts_of(dataset=dataset, sampler=list(range(32, 64))).samples == 64


def test_lazy_parameters_are_counted_once_they_exist() -> None:
    """A model that takes its sizes from the first batch is sound."""
    assert facts_of(model=nn.LazyLinear(2)).parameters == 10


def test_the_fingerprint_is_of_what_is_trained() -> None:
    """The same workload has the same one; another model, dataset, optimizer or effective batch another."""
    same = facts_of().fingerprint
    assert facts_of(name="renamed").fingerprint == same
    assert facts_of(batch_size=4, accumulation_steps=2).fingerprint == same
    others = [
        facts_of(model=nn.Sequential(nn.Linear(4, 2))),
        facts_of(dataset=mistakes.dataset(32)),
        facts_of(optimizer=torch.optim.SGD),
        facts_of(batch_size=16),
    ]
    assert len({same, *(facts.fingerprint for facts in others)}) == 5


def test_operators_of_a_few_microseconds_are_told_from_long_ones() -> None:
    """By the share of the loss's time that they take: there compiling promises most."""

    class Steps(nn.Module):
        """Many tiny operations, or one large one."""

        def __init__(self, width: int, steps: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(width, width))
            self.steps = steps

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            value = self.weight
            for _ in range(self.steps):
                value = value @ self.weight if self.steps == 1 else value * 0.999
            return value.mean() + 0 * features.mean()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0])  # type: ignore[no-any-return]

    assert facts_of(model=Steps(4, 2000), loss=loss).small_operators_fraction > 0.9
    assert facts_of(model=Steps(1000, 1), loss=loss).small_operators_fraction < 0.1


def test_a_model_and_its_optimizer_are_described() -> None:
    """By which a training script's own are compared with them."""
    model = facts_of(optimizer=torch.optim.SGD).model
    assert model is not None
    assert (model.optimizer, model.weights) == ("SGD", facts_of().parameters)


def test_fused_is_not_offered_where_a_step_leaves_a_weight_without_momentum() -> None:
    """Torch's fused SGD fails when the weight gets its first gradient, as a frozen layer does later."""

    def with_momentum(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([*params, nn.Parameter(torch.ones(2))], 0.1, momentum=0.9)

    assert facts_of(optimizer=with_momentum).optimizer_impls == ("foreach",)


def test_that_results_are_to_be_deterministic_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the user's module tells torch; cuDNN is then not asked to search."""
    assert not facts_of().deterministic
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    assert facts_of().deterministic


class Replacing(nn.Linear):
    """Assigns new parameters in its forward pass, as normalised weights are wrongly made."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The optimizer holds the old weight from here on."""
        self.weight = nn.Parameter(self.weight.detach() * 0.9)
        return super().forward(features)


def test_parameters_that_the_loss_replaces_are_told() -> None:
    """The optimizer does not hold the new ones, so that nothing trains them; a sound model has no such note."""
    (note,) = facts_of(model=Replacing(4, 2)).notes
    assert note.startswith("the loss replaces 1 of 2 parameters of the model (weight, …)")
    assert "in place" in note
    assert facts_of().notes == ()


def test_what_bursts_leave_out_is_a_sentence() -> None:
    """As an adapter states it."""
    assert facts_of(notes=("the callback Logger",)).notes == ("bursts leave out the callback Logger",)


def test_no_worker_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check runs in its own process, whatever the baseline's workers."""

    def started(loader: DataLoader[Any]) -> None:
        raise AssertionError("a loader was iterated")

    monkeypatch.setattr(DataLoader, "__iter__", started)
    baseline = TrainConfig(batch_size=8, num_workers=2, compile_mode="default")
    assert facts_of(baseline=baseline).baseline == baseline


def test_a_data_set_whose_samples_never_change_may_be_collated_once() -> None:
    """Its bytes are told; of one that draws by chance, or cannot be collated so, the reason."""
    sound = facts_of()
    assert sound.placeable_bytes is not None
    assert sound.samples is not None
    assert sound.placeable_bytes == pytest.approx(sound.batch_bytes / sound.baseline.batch_size * sound.samples)
    augmented = facts_of(dataset=mistakes.Mapped(lambda index: (torch.randn(4), index % 2)))
    assert augmented.placeable_bytes is None
    assert "differ from time to time" in (augmented.unplaceable_reason or "")
    streamed = facts_of(dataset=mistakes.Stream(64))
    assert "no length" in (streamed.unplaceable_reason or "")


class Slow(nn.Linear):
    """A model whose call takes a known time."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Waits, and computes next to nothing."""
        time.sleep(0.03)
        return super().forward(rows)


@pytest.mark.parametrize(
    ("seconds", "calls", "low", "high"), [(0.0, True, 0.0, 0.3), (0.09, True, 0.6, 0.9), (0.0, False, 1.0, 1.0)]
)
def test_what_goes_past_the_model_is_known(seconds: float, calls: bool, low: float, high: float) -> None:
    """The loss's own part of the time; all of it where the model is never called as such."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        scores = model(batch[0]) if calls else functional.linear(batch[0], model.weight, model.bias)
        time.sleep(seconds)
        return functional.cross_entropy(scores, batch[1])

    assert low <= facts_of(model=Slow(4, 2), loss=loss).outside_fraction <= high


def test_the_padding_of_a_batch_of_texts_is_seen() -> None:
    """As batches are collated, and as they would be by length; of numbers nothing is said."""

    def collate(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        texts = [torch.randint(1, 100, (4 + 4 * number,)) for number in range(len(samples))]
        return pad_sequence(texts, batch_first=True), torch.stack([target for _, target in samples])

    model = nn.EmbeddingBag(100, 3)
    facts = facts_of(model=model, collate_fn=collate, batch_size=8)
    assert facts.padding_fraction == pytest.approx(1 - sum(range(4, 36, 4)) / (8 * 32))
    assert facts.sorted_padding_fraction is not None
    assert facts.sorted_padding_fraction < facts.padding_fraction
    assert facts_of().padding_fraction is None


VOCABULARY, TOKENS, FEATURES = 4096, 128, 16


def of_language(kept: nn.Module) -> WorkloadFacts:
    """The facts of a small language model: eight texts a batch."""
    texts = [torch.randint(0, VOCABULARY, (TOKENS,)) for _ in range(16)]

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())

    return facts_of(model=kept, dataset=texts, loss=loss, batch_size=8)


def peak_bytes(step: Callable[[], object]) -> int:
    """The most that a step allocates at once, as torch's profiler counts it."""
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events: Any = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate(change for _, change in changes))


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyLoss"), reason="torch 2.13 has the first fused loss")
def test_a_fused_loss_saves_what_the_advice_says() -> None:
    """Counted while a small language model really trains: three times the scores, but for those of a chunk."""
    model = nn.Sequential(nn.Embedding(VOCABULARY, FEATURES), nn.Linear(FEATURES, VOCABULARY, bias=False))
    facts = of_language(model)
    assert (facts.classes, facts.score_bytes) == (VOCABULARY, TOKENS * VOCABULARY * 4)
    body, head = model
    options = nn.LinearCrossEntropyOptions(chunking_method=None, batch_chunk_size=SCORE_CHUNK)
    batch = torch.randint(0, VOCABULARY, (8 * TOKENS,))

    def train(loss: Callable[[], torch.Tensor]) -> None:
        loss().backward()  # type: ignore[no-untyped-call]
        model.zero_grad()

    plain = peak_bytes(lambda: train(lambda: functional.cross_entropy(model(batch), batch)))
    fused = peak_bytes(
        lambda: train(lambda: functional.linear_cross_entropy(body(batch), head.weight, batch, options=options))
    )
    assert saved_by_chunks(facts, 8) == pytest.approx(plain - fused, rel=0.1)
