"""Container, disk, operating system and versions."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest

from autotune.hardware import surroundings
from tests.hardware.readings import I5_9400F, mount, write_files, write_host


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": 'engine="podman"'}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"container": "lxc"}, "lxc"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({}, {"APPTAINER_CONTAINER": "/image.sif"}, "apptainer"),
        ({"proc/self/cgroup": "4:cpu:/docker/0123\n"}, {}, "docker"),
        ({"proc/self/cgroup": "0::/kubepods/besteffort/pod1\n"}, {}, "kubernetes"),
        ({"proc/self/cgroup": "0::/user.slice\n"}, {}, None),
        ({}, {}, None),
    ],
)
def test_kind_of_container(tmp_path: Path, files: dict[str, str], environ: dict[str, str], kind: str | None) -> None:
    """Each engine leaves a sign of its own; outside of any there is none."""
    assert surroundings.read_container(write_files(tmp_path, files), environ) == kind


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux, wherever the test runs."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")


def disk_of(root: Path, folder: str, mounts: str, **files: str) -> str | None:
    """The disk of a folder with these mounts."""
    write_files(root, {"proc/self/mountinfo": mounts, **files})
    return surroundings.read_disk({}, root, PurePosixPath(folder))


@pytest.mark.usefixtures("linux")
def test_disk_is_the_longest_mount_that_holds_the_folder(tmp_path: Path) -> None:
    """A data disk below the root is not taken for the root."""
    mounts = mount("/", "ext4", source="/dev/nvme0n1p2") + mount("/data", "xfs", source="/dev/vdb1")
    assert disk_of(tmp_path, "/data/set", mounts) == "xfs on /dev/vdb1 (virtual disk)"
    assert disk_of(tmp_path, "/database", mounts) == "ext4 on /dev/nvme0n1p2 (NVMe)"


@pytest.mark.usefixtures("linux")
@pytest.mark.parametrize(("flag", "kind"), [("1", "rotating"), ("0", "solid state")])
def test_rotating_disks_are_told_from_solid_ones(tmp_path: Path, flag: str, kind: str) -> None:
    """The kernel says whether the device turns."""
    queue = {"sys/dev/block/0:28/queue/rotational": f"{flag}\n"}
    mounts = mount("/", "ext4", source="/dev/sda1")
    write_files(tmp_path, queue)
    assert disk_of(tmp_path, "/home", mounts) == f"ext4 on /dev/sda1 ({kind})"


@pytest.mark.usefixtures("linux")
def test_partition_asks_its_disk(tmp_path: Path) -> None:
    """Only the whole disk knows whether it turns; a partition lies below it."""
    write_files(tmp_path, {"sys/block/sda/queue/rotational": "1\n", "sys/block/sda/sda1/size": "8\n"})
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/0:28").symlink_to(tmp_path / "sys/block/sda/sda1")
    assert disk_of(tmp_path, "/home", mount("/", "ext4", source="/dev/sda1")) == "ext4 on /dev/sda1 (rotating)"


@pytest.mark.usefixtures("linux")
@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("nfs4", "server:/export", "network"),
        ("overlay", "overlay", "a container's layers, on an unknown disk"),
        ("tmpfs", "tmpfs", "memory"),
        ("zfs", "tank/home", "unknown kind"),
    ],
)
def test_kinds_that_are_no_plain_disk(tmp_path: Path, kind: str, source: str, expected: str) -> None:
    """Network, memory and layered file systems say what they are; the unknown is called so."""
    assert disk_of(tmp_path, "/home", mount("/", kind, source=source)) == f"{kind} on {source} ({expected})"


@pytest.mark.usefixtures("linux")
def test_disk_that_cannot_be_found_is_none_with_a_reason(tmp_path: Path) -> None:
    """Without mounts there is no guess."""
    unread: dict[str, str] = {}
    assert surroundings.read_disk(unread, tmp_path, PurePosixPath("/home")) is None
    assert "/home" in unread["disk"]


@pytest.mark.usefixtures("linux")
def test_system_names_its_c_library(tmp_path: Path) -> None:
    """The allocator depends on it."""
    software = surroundings.read_software({}, write_host(tmp_path, I5_9400F))
    assert software.os.startswith("Ubuntu 24.04 LTS, Linux ")
    assert " ".join(platform.libc_ver()).strip() in software.os


def test_torch_version_is_known_without_importing_it(tmp_path: Path) -> None:
    """The package's metadata tells it; what torch was built for waits for torch."""
    unread: dict[str, str] = {}
    software = surroundings.read_software(unread, tmp_path)
    assert software.torch == metadata.version("torch")
    assert software.cuda is None
    assert set(unread) == {"software.cuda"}


def test_package_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running from a checkout that was never installed is no error."""
    monkeypatch.setattr(surroundings, "DISTRIBUTION", "no-such-distribution")
    unread: dict[str, str] = {}
    assert surroundings.read_software(unread, tmp_path).autotune is None
    assert "not installed" in unread["software.autotune"]
