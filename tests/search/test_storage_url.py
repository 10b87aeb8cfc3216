"""The URL of a storage, which may hold a password, as screens and logs show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune import secrets
from autotune.errors import UsageError
from autotune.search import storage
from autotune.secrets import masked_text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cr%40t@host/trials", "postgresql://me:***@host/trials"),
        ("mysql+pymysql://me:s3cr/w!%40s@db/x", "mysql+pymysql://me:***@db/x"),
        ("postgresql://me:s3cr@t@host:port/trials", "***"),
        ("me:s3cr@t", "***"),
        ("trials.db", "trials.db"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_told_without_its_password(
    url: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of its own, nor in what a driver says."""

    def fails(asked: str, *, join: bool) -> None:
        raise RuntimeError(f"cannot connect to {asked}: s3cr@t and s3cr%40t were refused" if "%40t" in asked else asked)

    monkeypatch.setattr(storage, "open_database", fails)
    with pytest.raises(UsageError) as caught:
        storage.open_study(
            name="ours", storage=url, journal=tmp_path / "r.journal", sampler="random", seed=0, attributes={},
            resume=False,
        )  # fmt: skip
    assert str(caught.value).startswith(f"the storage {shown} cannot be opened: ")
    assert "s3cr" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_password_that_is_a_part_of_the_url_leaves_it_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``postgres``, the most common one."""

    def fails(asked: str, *, join: bool) -> None:
        raise RuntimeError(f"{asked} refused postgres")

    monkeypatch.setattr(storage, "open_database", fails)
    with pytest.raises(UsageError) as caught:
        storage.open_study(
            name="ours", storage="postgresql://postgres:postgres@localhost/optuna", journal=tmp_path / "r.journal",
            sampler="random", seed=0, attributes={}, resume=False,
        )  # fmt: skip
    shown = "postgresql://postgres:***@localhost/optuna"
    assert str(caught.value).startswith(f"the storage {shown} cannot be opened: {shown} refused ***; choose")


def test_a_password_is_hidden_in_what_a_driver_says_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that fails during the search is quoted in the result."""
    monkeypatch.setattr(secrets, "_remembered", {})
    with pytest.raises(UsageError):
        storage.open_study(
            name="ours", storage="sqlite://me:s3cr%40t-4711@/", journal=tmp_path / "r.journal", sampler="random",
            seed=0, attributes={}, resume=False,
        )  # fmt: skip
    assert masked_text("refused: s3cr@t-4711, s3cr%40t-4711") == "refused: ***, ***"
