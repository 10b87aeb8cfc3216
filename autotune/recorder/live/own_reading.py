"""What reading samples in this process touches: whether workers could read them, and what would then be different."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

from ..drawing import random_states


class OwnReading:
    """Looks at the process around the first batches, where it reads them itself.

    Attributes:
        draws_random_numbers: Whether reading draws from the generators of this process, as augmentation does.
        why_no_workers: Why workers would not read the same; None where nothing speaks against it.
    """

    def __init__(self) -> None:
        self.draws_random_numbers = False
        self.why_no_workers: str | None = None
        self._generators: list[Any] = []
        self._places: dict[str, int] = {}
        self._looks = False

    def before(self) -> None:
        """A batch is about to be read."""
        self._generators, self._places, self._looks = random_states(), _places(), True

    def after(self) -> None:
        """It was read."""
        if not self._looks:
            return
        self._looks = False
        self.draws_random_numbers |= any(a != b for a, b in zip(self._generators, random_states(), strict=False))
        places = _places()
        if any(places.get(name, place) != place for name, place in self._places.items()):
            self.why_no_workers = "the data set reads from a file that it keeps open, whose place workers would share"


def _places() -> dict[str, int]:
    """Where this process is in each regular file that it reads, by descriptor."""
    places: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError, ValueError):
                if stat.S_ISREG(os.stat(f"/proc/self/fd/{name}").st_mode):
                    with open(f"/proc/self/fdinfo/{name}") as info:
                        line, flags = info.readline(), info.readline()
                    if int(flags.split()[1], 8) & os.O_ACCMODE == os.O_RDONLY:
                        places[name] = int(line.split()[1])
    return places
