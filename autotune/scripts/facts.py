"""Turns a look at a script into the facts of a workload, or the reason why it cannot be tuned as it is."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from autotune.errors import UsageError, WorkloadError
from autotune.hardware import Hardware
from autotune.knobs import KNOBS, TrainConfig, WorkloadFacts, arguments_as_knobs
from autotune.knobs.config import allowed_words
from autotune.results.result import ScriptRecord, Site, SourceRecord
from autotune.scripts.changes import BEGUN_ANEW
from autotune.scripts.script import Script
from autotune.scripts.seen import SeenScript
from autotune.stored import DeviceKind
from autotune.torch_settings.naming import fingerprint_of

_OF_LOOP = (
    "models", "optimizers", "updates_itself", "accumulation", "draws_ahead", "step_samples", "device", "ranks",
    "opens_group", "evaluation_bytes",
)  # fmt: skip
_HALF = {"bfloat16": "bf16", "float16": "fp16"}
_OF_SOURCE = ("may_change_data", "has_autotune")
BUILD = "write a build() for it, as the README shows"


def facts_of(seen: SeenScript, script: Script) -> WorkloadFacts:
    """The workload that a look has seen."""
    baseline = baseline_of(seen)
    main = seen.loaders[0] if seen.loaders else None
    samples = main.samples if main is not None else None
    shapes = seen.facts["model"]["shapes"]
    parts = [*seen.model_names, shapes, str(samples), str(seen.optimizer), str(baseline.effective_batch)]
    return WorkloadFacts.model_validate(
        {
            **seen.facts,
            "target": script.text,
            "name": script.name,
            "fingerprint": fingerprint_of(parts),
            "samples": samples,
            "baseline": baseline,
            "score_bytes": seen.facts["score_bytes"] // baseline.batch_size,
            "unplaceable_reason": "a script's loader is not looked into",
            "notes": notes_on(seen),
            "fork_safe": True,
        }
    )


def baseline_of(seen: SeenScript) -> TrainConfig:
    """The script's own config."""
    values: dict[str, Any] = {
        "batch_size": seen.step_samples,
        "accumulation_steps": seen.accumulation,
        "ranks": seen.ranks,
        "precision": "fp32",
        "compile_mode": "default" if seen.compiled else None,
        "num_threads": seen.threads if seen.threads != seen.default_threads else None,
    }
    device = cast("DeviceKind", seen.device)
    chosen = {name: value for name, value in seen.chosen.items() if is_value(name, value, device)}
    values |= {**chosen, **({"precision": _HALF.get(seen.precision, "fp32")} if seen.precision is not None else {})}
    values |= arguments_as_knobs(seen.ddp or {}, "ddp_argument")
    if seen.loaders:
        usual = round(statistics.median(seen.samples)) if seen.samples else 1
        size = max(1, seen.loaders[0].arguments["batch_size"] or usual)
        values |= {**arguments_as_knobs(seen.loaders[0].arguments, "dataloader_argument"), "batch_size": size}
    return TrainConfig(**values)


def is_value(name: str, value: Any, device: DeviceKind) -> bool:
    """Whether what a script has set is a value of a knob, and has an effect on a kind of device."""
    is_allowed = isinstance(value, bool) or value in allowed_words(name)
    return is_allowed and not KNOBS[name].is_idle(value, device)


def loop_of(seen: SeenScript) -> dict[str, Any]:
    """The description by which the recorder finds the training loop again."""
    return {
        "loaders": [loader.key for loader in seen.loaders],
        "cycled": [loader.key for loader in seen.loaders if loader.is_cycled],
        "samplers": [name for loader in seen.loaders if not loader.feedback for name in loader.samplers],
        "passed": seen.loaders[0].passed if seen.loaders else 0,
        "reads_batches": any(loader.reads_batches for loader in seen.loaders),
        "usual_samples": baseline_of(seen).batch_size,
        **{name: getattr(seen, name) for name in _OF_LOOP},
        "place": seen.source.get("here", {}),
    }


def notes_on(seen: SeenScript) -> tuple[str, ...]:
    """Notes for the user about how the script was seen."""
    notes = []
    if seen.updates_itself and seen.optimizer is not None:
        notes.append(f"{seen.optimizer} computes gradients several times a step: backward passes are counted")
    elif seen.updates_itself:
        notes.append("no optimizer of torch steps, the script changes its weights itself: backward passes are counted")
    elif not seen.loaders and (own := seen.source.get("own_loaders")):
        notes.append(f"{own[0]} iterates by itself: steps are counted, and the order is the script's own")
    elif not seen.loaders:
        notes.append("the script draws its batches without a DataLoader: steps are counted, and the order is its own")
    elif seen.loaders[0].iterable:
        notes.append("the data set is iterable: sides of a duet are paired by time, not by samples")
    if seen.steps_vary:
        notes.append(
            f"steps hold different amounts of work ({min(seen.step_calls)} to {max(seen.step_calls)} calls of models): "
            "intervals will be wide"
        )
    if any(loader.is_cycled for loader in seen.loaders):
        notes.append("itertools.cycle replays the batches of the first epoch: a burst trains on a few, over and over")
    elif any(loader.begun_anew >= BEGUN_ANEW for loader in seen.loaders):
        notes.append("the script begins its loader again before its end: what that costs is not measured")
    if seen.ranks > 1:
        notes.append(f"{seen.ranks} ranks train together: each change is made on all of them")
    if len(seen.loaders) > 1:
        notes.append(f"{len(seen.loaders)} loaders feed training: they are changed alike")
    if seen.optimizers > 1:
        notes.append(f"{seen.optimizers} optimizers step in turn: a step is all of theirs")
    return tuple(notes)


