"""Shows autotune's own code another system than the one that runs: what is missing there is missing.

A process that finds this file first in its path, and the variable PRETENDED, takes part; so do the processes that it
starts. Only modules of autotune see the other system: torch and the standard library go on as they are here. So what
autotune would call and not find raises, as it would there. How the other system behaves is not shown.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import os
import pathlib
import stat
import subprocess
import sys
from types import FrameType, ModuleType
from typing import Any

SYSTEM = os.environ["PRETENDED"]
WINDOWS = SYSTEM == "win32"
HIDDEN = ("/proc/", "/sys/", "/dev/shm")
"""What only Linux has; all other paths stay."""
CODE_BETWEEN = {"pathlib", "pathlib._local", "io", "codecs", "shutil", "genericpath", "os"}
"""Modules of the standard library that open a file for their caller."""

MODULES_OF_POSIX = {
    "_posixsubprocess", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty",
}  # fmt: skip
NAMES_OF_LINUX = {
    "os": {
        "copy_file_range", "eventfd", "getresuid", "memfd_create", "pidfd_open", "posix_fadvise",
        "sched_getaffinity", "sched_setaffinity", "setns", "setresgid", "setresuid", "splice", "unshare", "waitid",
        "getxattr", "setxattr", "listxattr",
    },
    "resource": {"RLIMIT_RTTIME", "prlimit", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE"},
    "fcntl": {"F_SETSIG", "F_SETLEASE", "F_ADD_SEALS"},
    "select": {"epoll"},
    "signal": {"SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT", "sigtimedwait", "sigwaitinfo", "pidfd_send_signal"},
    "socket": {"AF_NETLINK", "AF_PACKET", "SO_PEERCRED", "SO_PASSCRED"},
}  # fmt: skip
NAMES_OF_POSIX = {
    "os": {
        "WNOHANG", "WIFEXITED", "WIFSIGNALED", "WEXITSTATUS", "WTERMSIG", "WUNTRACED", "chown", "chroot", "fchmod",
        "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getgroups", "getloadavg", "getpgid",
        "getpgrp", "getpriority", "getsid", "getuid", "killpg", "lchown", "mkfifo", "mknod", "nice", "openpty",
        "posix_spawn", "pread", "pwrite", "readv", "register_at_fork", "sched_yield", "sendfile", "setgid",
        "setpgid", "setpriority", "setsid", "setuid", "statvfs", "sysconf", "tcgetpgrp", "tcsetpgrp", "ttyname",
        "uname", "wait", "wait3", "wait4", "writev", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_DIRECTORY",
        "pipe2", "set_blocking", "get_blocking", "confstr", "ctermid", "posix_fallocate", "truncate64",
    },
    "signal": {
        "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGPROF", "SIGQUIT", "SIGSTOP",
        "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGWINCH", "SIGXCPU",
        "SIGXFSZ", "alarm", "getitimer", "pause", "pthread_kill", "pthread_sigmask", "setitimer", "siginterrupt",
        "sigpending", "sigwait",
    },
    "select": {"poll"},
    "socket": {"AF_UNIX", "SCM_RIGHTS", "recv_fds", "send_fds"},
}  # fmt: skip


class PretendedProcess(subprocess.Popen):  # type: ignore[type-arg]
    """Refuses what `subprocess` refuses on Windows."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        for name in ("preexec_fn", "pass_fds"):
            if options.get(name):
                raise ValueError(f"{name} is not supported on Windows platforms")
        super().__init__(*arguments, **options)


def _select_sockets(readable: Any, writable: Any, failing: Any, timeout: float | None = None) -> Any:
    """`select.select`, which knows only sockets on Windows."""
    for source in (*readable, *writable, *failing):
        descriptor = source if isinstance(source, int) else source.fileno()
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError(10038, "an operation was attempted on something that is not a socket")
    return importlib.import_module("select").select(readable, writable, failing, timeout)


