"""Operating system and versions."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import pytest

from autotune.hardware import probe
from tests.hardware.readings import I5_9400F, write_host


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux, wherever the test runs."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")


@pytest.mark.usefixtures("linux")
def test_system_names_its_c_library(tmp_path: Path) -> None:
    """The allocator depends on it."""
    software = probe.read_software({}, write_host(tmp_path, I5_9400F))
    assert software.os.startswith("Ubuntu 24.04 LTS, Linux ")
    assert " ".join(platform.libc_ver()).strip() in software.os


def test_torch_version_is_known_without_importing_it(tmp_path: Path) -> None:
    """The package's metadata tells it; what torch was built for waits for torch."""
    unread: dict[str, str] = {}
    software = probe.read_software(unread, tmp_path)
    assert software.torch == metadata.version("torch")
    assert software.cuda is None
    assert set(unread) == {"software.cuda"}


def test_package_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running from a checkout that was never installed is no error."""
    monkeypatch.setattr(probe, "DISTRIBUTION", "no-such-distribution")
    unread: dict[str, str] = {}
    assert probe.read_software(unread, tmp_path).autotune is None
    assert "not installed" in unread["software.autotune"]
