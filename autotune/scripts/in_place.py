"""Changes each setting of a result where the script says it: in a call, an option, a statement, a framework's word."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.recorder.telling import GRAPHED
from autotune.results.result import Result, ScriptRecord
from autotune.results.sites import Site, SourceRecord
from autotune.scripts import statements, words
from autotune.scripts.arguments import ANY, FileEdits
from autotune.scripts.changes import changes_of
from autotune.scripts.source import CannotEditError, Source

_ON_ALL_RANKS = ("DistributedDataParallel", "DDP")
"""What the class is called, where it is imported under another name."""


@dataclass(frozen=True)
class EditedFile:
    """A file with what a result changes.

    Attributes:
        name: From the working directory.
        before: Its content.
        after: With the changes.
    """

    name: str
    before: bytes
    after: bytes


class Files:
    """A script's files, as they were when it was measured.

    Args:
        source: What is known of them.
    """

    def __init__(self, source: SourceRecord) -> None:
        self._source = source
        self._read: dict[str, FileEdits] = {}
        self._contents: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> FileEdits:
        """A file, and what is to be changed in it.

        Raises:
            UsageError: It is not there, or not as it was.
            CannotEditError: It is no Python.
        """
        if name not in self._read:
            content = read_file(name)
            if hashlib.sha256(content).hexdigest() != self._source.files.get(name):
                raise UsageError(
                    f"{name} has changed since it was measured, so that its gain is not known; tune again, or restore "
                    "the file"
                )
            self._contents[name] = content
            self._read[name] = FileEdits(Source(content), self._source.argv)
        return self._read[name]

    def changed(self) -> tuple[EditedFile, ...]:
        """All files with changes."""
        found = []
        for name, file in self._read.items():
            if file.edits:
                found.append(EditedFile(name, self._contents[name], file.source.edited(file.edits)))
        return tuple(found)

    @property
    def hints(self) -> tuple[str, ...]:
        """Of all files."""
        return tuple(dict.fromkeys(hint for file in self._read.values() for hint in file.hints))


class InPlace:
    """Changes a script's files.

    Args:
        result: With the settings.
        script: That was measured.
        source: What is known of its files.
        files: The files.
    """

    def __init__(self, result: Result, script: ScriptRecord, source: SourceRecord, files: Files) -> None:
        self._best, self._baseline = result.best.config, result.baseline.config
        self._values: Mapping[str, Any] = {
            knob: after for knob, (_, after) in self._best.changes_from(self._baseline).items()
        }
        self._done: set[str] = set()
        self._script, self._source, self._files = script, source, files
        self._framework: str | None = None

    def set_all(self) -> None:
        """Changes all.

        Raises:
            CannotEditError: One has no place of its own; the message begins with its name.
        """
        if self._values.get("persistent_workers") and self._source.may_change_data:
            raise CannotEditError("would hide from workers what the script changes in its data", "persistent_workers")
        self._set_in_framework()
        self._set_in_loaders()
        self._set_exchange()
        self._set(["optimizer_impl"], self._set_optimizers)
        self._set_process()
        self._set_on_model()
        self._set(["precision"], self._set_autocast)
        self._set(sorted(self._values), _refuse)

    def _set(self, knobs: Iterable[str], change: Callable[[], None]) -> None:
        """Runs what changes some knobs, if they are still to be changed."""
        missing = [knob for knob in knobs if knob in self._values and knob not in self._done]
        if missing:
            try:
                change()
            except CannotEditError as error:
                raise CannotEditError(error.why, error.of or " and ".join(missing)) from None
            self._done.update(missing)

    def _set_in_framework(self) -> None:
        """The arguments of a framework's object, where the main file makes one."""
        if self._source.main is None:
            return
        file = self._main()
        found = words.framework_call(file.source)
        if found is None:
            return
        self._framework, call = found
        optimizer = next((site.kind for site in self._source.optimizers if site is not None), None)
        told = {knob: words.arguments(found[0], knob, value, optimizer) for knob, value in self._values.items()}
        own = {knob: its for knob, its in told.items() if its is not None}
        values = {word: value for its in own.values() for word, value in its.items()}
        if call is not None:
            self._set(own, lambda: file.set_arguments(call, values, absent=words.absent))
        elif self._framework == "transformers":
            typed = [f"pass --{word} {value}" for word, value in values.items() if not words.absent(word, value)]
            self._set(own, lambda: file.hints.extend(typed))

    def _set_in_loaders(self) -> None:
        """The arguments of each loader that feeds training."""
        arguments = changes_of(self._best, self._baseline)["loader"]
        values = {
            words.LOADER[knob]: arguments[words.LOADER[knob]]
            for knob in self._values
            if knob in words.LOADER and knob not in self._done
        }
        seen = {name: getattr(self._baseline, knob) for knob, name in words.LOADER.items()}
        if words.absent("prefetch_factor", seen["prefetch_factor"]):  # torch's own, given or not
            seen["prefetch_factor"] = ANY

        def change() -> None:
            for site in self._source.loaders or (None,):
                own = _own(site, values)
                file = self._files[own.file]
                call = file.source.call_at(own)
                if values.get("persistent_workers") and file.source.is_repeated(call):
                    raise CannotEditError("is of a loader that is made again and again", "persistent_workers")
                file.set_arguments(call, values, seen=seen, parameters=own.parameters, absent=words.absent)

        self._set(words.LOADER, change)

    def _set_exchange(self) -> None:
        """The arguments of the one call that puts a model on all ranks."""
        told: Mapping[str, tuple[str, Any]] = changes_of(self._best, self._baseline)["ddp"]

        def change() -> None:
            file = self._main()
            calls = file.source.calls(*_ON_ALL_RANKS)
            if len(calls) != 1:
                raise CannotEditError(f"has {len(calls)} calls of {_ON_ALL_RANKS[0]} to stand in, not one")
            file.set_arguments(calls[0], dict(told.values()), absent=lambda _, value: not value)

        self._set(told, change)

    def _set_optimizers(self) -> None:
        form = self._best.optimizer_impl
        for site in self._source.optimizers or (None,):
            own = _own(site, [form])
            file = self._files[own.file]
            call = file.source.call_at(own)
            others = [str(one.arg) for one in call.keywords if one.arg in {"fused", "foreach"} and one.arg != form]
            file.set_arguments(call, {**dict.fromkeys(others, False), form: True})

    def _set_process(self) -> None:
        """Statements of torch's for the whole process."""
        below: list[str] = []

        def change(knob: str) -> None:
            told = words.statement(knob, self._values[knob])
            if told is None:
                return
            present = statements.set_call if told.is_call else statements.set_attribute
            if not present(self._main(), told.name, told.value):
                below.append(told.text)

        for knob, value in self._values.items():
            if words.statement(knob, value) is not None:
                self._set([knob], functools.partial(change, knob))
        if below:
            statements.after_imports(self._main(), below)

    def _main(self) -> FileEdits:
        if self._source.main is None:
            raise CannotEditError("has no file of this folder to stand in")
        return self._files[self._source.main]

    def _set_on_model(self) -> None:
        """Methods of the model, below where the optimizer is made."""
        told = {knob: words.on_model(knob, value) for knob, value in self._values.items() if knob not in self._done}
        calls = {knob: call for knob, call in told.items() if call is not None}

        def change() -> None:
            self._require_plain_model(calls)
            own = _own(self._source.optimizers[0], [])
            file = self._files[own.file]
            if statements.torch_name(file.source.tree.body) != "torch" and "memory_format" in calls:
                raise CannotEditError("needs a line of 'import torch' at the top of the file")
            statements.on_model(file, file.source.call_at(own), list(calls.values()))

        self._set(calls, change)

    def _require_plain_model(self, knobs: Iterable[str]) -> None:
        """That one model is called, is the optimizer's, and may be told by a line."""
        models = self._script.loop.get("models", [])
        one = len(models) == 1 and len(self._source.optimizers) == 1 and self._source.steps_model
        if self._framework is not None or not one:
            raise CannotEditError("needs one model, which one optimizer steps in a loop of the script's own")
        if "compile_mode" in knobs and any(words.traces(self._files[name].source) for name in self._source.files):
            raise CannotEditError("needs more than a line where the model is traced, which refuses compiled code")
        if "compile_mode" in knobs and str(models[0]).startswith("torch."):
            raise CannotEditError("needs a model of a class of your own, since torch compiles none of its own in place")
        graphed = self._best.compile_mode in GRAPHED  # see `telling.keep_gradients`
        if "compile_mode" in knobs and graphed and self._best.accumulation_steps > 1:
            raise CannotEditError("needs more than a line where gradients are accumulated")
        if "memory_format" in knobs and self._source.most_dimensions > 4:
            raise CannotEditError("needs weights of no more than four dimensions")
        loads = any(self._files[name].source.calls("load_state_dict") for name in self._source.files)
        if "memory_format" in knobs and self._best.optimizer_impl == "fused" and loads:  # see `recorder.layout`
            raise CannotEditError("needs more than a line where a fused optimizer may load its state")

    def _set_autocast(self) -> None:
        site = self._source.call
        if self._best.precision != "bf16" or self._framework is not None:
            _refuse()
        if site is None or not self._source.returns_tensor:
            raise CannotEditError("needs one place where the model is called, and one tensor that it returns")
        file = self._files[site.file]
        device = str(self._script.loop.get("device", "cpu"))
        statements.autocast_call(file, file.source.call_at(site), device, "bfloat16")


