"""`autotune probe`: shows this machine's hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.commands.common import Device, Json, reported, say
from autotune.sessions.options import read
from autotune.stored import DeviceKind

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.hardware import Hardware
    from autotune.search.interrupts import Stop

PROBE_SECONDS, PEAK_SECONDS = 120.0, 1.5
"""Limits in seconds: of the whole probe, and of the measurement of each peak. Not tuned."""


@reported
def probe(device: Device = "", json: Json = False) -> None:
    """Shows this machine's hardware and its limits."""
    from json import dumps as to_json

    from autotune.terminal.console import make_console

    data, shown = probe_answer(device)
    if json:
        say(to_json(data, indent=2))
    else:
        make_console(stderr=False).print(*shown)


def probe_answer(device: str, stop: Stop | None = None) -> tuple[dict[str, Any], list[RenderableType]]:
    """This machine's hardware, and how your files are protected while a script is tuned: as data, and as output.

    Takes the arguments of `probed`, and raises its errors.
    """
    from autotune.sandbox.protection import find_offer
    from autotune.terminal.console import hardware_table
    from autotune.wording import labelled

    hardware, offer = probed(device, stop), find_offer()
    data = {**hardware.model_dump(mode="json"), "files_of_scripts": {"row": offer.row, "reasons": list(offer.reasons)}}
    return data, [hardware_table(hardware), labelled("your files", offer.sentence)]


def probed(device: str, stop: Stop | None = None) -> Hardware:
    """This machine's hardware, read from the host and from torch.

    Args:
        device: The kind of device whose peaks are measured, as typed; empty for the first accelerator.
        stop: Ends the probe early.

    Raises:
        UsageError: There is no such kind.
        IsolationError: torch cannot be imported.
        Interrupted: Asked to end.
    """
    from autotune.bursts.hosts.isolation import Isolation
    from autotune.bursts.runner import look_at_machine

    kind = read(DeviceKind, "device", device)
    with Isolation() as isolation:
        if stop is not None:
            stop.pass_on_to(isolation.interrupt)
        isolation.start(PROBE_SECONDS)
        return look_at_machine(isolation, PROBE_SECONDS, device=kind, peak_seconds=PEAK_SECONDS)
