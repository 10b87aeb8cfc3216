"""transformers: keyword arguments of ``TrainingArguments``, and a ``Trainer`` with the tuned loader and the rest."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from autotune.integrations import common
from autotune.integrations.common import Missing
from autotune.knobs import KNOBS, framework_arguments, loader_arguments
from autotune.recorder.drawing import Own
from autotune.torch_settings.undo import put
from autotune.training.ranks import this_rank

if TYPE_CHECKING:
    from autotune.training.tuned import Tuned, TunedLoader


def training_kwargs(tuned: Tuned, **yours: Any) -> dict[str, Any]:
    """Keyword arguments of ``TrainingArguments``. Your own are added, and take precedence.

    They set batch sizes (of evaluation too, if the result has one), accumulation, bf16, fp16, tf32, torch_compile and
    its mode, the fused AdamW, workers, prefetching, pinning, non_blocking and use_cpu. Pass the Trainer that you make
    with them to `tune_trainer`, which applies the other knobs. Warns of each knob that transformers cannot apply.
    """
    words, missing = _words(tuned)
    if tuned.device.index and this_rank().alone:
        missing["device"] = "it takes the first that is visible: set CUDA_VISIBLE_DEVICES"
    common.tell("transformers", tuned, missing)
    return {**words, **yours}


def tune_trainer(tuned: Tuned, trainer: Any) -> Any:
    """Applies the tuned settings to a ``Trainer`` (or one of a derived class), and returns it.

    Its train loader gets the tuned settings; samples are drawn and collated as before. When training begins, layout,
    the optimizer's form, attention, threads and allocator are applied, and compiling if the arguments do not set it.
    Warns of each knob that is not in effect, for example because the arguments are not those of `training_kwargs`.
    """
    common.require_tuned(tuned)
    original = trainer.get_train_dataloader

    def made_again(loader: Any) -> TunedLoader:
        steps, ranks = trainer.args.gradient_accumulation_steps, common.splitting(trainer.accelerator)
        keeps = trainer._train_batch_size != trainer.args.train_batch_size  # auto_find_batch_size has lowered it
        made, missing = common.tuned_loader(tuned, loader, steps, ranks, keeps=keeps)
        if tuned.result is not None and loader.num_workers == made.num_workers:  # as `training_kwargs` has set it
            made.own = Own.given(loader_arguments(tuned.result.baseline.config))
        common.tell("transformers", tuned, missing)
        return made

    def get_train_dataloader() -> Any:
        # Applied before the Trainer shares out the samples among ranks: not all of its ways can be taken back.
        prepare = trainer.accelerator.prepare

        def prepare_tuned(loader: Any, *given: Any, **words: Any) -> Any:
            if not isinstance(loader, DataLoader):
                return prepare(loader, *given, **words)
            made = made_again(loader)
            prepared = prepare(made, *given, **words)
            common.tell("transformers", tuned, common.draw_as(prepared, made))
            return prepared

        undo = put(trainer.accelerator, "prepare", prepare_tuned)
        try:
            loader = original()
        finally:
            undo()
        return loader if hasattr(loader, "base_dataloader") else made_again(loader)

    trainer.get_train_dataloader = get_train_dataloader
    train, callback = trainer.train, _callback_class()(tuned)

    @functools.wraps(train)
    def train_tuned(*given: Any, **words: Any) -> Any:
        try:
            return train(*given, **words)
        finally:  # a Trainer calls on_train_end only if nothing is raised
            callback.revert()

    trainer.train = train_tuned
    trainer.add_callback(callback)
    common.tell("transformers", tuned, _differences(tuned, trainer.args))
    return trainer


def _words(tuned: Tuned) -> tuple[dict[str, Any], Missing]:
    """The config as ``TrainingArguments``, and the knobs for which they have no argument."""
    from transformers import TrainingArguments

    half, missing = common.half_precision(tuned)
    config = tuned.config
    words: dict[str, Any] = {
        **framework_arguments("transformers", config),
        "bf16": half == "bf16",
        "fp16": half == "fp16",
        "accelerator_config": {"non_blocking": config.non_blocking},
        "use_cpu": tuned.device.type == "cpu",
    }
    if tuned.result is not None and tuned.result.evaluation is not None:
        words["per_device_eval_batch_size"] = tuned.eval_batch_size
    if config.precision == "tf32" and tuned.device.type == "cuda":
        words["tf32"] = True
    if common.compiles_itself(tuned):
        words |= {"torch_compile": True, "torch_compile_mode": config.compile_mode}
    more, missing_exchange = common.ddp_words(tuned, TrainingArguments.__dataclass_fields__, "ddp_")
    words, missing = words | more, missing | missing_exchange
    measured = tuned.result.workload.model if tuned.result is not None else None
    if config.optimizer_impl != "default":  # unknown: transformers' own default is AdamW
        optimizer = measured.optimizer if measured is not None else "AdamW"
        words |= KNOBS["optimizer_impl"].written["transformers"](config.optimizer_impl, optimizer) or {}
    return words, missing


def _differences(tuned: Tuned, args: Any) -> Missing:
    """Knobs that a Trainer's arguments set to other values."""
    words, _ = _words(tuned)
    missing = common.differences(
        {
            "accumulation_steps": (tuned.accumulation_steps, args.gradient_accumulation_steps),
            "non_blocking": (tuned.config.non_blocking, args.accelerator_config.non_blocking),
        }
    )
    if (words["bf16"], words["fp16"]) != (args.bf16, args.fp16):
        missing["precision"] = f"its arguments say bf16={args.bf16}, fp16={args.fp16}"
    if args.torch_compile and (args.torch_compile_mode or "default") != tuned.config.compile_mode:
        missing["compile_mode"] = f"its arguments say torch_compile_mode={args.torch_compile_mode}"
    if args.n_gpu > 1:
        missing["batch_size"] = f"it splits batches over {args.n_gpu} GPUs: set CUDA_VISIBLE_DEVICES"
    return missing


@functools.cache
def _callback_class() -> Any:
    """The class of the callback, derived from transformers' own."""
    from transformers import TrainerCallback

    class TunedCallback(TrainerCallback):  # type: ignore[misc]
        """Applies the knobs without a ``TrainingArguments`` argument; the model has its own calls again in the end."""

        def __init__(self, tuned: Tuned) -> None:
            self._tuned = tuned
            self._model: Any = None
            self._undo = contextlib.ExitStack()

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            """Applies the knobs; the model is on its device, the optimizer exists, and no step has run."""
            model, optimizer = kwargs["model"], kwargs["optimizer"]
            if model is self._model:
                return
            self._model = model
            self._undo = common.calls_undone(model)
            inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
            steps = args.gradient_accumulation_steps
            missing = common.apply(
                self._tuned, model, [inner], device=args.device, compiles=args.torch_compile, micro_steps=steps
            )
            common.tell("transformers", self._tuned, missing)

        def revert(self) -> None:
            """Reverts what was replaced; another training begins anew."""
            self._undo.close()
            self._model = None

    return TunedCallback


def live_callback(out: str | Path | None = None, allow: str = "") -> Any:
    """A ``TrainerCallback`` that tunes the running training, as `autotune.live` does.

    Args:
        out: Path beside which the log for ``autotune watch`` is written; without it there is no log.
        allow: Settings to try although they change what is learned: ``precision``.
    """
    from transformers import TrainerCallback

    from autotune.training import live

    class LiveCallback(TrainerCallback):  # type: ignore[misc]
        """Tunes a running training."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            """Starts tuning, before any batch is drawn."""
            live.begin(out, allow)

    return LiveCallback()
