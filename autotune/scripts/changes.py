"""The knobs that cannot be changed in a script from outside, and why."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.knobs import KNOBS, affecting
from autotune.knobs.loader import REPEATED
from autotune.scripts.seen import SeenLoader, SeenScript

BEGUN_ANEW = 2
"""A script restarts its loader if it abandons this many passes during a look: a single one may be chance. Not tuned."""
MAY_CHANGE_DATA = "the script may change its data between epochs"


def held_knobs(seen: SeenScript, *, batch_is_free: bool) -> dict[str, str]:
    """The knobs that cannot be changed in a script from outside, each with the reason."""
    held = {name: "it cannot be changed from outside the script" for name, knob in KNOBS.items() if not knob.is_outside}
    return held | _held_in_loader(seen, batch_is_free=batch_is_free) | _held_in_model(seen)


def _held_in_loader(seen: SeenScript, *, batch_is_free: bool) -> dict[str, str]:
    """The held knobs of loaders."""
    held: dict[str, str] = {}
    if not seen.loaders:
        no_loader = "the script trains without a DataLoader"
        if own := seen.source.get("own_loaders"):
            no_loader = f"{own[0]} iterates by itself, so that its batches cannot be followed"
        return {name: no_loader for name, knob in KNOBS.items() if knob.dataloader_argument or knob.on_copies}
    if seen.loaders[0].own_batches:
        held["batch_size"] = "the script makes its batches itself"
    elif (own := _why_not_made_again(seen.loaders)) is not None:
        held["batch_size"] = own
    elif not batch_is_free:
        held["batch_size"] = "another batch size would change the samples of a step; --effective-batch free tries it"
    if seen.loaders[0].iterable:
        held["num_workers"] = (
            "another number of workers would change the order of an iterable data set's samples"
            if seen.loaders[0].arguments["num_workers"]
            else f"{REPEATED}; if it does, give the script workers, whose number is then kept"
        )
    if (reason := _why_not_loaded(seen.loaders)) is not None:
        held |= {name: reason for name, knob in KNOBS.items() if knob.dataloader_argument and knob.part == "loader"}
    if any(loader.keeps_samples for loader in seen.loaders):
        keeps = "the data set keeps what it has read: workers would each keep their own, or read it all in every epoch"
        held |= {"num_workers": keeps, "persistent_workers": keeps}
    for copied in filter(None, (loader.copied for loader in seen.loaders)):
        held |= {"num_workers": copied, "persistent_workers": copied}
    for feedback in filter(None, (loader.feedback for loader in seen.loaders)):
        held |= {"num_workers": feedback, "prefetch_factor": feedback}
    if seen.source.get("may_change_data"):
        held["persistent_workers"] = f"{MAY_CHANGE_DATA}, which workers that persist would not see"
    return held


def _held_in_model(seen: SeenScript) -> dict[str, str]:
    """The held knobs of models, optimizers and gradients."""
    held: dict[str, str] = {}
    if seen.steps_vary:
        varying = "steps hold different amounts of work, which other numerics could change"
        held |= dict.fromkeys(affecting("arithmetic"), varying)
    if seen.ranks > 1 and seen.ddp is None:
        held |= {name: "no DistributedDataParallel was seen" for name, knob in KNOBS.items() if knob.ddp_argument}
    elif seen.accumulation > 1:
        held["static_graph"] = "the script accumulates, and DDP's static graph fails where it leaves out an exchange"
    if seen.calls_unseen:
        past_hooks = "the script calls its model past torch's hooks, by forward()"
        held |= dict.fromkeys(("precision", "compile_mode", "checkpointing"), past_hooks)
    for name, value in seen.chosen.items():
        if name != "precision":  # other precisions may gain more than TF32
            held[name] = f"the script chooses {value if isinstance(value, str) else 'it'} itself"
    if seen.precision is not None:
        held["precision"] = f"the script chooses {seen.precision} itself"
    if seen.compiled:
        held["compile_mode"] = "the script compiles its model itself"
    if not seen.models:
        held |= {name: "the model was not seen" for name, knob in KNOBS.items() if knob.on_model or knob.outside}
    return held


def _why_not_made_again(loaders: Sequence[SeenLoader]) -> str | None:
    """Why a loader cannot be made again with other arguments; None if it can."""
    if any(loader.own_iterator for loader in loaders):
        return (
            "the class of the script's loader makes its own iterator, so that no other loader yields the same batches"
        )
    return None


def _why_not_loaded(loaders: Sequence[SeenLoader]) -> str | None:
    """Why a burst cannot measure what loading costs the script; None if it can."""
    if (own := _why_not_made_again(loaders)) is not None:
        return own
    if any(loader.is_cycled for loader in loaders):
        return (
            "itertools.cycle keeps the batches of the first epoch and replays them: the loader works in that one only"
        )
    if any(loader.begun_anew >= BEGUN_ANEW for loader in loaders[:1]):  # the one with the most batches drawn
        return "the script begins its loader again before its end, which would start workers again each time"
    return None
