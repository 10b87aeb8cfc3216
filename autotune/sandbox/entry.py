"""The first process of a command in a sandbox: it restricts itself, then becomes the command.

Run as ``python -I -S -c "…; from sandbox.entry import main; main()" ORDERS COMMAND…``.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import sys
from typing import Any

from . import calls, landlock, process_marks, view

FAILED = 97
"""Exit status if the sandbox could not be entered; the channel sends the reason to the parent."""


def main() -> None:
    """Enters the sandbox that the orders describe.

    The orders are JSON in a file, with these keys:

    - ``run``: the run folder, for the mark
    - ``channel``: descriptor of a socket
    - ``plan``, ``layer``, ``start``: of a private view, or None
    - ``writable``: folders of the Landlock row, or None
    - ``asks``: the parent answers system calls
    """
    with open(sys.argv[1], encoding="utf-8") as file:
        orders = json.load(file)
    command = sys.argv[2:]
    with socket.socket(fileno=orders["channel"]) as channel:
        channel.set_inheritable(False)
        try:
            descriptor, why = _enter(orders)
        except OSError as error:
            channel.sendall(json.dumps({"error": str(error)}).encode())
            os._exit(FAILED)
        sent = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))] if descriptor is not None else []
        )
        channel.sendmsg([json.dumps({"error": None, "deaf": why}).encode()], sent)
    if descriptor is not None:
        os.close(descriptor)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the command would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the user's command
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


def explore() -> None:
    """Prints a plan, or why there is none, as JSON. Arguments: the scratch folder, then paths to bind unchanged."""
    answer: dict[str, Any] = {"plan": None, "error": None}
    try:
        answer["plan"] = vars(view.explore(sys.argv[1], sys.argv[2:]))
    except OSError as error:
        answer["error"] = str(error)
    with contextlib.suppress(OSError):
        print(json.dumps(answer), flush=True)


def _enter(orders: dict[str, Any]) -> tuple[int | None, str | None]:
    """Restricts this process; returns the descriptor through which the parent answers calls, or why there is none."""
    process_marks.mark(orders["run"])
    if orders["plan"] is not None:
        view.enter(view.Plan.of(orders["plan"]), orders["layer"], orders["start"])
    descriptor, why = None, None
    in_landlock = orders["writable"] is not None
    if orders["asks"] or in_landlock:
        try:
            descriptor = calls.listen(with_files=in_landlock)
        except OSError as error:
            why = str(error)
            if in_landlock:
                calls.refuse_file_states()
    if in_landlock:
        landlock.restrict(orders["writable"])
    return descriptor, why
