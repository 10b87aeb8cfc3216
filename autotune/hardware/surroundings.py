"""Reads what a process runs in: the container, the disk of the working directory, the operating system.

None of it needs torch. Every function takes the folder that stands for ``/``, as in `autotune.hardware.host`.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path, PurePath

import psutil

from autotune.hardware.cgroups import read_text, unescape
from autotune.hardware.model import Software

ROOT = Path("/")
DISTRIBUTION = "autotune-torch"

_NOT_ON_A_DISK = {
    "tmpfs": "memory",
    "ramfs": "memory",
    "overlay": "a container's layers, on an unknown disk",
}

_CGROUP_WORDS = (
    ("kubepods", "kubernetes"), ("libpod", "podman"), ("docker", "docker"), ("containerd", "containerd"),
    ("crio", "cri-o"), ("lxc", "lxc"), ("garden", "garden"), ("machine.slice", "systemd-nspawn"),
)  # fmt: skip
_NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs|cifs|smb|9p|ceph|lustre|gpfs|beegfs|glusterfs|virtiofs|fuse\.(?:sshfs|s3fs|gcsfuse)"
)


def read_container(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str | None:
    """The kind of container (``docker``, ``kubernetes``, …), or None outside of any.

    Args:
        root: Where ``/.dockerenv``, ``/run`` and ``/proc`` are found.
        environ: The environment.
    """
    # The orchestrator comes first: inside of Kubernetes the signs of its container engine are there as well.
    if "KUBERNETES_SERVICE_HOST" in environ or (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    if "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ:
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    told = environ.get("container") or (read_text(root / "run/systemd/container") or "").strip()
    if told:
        return told
    groups = read_text(root / "proc/self/cgroup") or ""
    return next((kind for word, kind in _CGROUP_WORDS if word in groups), None)


def read_disk(unread: dict[str, str], root: Path = ROOT, folder: PurePath | None = None) -> str | None:
    """File system, device and kind of a folder's disk, such as ``ext4 on /dev/nvme0n1p2 (NVMe)``.

    Args:
        unread: Takes the reason when it cannot be read.
        root: Where ``/proc`` and ``/sys`` are found.
        folder: The folder; the working directory when None.
    """
    try:
        folder = folder or Path.cwd()
    except OSError as error:
        unread["disk"] = f"the working directory cannot be read: {error.strerror or error}"
        return None
    found = _linux_disk(root, folder) if platform.system() == "Linux" else _other_disk(folder)
    if found is None:
        unread["disk"] = f"no mounted file system was found that holds {folder}"
    return found


def read_software(unread: dict[str, str], root: Path = ROOT) -> Software:
    """Versions that change speed, as far as they are known without importing torch.

    Args:
        unread: Takes the reasons for what could not be read.
        root: Where ``/etc`` is found.
    """
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
    """The operating system with its kernel and its C library: the allocator depends on that."""
    if platform.system() != "Linux":
        return platform.platform()
    release = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release") or ""
    match = re.search(r"^PRETTY_NAME=[\"']?(.*?)[\"']?$", release, re.MULTILINE)
    library = " ".join(platform.libc_ver()).strip()
    parts = [match[1] if match else "", f"Linux {platform.release()} {platform.machine()}", library]
    return ", ".join(part for part in parts if part)


def _linux_disk(root: Path, folder: PurePath) -> str | None:
    """The mount that holds a folder: the longest matching mount point, the last one where two are equal."""
    best: tuple[int, str, str, str] | None = None
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, separator, right = line.partition(" - ")
        fields, details = left.split(), right.split()
        if not separator or len(fields) < 5 or len(details) < 2:
            continue
        point = PurePath(unescape(fields[4]))
        if folder.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), details[0], unescape(details[1]), fields[2])
    if best is None:
        return None
    _, kind, source, number = best
    return f"{kind} on {source} ({_disk_kind(root, kind, source, number)})"


def _disk_kind(root: Path, file_system: str, source: str, number: str) -> str:
    """What stands behind a file system, in a word or two."""
    if _NETWORK_FILE_SYSTEMS.search(file_system):
        return "network"
    if file_system in _NOT_ON_A_DISK:
        return _NOT_ON_A_DISK[file_system]
    device = PurePath(source).name
    # Virtual disks call themselves rotating whatever they stand on, so their names decide.
    if known := re.match(r"(nvme)|x?vd[a-z]", device):
        return "NVMe" if known[1] else "virtual disk"
    # btrfs and others have no device number of their own, hence the name as a second way.
    for block in (root / "sys/dev/block" / number, root / "sys/class/block" / device):
        for queue in (block / "queue", block / ".." / "queue"):
            rotational = (read_text(queue / "rotational") or "").strip()
            if rotational in {"0", "1"}:
                return "rotating" if rotational == "1" else "solid state"
    return "unknown kind"


def _other_disk(folder: PurePath) -> str | None:
    """The disk outside of Linux, where the kind is not told."""
    try:
        partitions = psutil.disk_partitions(all=True)
    except OSError:
        return None
    holding = [part for part in partitions if folder.is_relative_to(part.mountpoint)]
    best = max(holding, key=lambda part: len(part.mountpoint), default=None)
    return f"{best.fstype or 'unknown file system'} on {best.device} (unknown kind)" if best else None
