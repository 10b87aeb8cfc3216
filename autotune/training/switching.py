"""The settings in force in a process that trains, and the switch to those of another config."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, NamedTuple

from autotune.errors import ConfigError
from autotune.knobs import HALF, KNOBS, Scalar, TrainConfig, can_share_process, variables
from autotune.knobs.knob import Knob
from autotune.torch_settings.undo import Undo, kept_on, nothing
from autotune.training.ranks import this_rank, threads_of_rank

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


class _Setting(NamedTuple):
    """The change of one knob: the values that it used, the value read before, and how to undo it."""

    by: tuple[Scalar, ...]
    before: Scalar | None
    undo: Undo


_OF_PROCESS: dict[str, _Setting] = {}
"""Settings of the whole process, by knob, whichever model they were set for."""
_FOR_PROCESS = [knob for knob in KNOBS.values() if knob.on_process is not None]
_FOR_MODEL = tuple(knob for knob in KNOBS.values() if knob.on_model is not None)  # each wraps the work of those before
_FOR_OPTIMIZER = [knob for knob in KNOBS.values() if knob.on_optimizer is not None]


class InForce:
    """The settings of one config that are in force in this process; `switch` replaces them with those of another.

    Args:
        model: None sets only what holds for the whole process.
        optimizer: None leaves the optimizer's knobs alone.
        device: The first `switch` moves the model there, and undoes what another one has set.
    """

    def __init__(self, model: nn.Module | None, optimizer: Optimizer | None, device: torch.device) -> None:
        self.config: TrainConfig | None = None  # of the last `switch`; None before the first
        self._model = model
        self._optimizer = optimizer
        self._device = device

    def switch(self, config: TrainConfig) -> None:
        """Undoes the settings that differ, sets them as the config says, and reads them back.

        Every switch but the first drops gradients: another config has accumulated only part of them, in fp16 as scaled
        values, and the optimizer must not step on those. Weights and the optimizer's state stay.

        Raises:
            ConfigError: The config needs another process, and nothing was switched; or a value did not come into
                effect, but others did. You can then switch to another config.
        """
        first = self.config is None
        if self.config is not None and not can_share_process(config, self.config):
            names = [name for name in config.changes_from(self.config) if KNOBS[name].scope == "process"]
            raise ConfigError(f"a process that trains cannot switch {' and '.join(names)}: start another one for it")
        for holder in () if first else (self._model, self._optimizer):
            if holder is not None:
                holder.zero_grad(set_to_none=True)
        self.config = config
        os.environ.update(variables(config))
        if config.num_threads is None and not this_rank().alone:
            config = config.replace(num_threads=threads_of_rank())
        for knob in _FOR_PROCESS:
            self._settle((knob,), config, _OF_PROCESS)
        if self._model is not None:
            if first:
                self._model.to(self._device)
            self._settle(_FOR_MODEL, config, kept_on(self._model).setdefault(_Setting, {}), anew=first)
        if self._optimizer is not None:
            for knob in _FOR_OPTIMIZER:
                self._settle((knob,), config, kept_on(self._optimizer).setdefault(_Setting, {}), anew=first)

    def _settle(
        self, knobs: tuple[Knob, ...], config: TrainConfig, settings: dict[str, _Setting], *, anew: bool = False
    ) -> None:
        """Puts knobs into force; each may have wrapped the work of those before it.

        Args:
            knobs: What to set.
            config: Their values.
            settings: What is set already.
            anew: Also set what is set already: the model may have got other parts since.
        """
        same = list(itertools.takewhile(lambda knob: not anew and _is_set(knob, config, settings), knobs))
        changed = knobs[len(same) :]
        for knob in reversed(changed):
            if (setting := settings.pop(knob.name, None)) is not None:
                self._take_back(knob, setting)
        for knob in changed:
            before = self._read(knob)
            settings[knob.name] = _Setting(_goes_by(knob, config), before, self._call(knob, config))
            self._verify(knob, settings[knob.name])
        for knob in same:
            set_by_config = getattr(config, knob.name) != knob.default  # the default keeps the user's own setting
            if knob.on_process is not None and set_by_config:  # the user's code may have changed it since
                self._call(knob, config)
                self._verify(knob, settings[knob.name])

    def _call(self, knob: Knob, config: TrainConfig) -> Undo:
        value = getattr(config, knob.name)
        if knob.on_process is not None:
            return knob.on_process(value, self._device)
        if knob.on_model is not None and self._model is not None:
            return knob.on_model(self._model, config)
        if knob.on_optimizer is None or self._optimizer is None:
            return nothing
        try:
            return knob.on_optimizer(self._optimizer, value)
        except ValueError as error:
            raise ConfigError(f"{knob.name}={value} cannot be used: {error}; use {knob.name}=default") from None

    def _read(self, knob: Knob) -> Scalar | None:
        return None if knob.reads is None else knob.reads(self._model, self._optimizer, self._device)

    def _take_back(self, knob: Knob, setting: _Setting) -> None:
        if knob.scope == "process":  # set for another model: it stays as long as the process
            return
        setting.undo()
        if (now := self._read(knob)) != setting.before and now == setting.by[0]:  # else the user has changed it since
            raise ConfigError(
                f"{knob.name}={setting.by[0]} could not be undone: it is {now}, not {setting.before}; "
                f"start a new process, or tune again with --pin {knob.name}={setting.before}"
            )

    def _verify(self, knob: Knob, setting: _Setting) -> None:
        now, requested = self._read(knob), setting.by[0]
        # The default keeps the user's value; half precision is set by autocast around each step.
        is_users = now == setting.before and requested in {knob.default, *HALF}
        if now is not None and now != requested and not is_users:
            raise ConfigError(
                f"{knob.name}={requested} did not come into effect: it is {now}; "
                f"if your code sets it, remove that line, or tune again with --pin {knob.name}=VALUE"
            )


def _goes_by(knob: Knob, config: TrainConfig) -> tuple[Scalar, ...]:
    return config.pick((knob.name, *knob.looks_at))


def _is_set(knob: Knob, config: TrainConfig, settings: dict[str, _Setting]) -> bool:
    return knob.name in settings and settings[knob.name].by == _goes_by(knob, config)
