"""Reads what a process runs in: the container, the disk of the working directory, the operating system.

None of it needs torch. `root` stands for ``/`` and `unread` takes reasons, as in `autotune.hardware.host`.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path, PurePath

import psutil

from autotune.hardware.cgroups import ROOT, Mount, mounts, read_text
from autotune.hardware.model import Software

DISTRIBUTION = "autotune-torch"

_NOT_ON_A_DISK = {"tmpfs": "memory", "ramfs": "memory", "overlay": "a container's layers, on an unknown disk"}
_CGROUP_WORDS = (
    ("kubepods", "kubernetes"), ("libpod", "podman"), ("docker", "docker"), ("containerd", "containerd"),
    ("crio", "cri-o"), ("lxc", "lxc"), ("garden", "garden"), ("machine.slice", "systemd-nspawn"),
)  # fmt: skip
_NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs|cifs|smb|9p|ceph|lustre|gpfs|beegfs|glusterfs|virtiofs|fuse\.(?:sshfs|s3fs|gcsfuse)"
)


def read_container(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str | None:
    """The kind of container (``docker``, ``kubernetes``, …), or None outside of any."""
    # The orchestrator comes first: inside of Kubernetes the signs of its container engine are there as well.
    if "KUBERNETES_SERVICE_HOST" in environ or (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    if "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ:
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    told = environ.get("container") or read_text(root / "run/systemd/container").strip()
    groups = read_text(root / "proc/self/cgroup")
    return told or next((kind for word, kind in _CGROUP_WORDS if word in groups), None)


def read_disk(unread: dict[str, str], root: Path = ROOT, folder: PurePath | None = None) -> str | None:
    """The disk that holds a folder, else the working directory, such as ``ext4 on /dev/nvme0n1p2 (NVMe)``."""
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
    """Versions that change speed, as far as they are known without importing torch."""
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
    release = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release")
    names = re.findall(r"^PRETTY_NAME=[\"']?(.*?)[\"']?$", release, re.MULTILINE)
    library = " ".join(platform.libc_ver()).strip()
    return ", ".join(filter(None, [*names, f"Linux {platform.release()} {platform.machine()}", library]))


def _linux_disk(root: Path, folder: PurePath) -> str | None:
    """The mount that holds a folder: the longest matching mount point, the last one where two are equal."""
    holding = [mount for mount in mounts(root) if folder.is_relative_to(mount.point)]
    best = max(reversed(holding), key=lambda mount: len(mount.point.parts), default=None)
    return f"{best.kind} on {best.source} ({_disk_kind(root, best)})" if best else None


def _disk_kind(root: Path, mount: Mount) -> str:
    """What stands behind a file system, in a word or two."""
    if _NETWORK_FILE_SYSTEMS.search(mount.kind):
        return "network"
    if mount.kind in _NOT_ON_A_DISK:
        return _NOT_ON_A_DISK[mount.kind]
    device = PurePath(mount.source).name
    # Virtual disks call themselves rotating whatever they stand on, so their names decide.
    if known := re.match(r"(nvme)|x?vd[a-z]", device):
        return "NVMe" if known[1] else "virtual disk"
    # btrfs and others have no device number of their own, hence the name as a second way; a partition asks its disk.
    for block in (root / "sys/dev/block" / mount.number, root / "sys/class/block" / device):
        for queue in (block / "queue", block / ".." / "queue"):
            if rotational := read_text(queue / "rotational").strip():
                return "rotating" if rotational == "1" else "solid state"
    return "unknown kind"


def _other_disk(folder: PurePath) -> str | None:
    """The disk outside of Linux, where the kind is not told."""
    try:
        holding = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    except OSError:
        return None
    best = max(holding, key=lambda part: len(part.mountpoint), default=None)
    return f"{best.fstype or 'unknown file system'} on {best.device} (unknown kind)" if best else None
