"""`autotune probe`: what this machine has."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.commands.common import Json, reported, say
from autotune.commands.options import parse_device

PROBE_SECONDS, PEAK_SECONDS = 120.0, 1.5
"""For everything, and for each peak that is measured. Chosen, not measured."""


@reported
def probe(
    device: Annotated[str, typer.Option(help="Measure this one: cpu, cuda, rocm or mps.")] = "", json: Json = False
) -> None:
    """Shows what this machine has, and what limits it."""
    from autotune.bursts.isolation import Isolation
    from autotune.bursts.runner import look_at_machine
    from autotune.terminal.console import hardware_table, make_console

    with Isolation() as isolation:
        isolation.start(PROBE_SECONDS)
        hardware = look_at_machine(isolation, PROBE_SECONDS, device=parse_device(device), peak_seconds=PEAK_SECONDS)
    if json:
        say(hardware.model_dump_json(indent=2))
    else:
        make_console().print(hardware_table(hardware))
