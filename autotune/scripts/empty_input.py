"""Standard input of bursts: empty, but a terminal if autotune's own is one, since scripts ask for its size."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess

from autotune.sandbox.system import fcntl, termios


class EmptyInput:
    """A standard input that ends at once.

    If autotune's own standard input is a terminal, the script gets one as well, of the same size: ``stty size`` and
    ``isatty()`` answer as they do in a plain run. It is inherited and never opened by name, so that it does not become
    the controlling terminal of the script, whose session has none.

    Args:
        like: Descriptor of autotune's own standard input.

    Attributes:
        descriptor: For `subprocess`; the null device if there is no terminal, or no pseudo-terminal can be opened.
    """

    def __init__(self, like: int = 0) -> None:
        self.descriptor = subprocess.DEVNULL
        self._ends: list[int] = []
        if termios is None or not _is_terminal(like):
            return
        try:
            self._ends += os.openpty()
            _silence(self._ends[1])
            _resize(self._ends[1], like)
        except (AttributeError, OSError, termios.error):  # AttributeError: a platform without pseudo-terminals
            self.close()
        else:
            self.descriptor = self._ends[1]

    def release(self) -> None:
        """Closes the script's end here once the script has started, so that it alone holds it."""
        for end in self._ends[1:]:
            os.close(end)
        del self._ends[1:]

    def close(self) -> None:
        """Closes the terminal; calling it again does no harm."""
        while self._ends:
            with contextlib.suppress(OSError):
                os.close(self._ends.pop())


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:  # it is closed
        return False


def _silence(terminal: int) -> None:
    """Makes a terminal report the end of the file instead of waiting for a line, and echo nothing."""
    attributes = termios.tcgetattr(terminal)
    attributes[3] &= ~(termios.ICANON | termios.ECHO | termios.ECHONL)
    attributes[6][termios.VMIN] = attributes[6][termios.VTIME] = 0
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def _resize(terminal: int, like: int) -> None:
    """Gives a terminal the rows and columns of another one."""
    size = fcntl.ioctl(like, termios.TIOCGWINSZ, bytes(struct.calcsize("HHHH")))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