def _own(site: Site | None, names: Iterable[str]) -> Site:
    """A call of the script's own that makes nothing else, and takes these arguments."""
    if site is None:
        raise CannotEditError("is given by no call in the script's own files")
    if site.shared:
        raise CannotEditError(f"is given in line {site.line} of {site.file}, where other loaders are made as well")
    if site.accepts is not None and not set(names) <= set(site.accepts):
        raise CannotEditError(f"is no argument of {site.kind}")
    return site


def _refuse() -> None:
    raise CannotEditError("has no place of its own in the script")


def own_path(name: str) -> Path:
    """Where a file of the script's lies, past links: a result may come from anywhere, and name any file.

    Raises:
        UsageError: Not below the working directory.
    """
    folder = Path.cwd().resolve()
    try:
        path = Path(name).resolve()
    except (OSError, ValueError, RuntimeError):  # a name that is none, a link that leads to itself
        path = Path(os.sep)
    if not path.is_relative_to(folder):
        raise UsageError(
            f"expected a script's files below the working directory {folder}, got {name!r}; go to the folder that "
            "holds the script, if it is yours"
        )
    return path


def read_file(name: str) -> bytes:
    """A file of the script's.

    Raises:
        UsageError: It does not lie below the working directory, or cannot be read.
    """
    try:
        return own_path(name).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{name} cannot be read ({error.strerror}); go to the folder where the script was tuned"
        ) from None