def _load_library(name: Any, *arguments: Any, **options: Any) -> Any:
    """`ctypes.CDLL`, which has no name for the process itself on Windows."""
    if name is None:
        raise TypeError("expected a library's name, got None, as Windows would say")
    return ctypes.CDLL(name, *arguments, **options)


def _without_key(key: int, name: str) -> Any:
    """`winreg.OpenKey`, of a registry without this key."""
    raise FileNotFoundError(2, "The system cannot find the file specified", name)


REPLACED: dict[str, dict[str, Any]] = {
    "sys": {"platform": SYSTEM},
    "platform": {
        "libc_ver": lambda: ("", ""),
        "platform": lambda: "Windows-11-10.0.26100" if WINDOWS else "macOS-15.5-arm64-arm-64bit",
        "system": lambda: "Windows" if WINDOWS else "Darwin",
    },
}
if WINDOWS:
    REPLACED |= {
        "ctypes": {"CDLL": _load_library},
        "os": {"name": "nt"},
        "select": {"select": _select_sockets},
        "subprocess": {"Popen": PretendedProcess},
    }


class Pretended(ModuleType):
    """A module as the other system has it."""

    def __init__(self, real: ModuleType) -> None:
        name = real.__name__
        missing = NAMES_OF_LINUX.get(name, set()) | (NAMES_OF_POSIX.get(name, set()) if WINDOWS else set())
        vars(self).update(__name__=name, _real=real, _missing=missing, **REPLACED.get(name, {}))

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self._real.__name__!r} has no attribute {name!r} on {SYSTEM}")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value) if name in vars(self) else setattr(self._real, name, value)

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._real) if name not in self._missing]


PRETENDED: dict[str, ModuleType] = {}
if WINDOWS:
    PRETENDED["winreg"] = ModuleType("winreg")
    vars(PRETENDED["winreg"]).update(HKEY_LOCAL_MACHINE=0x80000002, OpenKey=_without_key)
_import = builtins.__import__


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in {"autotune", "conftest", "tests"}


def _import_pretended(
    name: str,
    globals: Any = None,  # noqa: A002 - the names of the real one
    locals: Any = None,  # noqa: A002
    fromlist: Any = (),
    level: int = 0,
) -> Any:
    """`__import__`, which gives modules of autotune what the other system has."""
    if level or not _is_ours(str((globals or {}).get("__name__", ""))):
        return _import(name, globals, locals, fromlist, level)
    if WINDOWS and name in MODULES_OF_POSIX:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if name in NAMES_OF_LINUX | NAMES_OF_POSIX | REPLACED and name not in PRETENDED:
        PRETENDED[name] = Pretended(_import(name))
    return PRETENDED[name] if name in PRETENDED else _import(name, globals, locals, fromlist, level)


def _caller(frame: FrameType | None) -> str:
    """The module that asks, behind those of the standard library that ask for it."""
    while frame is not None and frame.f_globals.get("__name__") in {__name__, *CODE_BETWEEN}:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""


def _hide(event: str, arguments: tuple[Any, ...]) -> None:
    """Raises where autotune opens or lists what the other system does not have."""
    if event in {"open", "os.listdir", "os.scandir"} and isinstance(arguments[0], (str, os.PathLike)):
        _refuse(arguments[0])


def _refuse(path: Any) -> None:
    text = os.fspath(path)
    if isinstance(text, str) and f"{text}/".startswith(HIDDEN) and _is_ours(_caller(sys._getframe(2))):
        raise FileNotFoundError(2, "No such file or directory", text)


def _hiding(method: Any, answer: Any) -> Any:
    def hidden(self: pathlib.Path, *arguments: Any, **options: Any) -> Any:
        try:
            _refuse(self)
        except FileNotFoundError:
            if answer is None:
                raise
            return answer
        return method(self, *arguments, **options)

    return hidden


builtins.__import__ = _import_pretended
sys.addaudithook(_hide)
for name, answer in {"stat": None, "exists": False, "is_dir": False, "is_file": False}.items():
    setattr(pathlib.Path, name, _hiding(getattr(pathlib.Path, name), answer))
