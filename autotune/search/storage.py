"""Opens the storage of trials: a journal beside the result, or a relational database."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import filelock
import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from autotune.errors import UsageError
from autotune.hardware import running, this_process
from autotune.secrets import HIDDEN, hide, remember_secrets

LOCK_SECONDS = 15.0
"""Writing a line takes milliseconds: a process that holds the lock for longer than this is stuck."""
JOINING_TRIES, JOINING_SECONDS = 5, 0.5
"""Creating the tables takes a tenth of a second. Not tuned."""
_FIRST_BYTES = b'{"op_code":'
_CREATED, _PROCESS, _OBJECTIVE = "created", "process", "objective"


def open_study(
    *,
    name: str,
    storage: str | None,
    journal: Path,
    sampler: str,
    seed: int,
    attributes: dict[str, Any],
    resume: bool,
    join: bool = False,
) -> optuna.Study:
    """A new study; with `resume`, the newest one with the same attributes; with `join`, the one of this name.

    It lies in the relational database at the URL `storage`, else in the journal. Other machines may share it with
    `join`. `make_sampler` describes the samplers.

    Raises:
        UsageError: The storage cannot be opened, or there is nothing to resume.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    where, passwords = _shown(storage) if storage is not None else (str(journal), ())
    for password in passwords:  # also for a storage that fails during the search
        remember_secrets(environment={"password": password})
    try:
        opened = open_database(storage, join=join) if storage is not None else open_journal(journal)
        if resume:
            name = _resumable(opened, attributes, where)
        sampling = make_sampler(sampler, seed)
        study = optuna.create_study(
            study_name=name, storage=opened, sampler=sampling, direction="maximize", load_if_exists=resume or join
        )
        if join:
            _require_alike(study, attributes, where)
        if not resume:
            for key, value in attributes.items():
                study.set_user_attr(key, value)
            study.set_user_attr(_CREATED, time.time())
        study.set_user_attr(_PROCESS, this_process())
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - each kind of storage has its own errors
        why = str(error) if storage is None else _without_passwords(str(error), storage, where, passwords)
        message = f"the storage {where} cannot be opened: {why}; choose another with --storage or --out"
        raise UsageError(message) from None  # the error itself may hold a password
    return study


def beside(study: optuna.Study) -> optuna.Study:
    """A new study in the storage of another one, with its attributes. As the newest, it is the one to resume later."""
    name = f"{study.study_name}-{time.time_ns():x}"
    new = optuna.create_study(study_name=name, storage=study._storage, sampler=study.sampler, direction=study.direction)
    for key, value in (study.user_attrs | {_CREATED: time.time()}).items():
        new.set_user_attr(key, value)
    return new


def open_database(url: str, *, join: bool = False) -> BaseStorage:
    """The storage in a database.

    With `join`, it tries again, because machines that create the tables at the same time disturb each other.
    """
    for _ in range(JOINING_TRIES if join else 0):
        with contextlib.suppress(Exception):  # each database has its own errors; the last try raises them
            return RDBStorage(url)
        time.sleep(JOINING_SECONDS)
    return RDBStorage(url)


def sqlite_file(url: str) -> Path | None:
    """The file that a database's URL names; None if it names no file."""
    from sqlalchemy.engine import make_url

    try:
        parts = make_url(url)
    except Exception:  # noqa: BLE001 - opening it says what is wrong
        return None
    is_file = parts.get_backend_name() == "sqlite" and parts.database not in {None, "", ":memory:"}
    return Path(unquote((parts.database or "").removeprefix("file:").partition("?")[0])) if is_file else None


def _shown(url: str) -> tuple[str, tuple[str, ...]]:
    """A database's URL without its password, and the password as it is and as the URL spells it.

    Nothing is shown of a URL that cannot be parsed and may hold a password.
    """
    from sqlalchemy.engine import make_url

    try:
        parts = make_url(url)
        shown = parts.render_as_string(hide_password=True)
    except Exception:  # noqa: BLE001 - SQLAlchemy raises its own errors, and some of Python's
        return (HIDDEN, (url,)) if "@" in url else (url, ())
    raw = re.search(r"://[^:/]*:([^@]*)@", url)
    return shown, tuple({str(parts.password or ""), raw[1] if raw else ""} - {""})


