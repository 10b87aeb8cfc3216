"""Lightning trains with a tuned config, in a real ``Trainer.fit``: what the other frameworks do not have."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, default_collate

from autotune.knobs.config import TrainConfig
from autotune.results.result import Evaluation
from autotune.training import live
from autotune.training.placement import placement_seconds
from autotune.training.tuned import Tuned
from tests.factories import make_result

pytest.importorskip("lightning")

from lightning.pytorch import Callback, LightningModule, Trainer

from autotune.integrations.lightning import live_callback, trainer_kwargs, tuned_callback, tuned_datamodule
from tests.integrations.models import compiling, images, loss_fn, operators, tuned
from tests.integrations.trainings.by_lightning import Data, Module, Run
from tests.knobs.models import stack

pytestmark = pytest.mark.filterwarnings("ignore:.*(many workers|logging interval|barebones|isinstance.treespec)")


class LoadingModule(Module):
    """A LightningModule with a `train_dataloader` of its own, which takes the place of the DataModule."""

    def train_dataloader(self) -> Any:
        return DataLoader(images(), shuffle=True)


def test_the_benchmark_of_cudnn_is_an_argument() -> None:
    """Lightning has a word for it; off leaves it as it is."""
    assert trainer_kwargs(tuned(cudnn_benchmark=True))["benchmark"] is True
    assert trainer_kwargs(tuned())["benchmark"] is None


def test_the_step_is_compiled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network and its loss are compiled, though the step logs; afterwards the module is as before."""
    module = Module()
    module.seen = None  # type: ignore[assignment]
    module.net.conv._forward_hooks.clear()
    before = module.net.head.bias.detach().clone()
    with compiling(monkeypatch) as graphs:
        ran = Run(tuned(compile_mode="default", batch_size=13), module)
    assert "conv2d" in operators(graphs)
    assert "cross_entropy" in operators(graphs)
    assert ran.told == []
    assert not torch.equal(module.net.head.bias, before)
    assert not {"training_step", "log"} & vars(module).keys()


class Deep(LightningModule):
    """Blocks that repeat, and what they compute."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = stack(3, dropout=0.0)
        self.calls = 0
        for block in self.blocks:
            block[0].register_forward_hook(self._count)  # type: ignore[index]

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.blocks(batch[0].flatten(1)[:, :8]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_blocks_are_compiled_and_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block alone rather than the step; afterwards the module is as before."""
    module: Any = Deep()
    with compiling(monkeypatch) as graphs:
        ran = Run(tuned(compile_mode="blocks", batch_size=13), module)
    assert "linear" in operators(graphs)
    assert "pow" not in operators(graphs)
    again: Any = Deep()
    assert Run(tuned(checkpointing="blocks", batch_size=13), again).told == ran.told == []
    assert again.calls == 2 * 3 * 2
    for block in (*module.blocks, *again.blocks):
        assert not {"forward", "_compiled_call_impl"} & vars(block).keys() or block._compiled_call_impl is None


def test_arguments_and_callbacks_of_the_user_stay() -> None:
    """Yours win over the tuned ones; your callbacks are called too."""
    called: list[str] = []

    class Mine(Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            called.append("mine")

    ran = Run(tuned(accumulation_steps=2, batch_size=13), callbacks=Mine(), precision="bf16-mixed")
    assert called == ["mine"]
    assert ran.trainer.precision == "bf16-mixed"
    assert ran.told == ["Lightning does not apply what was tuned: precision=fp32 (it is bf16-mixed)"]


@pytest.mark.parametrize("loads", [Data, LoadingModule])
def test_a_step_keeps_its_samples_where_accumulation_is_not_the_tuned_one(loads: Any) -> None:
    """The loader keeps its batch size, which is told; without a trainer, accumulation is the tuned one."""
    setting = tuned(batch_size=13)
    data = tuned_datamodule(setting, loads())
    assert data.train_dataloader().batch_size == 13
    arguments = {"logger": False, "enable_checkpointing": False, "accumulate_grad_batches": 3}
    trainer = Trainer(max_epochs=1, **arguments)
    with pytest.warns(UserWarning, match=r"batch_size=13 \(it is 1\)"):
        trainer.fit(*((data,) if isinstance(data, Module) else (Module(), data)))
    assert trainer.train_dataloader.batch_size == 1


class Scheduled(Module):
    """Its learning rate changes every four micro-batches."""

    def configure_optimizers(self) -> Any:
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer := super().configure_optimizers())
        return [optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 4}]


