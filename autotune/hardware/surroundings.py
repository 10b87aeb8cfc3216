"""Reads the software around a process: the operating system, and package versions, without importing torch.

`root` stands for ``/`` and `unread` receives reasons, as in `autotune.hardware.host`.
"""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path

from autotune.hardware.cgroups import ROOT, read_text
from autotune.hardware.model import Software

DISTRIBUTION = "autotune-torch"


def read_software(unread: dict[str, str], root: Path = ROOT) -> Software:
    """The versions that affect speed, as far as they are known without importing torch."""
    unread["software.cuda"] = "only torch knows what it was built for, and it was not imported"
    return Software(
        os=_os_name(root),
        python=platform.python_version(),
        torch=_version("torch", "software.torch", unread),
        autotune=_version(DISTRIBUTION, "software.autotune", unread),
    )


def _version(distribution: str, field: str, unread: dict[str, str]) -> str | None:
    """The version of an installed package."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        unread[field] = f"the package {distribution} is not installed"
        return None


def _os_name(root: Path) -> str:
    """The operating system with its kernel and C library, which determines the allocator."""
    if platform.system() != "Linux":
        return platform.platform()
    release = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release")
    names = re.findall(r"^PRETTY_NAME=[\"']?(.*?)[\"']?$", release, re.MULTILINE)
    library = " ".join(platform.libc_ver()).strip()
    return ", ".join(filter(None, [*names, f"Linux {platform.release()} {platform.machine()}", library]))