def record_of(command: Sequence[str], seen: SeenScript) -> ScriptRecord:
    """The record of a script in a result, with its source as it is now."""
    gpus = tuple(map(tuple, seen.gpus))
    return ScriptRecord(command=tuple(command), loop=loop_of(seen), gpus=gpus, source=source_of(seen))


def source_of(seen: SeenScript) -> SourceRecord:
    """The script's files, and the places in them that may be changed."""
    source = seen.source
    here = os.path.realpath(os.getcwd())

    def named(place: str) -> str:
        return os.path.relpath(place, here) if place.startswith(os.path.join(here, "")) else place

    def site(at: dict[str, Any] | None) -> Site | None:
        return Site(**{**at, "file": named(at["file"])}) if at is not None else None

    hashes = {}
    sites = [site for site in (*source["loaders"], *source["optimizers"]) if site is not None]
    for place in sorted({*(call["file"] for call in sites), *filter(None, [source["main"]])}):
        with contextlib.suppress(OSError):  # a script may be made for one run, and deleted by now
            hashes[named(place)] = hash_of(Path(place).read_bytes())
    return SourceRecord(
        main=named(source["main"]) if source["main"] is not None else None,
        folder=os.path.relpath(source["folder"], here),
        argv=tuple(seen.argv),
        files=hashes,
        loaders=tuple(map(site, source["loaders"])),
        optimizers=tuple(map(site, source["optimizers"])),
        **{name: source[name] for name in _OF_SOURCE},
    )


def hash_of(content: bytes) -> str:
    """The hash by which a `SourceRecord` knows a file again."""
    return hashlib.sha256(content).hexdigest()


def as_trained(hardware: Hardware, seen: SeenScript, requested: DeviceKind | None) -> tuple[Hardware, DeviceKind]:
    """The machine with a script's own GPUs first and its own torch, and the device that the script trains on.

    Raises:
        UsageError: Another device was requested.
    """
    device = "rocm" if seen.device == "cuda" and "rocm" in hardware.devices else seen.device
    if requested not in {None, device}:
        raise UsageError(f"--device: the script trains on {seen.device}, got {requested}; leave it out")
    kind, led = cast("DeviceKind", device), hardware.led_by(seen.used_gpus)
    changes: dict[str, Any] = {
        "software": hardware.software.model_copy(update={"torch": seen.source["here"]["torch"]})  # with its build
    }
    measured, trains = hardware.processor(requested or hardware.default_device), led.processor(kind)
    if led.peaks is not None and measured != trains:
        why = f"they were measured on {measured}, and the script trains on {trains}"
        changes |= {"peaks": None, "unread": {**led.unread, "peaks": why}}
    return led.model_copy(update=changes), kind


def require_trainable(seen: SeenScript, script: Script) -> None:
    """Refuses a script that cannot be tuned as it is.

    Raises:
        WorkloadError: With what was seen, and what to do.
    """
    if seen.ranks > seen.processes:
        raise WorkloadError(
            f"{script.name}: expected all ranks on this machine, got {seen.processes} of {seen.ranks}; tune on "
            "one machine, and 'autotune launch' trains on all of them"
        )
    if seen.processes > seen.ranks:
        raise WorkloadError(
            f"{script.name}: expected one process that trains, got {seen.processes} that it has started; tune with "
            "one, and 'autotune launch' trains with all of them"
        )
    if seen.thread is not None:
        raise WorkloadError(
            f"{script.name}: a thread of its own ({seen.thread}) draws batches ahead of training, so that autotune "
            f"cannot see which ones were trained on; leave that to the loader's workers, or {BUILD}"
        )


def why_not(ended: list[dict[str, Any]], printed: str, script: Script, status: int | None) -> WorkloadError:
    """Why no training was seen in a script that has ended.

    Args:
        ended: The last event of each interpreter of the script that has ended.
        printed: The last lines that it printed.
        script: The command.
        status: Its exit status, if it has exited.
    """
    last = printed.splitlines()[-1].strip()[:300] if printed else "nothing"
    if not ended:
        program = shutil.which(script.command[0]) or script.command[0]  # PATH may find another Python than you expect
        how = f"with exit status {status} before it had imported torch" if status else "without importing torch"
        return WorkloadError(
            f"{script.name}: expected a command that trains, but {program} ended {how}; last output: {last}; correct "
            "the command, or, if it has trained, let its Python see PYTHONPATH: no -I, -E or -S, and no environment of "
            "its own"
        )
    most = max(ended, key=lambda event: event["forwards"])
    if (error := next((event["error"] for event in ended if event["error"]), None)) is not None:
        return WorkloadError(
            f"{script.name}: it failed before it had trained: {error}; fix it and run again (its standard input is "
            "empty here)"
        )
    if most["steps"]:
        return WorkloadError(
            f"{script.name}: it ended after {most['steps']} optimizer steps, too few to measure; give it more data or "
            "epochs"
        )
    output = "" if most["forwards"] else f"; last output: {last}"
    return WorkloadError(
        f"{script.name}: it ended without a step of an optimizer of torch ({most['forwards']} calls of models, "
        f"{most['loaders']} loaders were seen); name the command that trains, or {BUILD}{output}"
    )