def _without_passwords(text: str, url: str, shown: str, passwords: Iterable[str]) -> str:
    """A driver's message without the password; the URL in it is shown as elsewhere."""
    pieces = text.replace(url, shown).split(shown)
    for password in passwords:
        pieces = [hide(piece, password) for piece in pieces]
    return shown.join(pieces)


def make_sampler(name: str, seed: int) -> BaseSampler:
    """The study's sampler: ``tpe``, or ``random``; with ``bayes`` the search proposes by itself, and none draws."""
    return TPESampler(seed=seed) if name == "tpe" else RandomSampler(seed)


class Journal(JournalFileBackend):
    """A journal that repairs itself: half a line, left by a killed writer, would break the next one.

    The system releases the lock when its holder dies, so a killed run blocks no later one.
    """

    def __init__(self, path: Path) -> None:
        self._file_lock = filelock.FileLock(f"{path}.lock", timeout=LOCK_SECONDS)  # may be nested
        super().__init__(str(path), lock_obj=self._file_lock)  # type: ignore[arg-type]
        with self._file_lock:
            _drop_half_line(path)
        self._path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Appends lines after the last whole line."""
        with self._file_lock:
            _drop_half_line(self._path)
            super().append_logs(logs)


def remove_lock(journal: Path) -> None:
    """Removes a journal's lock file, which would stay beside the result, unless another process holds it."""
    lock = filelock.FileLock(f"{journal}.lock")
    with contextlib.suppress(filelock.Timeout, OSError), lock.acquire(timeout=0):
        Path(lock.lock_file).unlink()  # a process that waits for it opens a new one


def _drop_half_line(journal: Path) -> None:
    """Cuts a journal back to its last whole line; leaves any other file as it is."""
    with journal.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read(1) in {b"", b"\n"}:
            return
        file.seek(0)
        content = file.read()
        if not (content.startswith(_FIRST_BYTES) or _FIRST_BYTES.startswith(content)):
            return
        file.truncate(content.rfind(b"\n") + 1)
        os.fsync(file.fileno())


def open_journal(path: Path) -> BaseStorage:
    """The storage in a journal; creates its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(Journal(path))


def _require_alike(study: optuna.Study, attributes: dict[str, Any], where: str) -> None:
    """Makes sure that a shared study has the same attributes.

    Raises:
        UsageError: It has another workload, objective or kind of machine.
    """
    theirs = study.user_attrs
    differing = [
        f"{key} {theirs[key]} there, {value} here"
        for key, value in attributes.items()
        if value != theirs.get(key, value)
    ]
    if differing:
        raise UsageError(
            f"--join: the study {study.study_name} in {where} differs ({'; '.join(differing)}); choose another name"
        )


def _resumable(storage: BaseStorage, attributes: dict[str, Any], where: str) -> str:
    """The name of the newest study with these attributes."""
    objective = attributes.get(_OBJECTIVE)
    others = attributes.items() - {(_OBJECTIVE, objective)}
    alike = [study for study in storage.get_all_studies() if others <= study.user_attrs.items()]
    studies = [study for study in alike if study.user_attrs.get(_OBJECTIVE) == objective]
    if not studies:
        nearest_match = f"one that maximises {alike[-1].user_attrs.get(_OBJECTIVE)}" if alike else "none"
        raise UsageError(
            f"--resume: expected an earlier run of this workload and baseline on this machine in {where} that "
            f"maximises {objective}, got {nearest_match}; leave --resume out to start a new one"
        )
    newest = max(studies, key=lambda study: study.user_attrs.get(_CREATED, 0.0))
    if (busy := running(newest.user_attrs.get(_PROCESS))) not in {None, os.getpid()}:
        raise UsageError(
            f"--resume: the run in {where} is still going on, as process {busy}; "
            "wait for it, or leave --resume out to start a new one"
        )
    return str(newest.study_name)