@pytest.mark.parametrize(
    ("module", "yours", "counts"),
    [
        (Module, {"limit_train_batches": 2}, "limit_train_batches=2 counts"),
        (Module, {"val_check_interval": 1}, "val_check_interval=1 counts"),
        (Module, {"val_check_interval": "00:00:15:00"}, None),
        (Scheduled, {}, "a scheduler's frequency=4 counts"),
        (Scheduled, {"limit_train_batches": 2}, "limit_train_batches=2 and a scheduler's frequency=4 count"),
        (Module, {"fast_dev_run": 2}, None),
        (Module, {}, None),
    ],
)
@pytest.mark.parametrize("batch_size", [13, 26])
def test_what_counts_micro_batches_is_told(module: Any, yours: dict[str, Any], counts: Any, batch_size: int) -> None:
    """Where there are more of them, or fewer, than in the baseline; else it counts as before."""
    result = make_result()
    baseline = result.baseline.model_copy(update={"config": TrainConfig(batch_size=26)})
    setting = Tuned(
        TrainConfig(batch_size=batch_size, accumulation_steps=26 // batch_size),
        result=result.model_copy(update={"baseline": baseline}),
    )
    ran = Run(setting, module(), **yours)
    fit = "they still fit" if " and " in str(counts) else "it still fits"
    told = [f"{counts} micro-batches: a step now has 2 of 13 samples instead of 1 of 26; check that {fit}"]
    assert ran.told == (told if counts and batch_size == 13 else [])
    assert ran.callback.not_in_effect == ()


class Manual(Module):
    """Steps by itself, every few batches."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        optimizer: Any = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        if batch_idx % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
        return loss


def test_a_module_that_steps_by_itself_accumulates_as_it_says() -> None:
    """Lightning demands that the trainer accumulates nothing then."""
    ran = Run(tuned(batch_size=13, accumulation_steps=3), Manual(), accumulate_grad_batches=1)
    assert ran.trainer.train_dataloader.batch_size == 13
    assert ran.told == []


def test_a_loader_that_was_not_tuned_is_told() -> None:
    """Each of its settings that is another is named, with what it is."""
    ran = Run(tuned(batch_size=8, num_workers=1), data=Data())
    (sentence,) = ran.told
    assert "batch_size=8 (it is 1)" in sentence
    assert "num_workers=1 (it is 0)" in sentence
    assert ran.callback.not_in_effect == ("batch_size", "num_workers", "prefetch_factor")


def test_an_optimizer_without_the_form_is_told() -> None:
    """It trains as it is."""
    ran = Run(tuned(optimizer_impl="fused", batch_size=13), Module(torch.optim.RMSprop))
    assert ran.told == [
        "Lightning does not apply what was tuned: optimizer_impl=fused (RMSprop has no such form)"
    ]  # fmt: skip
    assert ran.steps == 2


def test_each_optimizer_that_can_is_switched() -> None:
    """A module that steps by itself may have more than one; those that cannot train as they are."""

    class Manual(Module):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss_fn(self.net, batch).backward()
            for optimizer in self.optimizers():  # type: ignore[union-attr]
                optimizer.step()
                optimizer.zero_grad()

        def configure_optimizers(self) -> Any:
            kinds = torch.optim.SGD, functools.partial(torch.optim.Adam, differentiable=True), torch.optim.SGD
            parts = self.net.conv, nn.Linear(1, 1), self.net.head
            return [kind(part.parameters(), lr=0.01) for kind, part in zip(kinds, parts, strict=True)]

    ran = Run(tuned(optimizer_impl="fused", batch_size=13), Manual())
    assert [optimizer.defaults["fused"] for optimizer in ran.trainer.optimizers] == [True, None, True]
    assert ran.told == [
        "Lightning does not apply what was tuned: optimizer_impl=fused (the optimizer is differentiable)"
    ]
    assert ran.callback.not_in_effect == ("optimizer_impl",)


def test_clipping_in_fp16_is_kept_before_the_fused_form() -> None:
    """Lightning refuses both together; it needs a GPU to train so, so the hook is called by hand."""
    module = Module()
    optimizer = module.configure_optimizers()
    trainer = SimpleNamespace(precision="16-mixed", gradient_clip_val=1.0, optimizers=[optimizer], datamodule=None)
    callback = tuned_callback(tuned(optimizer_impl="fused"))
    callback.on_fit_start(trainer, module)
    assert not optimizer.defaults["fused"]
    assert "does not clip gradients that a fused optimizer unscales" in callback._missing["optimizer_impl"]


def test_batches_of_the_users_own_are_kept_and_told() -> None:
    """A batch sampler decides what a batch is; the rest of the loader is tuned."""

    class Own(Data):
        def train_dataloader(self) -> Any:
            data = images()

            class Pairs(BatchSampler):
                """A class of its own."""

            return DataLoader(data, batch_sampler=Pairs(SequentialSampler(data), 2, drop_last=True))

    setting = tuned(batch_size=8, num_workers=1)
    with pytest.warns(UserWarning, match=r"batch_size=8 \(the loader's own batches are kept\)"):
        loader = tuned_datamodule(setting, Own()).train_dataloader()
    assert (loader.num_workers, len(next(iter(loader))[1])) == (1, 2)


def test_a_data_set_is_collated_once() -> None:
    """Lightning trains on the batches that are selected from it, and nothing is missing."""
    ran = Run(tuned(batch_size=4, data_placement="collated"))
    assert (ran.told, ran.steps) == ([], 7)
    assert placement_seconds(ran.loader.dataset) is not None


def test_evaluation_has_its_own_batch_size() -> None:
    """Where one was found; the module's other loaders, and batches of its own, stay as they are."""

    class Evaluating(Data):
        def val_dataloader(self) -> Any:
            return [DataLoader(images(), batch_size=2), DataLoader(images(), batch_size=None)]

        def test_dataloader(self) -> Any:
            return DataLoader(images(), batch_size=2)

    evaluation = Evaluation(batch_size=16, samples_per_second=None, ratio=1.5)
    result = make_result().model_copy(update={"evaluation": evaluation})
    data = tuned_datamodule(Tuned(TrainConfig(batch_size=4), result=result), Evaluating())
    sizes = [[len(batch[0]) for batch in loader] for loader in (data.val_dataloader()[0], data.test_dataloader())]
    assert sizes == [[16, 10], [16, 10]]
    assert data.val_dataloader()[1].batch_size is None
    plain = tuned_datamodule(tuned(batch_size=4), Evaluating())
    assert plain.test_dataloader().batch_size == 2


def test_several_loaders_are_told_and_stay() -> None:
    """What was tuned for one is not right for each of several."""

    class Several(Data):
        def train_dataloader(self) -> Any:
            return [DataLoader(images()), DataLoader(images())]

    with pytest.warns(UserWarning, match=r"batch_size=8 \(the train data comes from no single DataLoader\)"):
        loaders = tuned_datamodule(tuned(batch_size=8), Several()).train_dataloader()
    assert [loader.batch_size for loader in loaders] == [1, 1]


def test_a_module_that_loads_itself_can_be_tuned(tmp_path: Path) -> None:
    """It takes the place of the DataModule."""
    setting = tuned(batch_size=13)
    module = tuned_datamodule(setting, LoadingModule())
    trainer = Trainer(
        **trainer_kwargs(setting, max_epochs=1, logger=False, enable_checkpointing=False, default_root_dir=tmp_path)
    )
    trainer.fit(module)
    assert trainer.train_dataloader.batch_size == 13
    assert trainer.global_step == 2


def test_live_tuning_begins_with_a_fit_before_its_loader_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """`configure_optimizers` may ask for the number of steps, as for a warm-up: then the loader is made there."""
    order: list[str] = []
    monkeypatch.setattr(live, "begin", lambda *_: order.append("tuning"))

    class Asking(LoadingModule):
        def configure_optimizers(self) -> Any:
            assert self.trainer.estimated_stepping_batches == 26
            return super().configure_optimizers()

        def train_dataloader(self) -> Any:
            order.append("loader")
            return super().train_dataloader()

        def validation_step(self, *_: Any) -> None:
            order.append("evaluation")

    trainer = Trainer(max_epochs=1, limit_val_batches=1, barebones=True, callbacks=[live_callback()])
    trainer.validate(module := Asking(), DataLoader(images()))
    trainer.fit(module)
    assert order == ["evaluation", "tuning", "loader"]


def test_the_callback_suits_the_other_package_too() -> None:
    """``pytorch_lightning`` has classes of its own."""
    other = pytest.importorskip("pytorch_lightning")
    assert isinstance(tuned_callback(tuned()), (Callback, other.Callback))
    assert isinstance(tuned_callback(tuned()), other.Callback)


class Collating(Data):
    """Collates by a method, through which workers would hold the trainer."""

    def collate(self, samples: list[Any]) -> Any:
        return default_collate(samples)

    def train_dataloader(self) -> Any:
        return DataLoader(images(), collate_fn=self.collate)


def test_workers_persist_where_a_method_collates() -> None:
    """The trainer, which the method's owner refers to, changes with each step; the data do not."""
    data = tuned_datamodule(tuned(num_workers=1, persistent_workers=True), Collating())
    trainer = Trainer(max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(Module(), data)
    assert trainer.train_dataloader.why_restarted is None
