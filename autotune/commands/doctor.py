"""`autotune doctor`: checks whether tuning can be trusted on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import Device, Json, Quiet, reported, say
from autotune.sessions.options import missing_device, read, words_of

LOOK_SECONDS = 60.0
UNTRUSTED_STATUS = 4


@reported
def doctor(
    device: Device = "",
    out: Annotated[
        Path | None, typer.Option(*words_of("out"), help="The file of findings; in results/<machine> when left out.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Checks whether tuning can be trusted on this machine. Exit status: 4 if it cannot."""
    from autotune.bursts.hosts.isolation import Isolation
    from autotune.bursts.runner import look_at_machine
    from autotune.doctor import examination_path, examine
    from autotune.doctor.context import TARGET, Clinic
    from autotune.errors import UsageError
    from autotune.hardware import DeviceKind, pin_gpu
    from autotune.sessions.outputs import EXAMINATION, require_replaceable, require_writable
    from autotune.terminal.console import make_console
    from autotune.terminal.findings import examination_lines, finding_line

    requested = read(DeviceKind, "device", device)
    require_writable(out or Path("results/…/doctor.json"))
    if out is not None:
        require_replaceable("--out", out, EXAMINATION)
    pin_gpu()
    console = make_console()
    show = not quiet and not json
    with Isolation(TARGET) as isolation, console.status("importing …") as status:
        isolation.start(LOOK_SECONDS)
        hardware = look_at_machine(isolation, LOOK_SECONDS)
        chosen = requested or hardware.default_device
        if chosen not in hardware.devices:
            raise missing_device(chosen, hardware)
        default = examination_path(Path("results") / hardware.slug, chosen)
        place = out or default
        require_replaceable("--out", place, EXAMINATION)
        examination = examine(
            Clinic(hardware, chosen, isolation=isolation),
            report=lambda finding: console.print(finding_line(finding)) if show else None,
            checking=lambda what: status.update(f"{what} …"),
        )
    try:
        examination.write(place)
    except OSError as error:
        raise UsageError(f"{place} cannot be written ({error}); name another file with --out") from error
    if json:
        say(examination.to_json())
    elif show:
        is_read = place.resolve() == default.resolve()
        console.print(examination_lines(examination, hardware.machine(chosen), place, is_read=is_read))
    if not examination.trusted:
        sys.exit(UNTRUSTED_STATUS)
