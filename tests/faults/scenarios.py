"""The table of faults in one burst: what happens, and how the burst must end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from autotune.measuring.records import Outcome

OK, CRASHED, TIMEOUT = Outcome.OK, Outcome.CRASHED, Outcome.TIMEOUT
PACKAGE = "tests.faults.workloads"
Test = TypeVar("Test", bound=Callable[..., None])


def fault(section: str, what: str, ends: str) -> Callable[[Test], Test]:
    """Puts a test that is not of a table here onto the page all the same: where, what happens, how it must end."""

    def mark(test: Test) -> Test:
        test.faults = [(section, what, ends), *getattr(test, "faults", [])]  # type: ignore[attr-defined]
        return test

    return mark


@dataclass(frozen=True)
class Scenario:
    """A burst of a faulty workload.

    Attributes:
        where: Module and function under `tests.faults.workloads`, as ``module:function``.
        what: What happens, in words.
        outcome: How the burst must end.
        words: What the reason must say.
        workers: DataLoader workers.
        compile_mode: Of the config.
        deadline_seconds: Of the burst.
        memory_limit_bytes: The memory target.
        ranks: Processes that train together.
    """

    where: str
    what: str
    outcome: Outcome
    words: str = ""
    workers: int = 0
    compile_mode: str | None = None
    deadline_seconds: float = 20.0
    memory_limit_bytes: int | None = None
    ranks: int = 1

    @property
    def target(self) -> str:
        """The workload, as `--model` takes it."""
        return f"{PACKAGE}.{self.where}"

    @property
    def module(self) -> str:
        """The module of the workload: scenarios of one module share a forkserver."""
        return self.where.partition(":")[0]

    @property
    def ends(self) -> str:
        """How it must end, in words."""
        return f"{self.outcome.value}: {self.words}" if self.words else self.outcome.value


SCENARIOS = (
    # Memory.
    Scenario("memory:in_build", "2⁴⁰ floats are asked for in build()", Outcome.OOM, "in_build raised"),
    Scenario("memory:in_forward", "the address space ends in the forward pass", Outcome.OOM, "memory"),
    Scenario("memory:in_backward", "the address space ends in the backward pass", Outcome.OOM, "memory"),
    Scenario("memory:in_optimizer_step", "the address space ends in the optimizer's step", Outcome.OOM, "memory"),
    Scenario("memory:python_objects", "small objects fill the memory to the last byte", Outcome.OOM, "MemoryError"),
    Scenario("memory:memory_error", "the loss raises MemoryError", Outcome.OOM, "MemoryError"),
    Scenario(
        "memory:above_the_target", "the burst takes more than the memory target", Outcome.OOM, "more than the target",
        memory_limit_bytes=2**29,
    ),
    Scenario(
        "memory:killed_by_the_kernel", "SIGKILL, while the kernel counts an out-of-memory kill", Outcome.HOST_OOM,
        "the kernel's out-of-memory killer",
    ),
    Scenario(
        "memory:worker_killed_by_the_kernel", "a worker gets SIGKILL, while the kernel counts such a kill",
        Outcome.HOST_OOM, "SIGKILL", workers=1,
    ),
    Scenario("memory:worker_bus_error", "a worker gets a bus error", Outcome.SHM_EXHAUSTED, "SIGBUS", workers=1),
    Scenario("memory:disk_full", "the dataset writes to a full disk", CRASHED, "No space left"),
    # Ends.
    Scenario("ends:exit_quietly", "os._exit(0) in the loss", CRASHED, "exit status 0"),
    Scenario("ends:segfault", "a null pointer is read", CRASHED, "SIGSEGV"),
    Scenario("ends:abort", "the process aborts, as failed assertions in C++ do", CRASHED, "SIGABRT"),
    Scenario("ends:killed", "the burst gets SIGKILL", CRASHED, "SIGKILL"),
    Scenario("ends:killed_in_build", "build() gets SIGKILL", CRASHED, "SIGKILL"),
    Scenario("ends:exit_in_build", "sys.exit(3) in build()", CRASHED, "SystemExit"),
    Scenario("ends:exit_in_loss", "sys.exit(3) in the loss", CRASHED, "SystemExit"),
    Scenario("ends:keyboard_interrupt", "the loss raises KeyboardInterrupt", CRASHED, "KeyboardInterrupt"),
    Scenario("ends:kills_forkserver", "the burst kills its forkserver", CRASHED, "SIGKILL"),
    Scenario("ends:kills_forkserver_in_build", "build() kills the forkserver and waits", CRASHED, "SIGKILL"),
    Scenario("ends:stops_forkserver", "the burst stops its forkserver with SIGSTOP", TIMEOUT, deadline_seconds=3.0),
    Scenario("ends:stops_itself", "the burst stops itself with SIGSTOP", TIMEOUT, "'train'", deadline_seconds=2.0),
    Scenario("ends:worker_killed", "a worker gets SIGKILL", CRASHED, "SIGKILL", workers=1),
    Scenario("ends:worker_exits", "a worker calls os._exit(0)", CRASHED, "exited unexpectedly", workers=1),
    Scenario("ends:worker_segfaults", "a worker reads a null pointer", CRASHED, "SIGSEGV", workers=1),
    Scenario("ends:daemonises", "build() daemonises: its process ends and a grandchild trains", CRASHED, "status 0"),
    Scenario("ends:forks_in_build", "build() forks, and both processes go on", OK),
    Scenario("ends:closes_descriptors", "build() closes all file descriptors, ours too", CRASHED, "descriptors"),
    Scenario("ends:dies_in_a_thread", "a thread of the user's ends the process", CRASHED, "exit status 7"),
    # Exceptions and numbers.
    Scenario("raising:in_build", "build() raises", CRASHED, "the build went wrong"),
    Scenario("raising:in_dataset", "__getitem__ raises", CRASHED, "the sample went wrong"),
    Scenario("raising:in_worker", "__getitem__ raises in a worker", CRASHED, "the sample went wrong", workers=1),
    Scenario("raising:in_collate", "collate_fn raises", CRASHED, "the collation went wrong"),
    Scenario("raising:in_forward", "the forward pass raises", CRASHED, "the forward pass went wrong"),
    Scenario("raising:in_backward", "the backward pass raises", CRASHED, "the backward pass went wrong"),
    Scenario("raising:in_loss", "the loss raises", CRASHED, "the loss went wrong"),
    Scenario("raising:in_optimizer", "the optimizer's step raises", CRASHED, "the optimizer went wrong"),
    Scenario("raising:making_the_optimizer", "making the optimizer raises", CRASHED, "no optimizer came"),
    Scenario("raising:without_words", "the loss raises an error whose text raises too", CRASHED, "OddError"),
    Scenario("raising:nan_loss", "the loss is NaN", Outcome.INVALID, "nan"),
    Scenario("raising:diverges", "the loss overflows after some steps", Outcome.INVALID, "loss became"),
    Scenario("raising:no_batch", "an iterable dataset yields nothing", CRASHED, "no batch"),
    # Hangs.
    Scenario("hangs:in_build", "build() hangs", TIMEOUT, "'build'", deadline_seconds=1.5),
    Scenario("hangs:in_dataset", "__getitem__ hangs", TIMEOUT, "'warm up'", deadline_seconds=1.5),
    Scenario("hangs:in_worker", "__getitem__ hangs in two workers", TIMEOUT, "'warm up'", 2, deadline_seconds=1.5),
    Scenario("hangs:in_forward", "the forward pass hangs", TIMEOUT, "'warm up'", deadline_seconds=1.5),
    Scenario(
        "hangs:with_the_interpreter_locked", "C code hangs with the interpreter's lock held", TIMEOUT, "'train'",
        deadline_seconds=1.5,
    ),
    Scenario("hangs:deaf_to_signals", "build() ignores all signals, and hangs", TIMEOUT, "", deadline_seconds=1.5),
    Scenario("hangs:at_exit", "a handler for the process's end would hang", OK),
    Scenario("hangs:in_a_thread", "a thread that is no daemon never ends", OK),
    # Left behind.
    Scenario("leaving:subprocess_running", "a subprocess is left running", OK),
    Scenario("leaving:subprocess_in_its_own_session", "a subprocess in another session, with another environment", OK),
    Scenario("leaving:deaf_subprocess", "a subprocess that ignores SIGTERM", OK),
    Scenario("leaving:daemon", "a daemon that left its session and its parent", OK),
    Scenario("leaving:daemon_of_a_killed_forkserver", "a daemon, and the forkserver is killed", CRASHED, "SIGKILL"),
    Scenario("leaving:pool", "a multiprocessing pool is left open", OK),
    Scenario("leaving:shared_memory_segment", "a multiprocessing.SharedMemory is left", OK),
    Scenario("leaving:shared_memory_and_a_kill", "it is left by a burst that gets SIGKILL", CRASHED, "SIGKILL"),
    Scenario("leaving:semaphores", "named semaphores are left", OK),
    Scenario("leaving:shared_tensors", "workers that share tensors by file name get SIGKILL", CRASHED, "SIGKILL", 2),
    Scenario("leaving:temporary_files", "a read-only folder of temporary files is left", OK),
    Scenario("leaving:process_of_a_thread", "a process whose thread has ended must live on", OK),
    # Meddling.
    Scenario("meddling:prints_megabytes", "the loss prints a megabyte a step", OK),
    Scenario("meddling:writes_to_descriptors", "raw writes to descriptors 1 and 2, in the shape of an event", OK),
    Scenario("meddling:reads_stdin", "the loss reads standard input", OK),
    Scenario("meddling:closes_streams", "build() closes standard input, output and error", OK),
    Scenario("meddling:changes_directory", "build() changes the working directory", OK),
    Scenario("meddling:deletes_its_directory", "build() deletes the working directory", OK),
    Scenario("meddling:ignores_signals", "build() ignores SIGTERM, SIGINT, SIGHUP and SIGCHLD", OK, workers=1),
    Scenario("meddling:sets_an_alarm", "an alarm of the user's strikes", CRASHED, "SIGALRM"),
    Scenario("meddling:new_session", "build() calls os.setsid(): it leads a session already", CRASHED, "not permitted"),
    Scenario("meddling:disables_gc", "build() calls gc.disable()", OK),
    Scenario("meddling:sets_threads", "build() calls torch.set_num_threads(1)", OK),
    Scenario("meddling:exhausts_descriptors", "the loss leaves no file descriptor free", OK),
    Scenario("meddling:replaces_the_clock", "build() replaces time.perf_counter, monotonic, time and sleep", OK),
    Scenario("meddling:replaces_json", "build() replaces json.dumps and json.loads", OK),
    Scenario("meddling:replaces_print", "build() replaces print by what raises", OK),
    Scenario("meddling:default_dtype", "build() changes torch's default type", OK),
    Scenario("meddling:no_gradients", "build() switches gradients off", CRASHED, "grad"),
    # Compiling.
    Scenario(
        "compiling:no_compiler", "there is no C++ compiler", Outcome.UNSUPPORTED, "No working C++ compiler",
        compile_mode="default", deadline_seconds=100.0,
    ),
    Scenario(
        "compiling:crashes_the_compiler", "the compiler crashes the process", CRASHED, "SIGSEGV",
        compile_mode="default", deadline_seconds=100.0,
    ),
    # Several ranks: what happens to the second is the outcome of all.
    Scenario(
        "ranks:killed", "one of two ranks gets SIGKILL", CRASHED,
        "on rank 1 of 2: the process was killed by SIGKILL", ranks=2,
    ),
    Scenario("ranks:killed_in_build", "one of two ranks gets SIGKILL in build()", CRASHED, "on rank 1 of 2", ranks=2),
    Scenario(
        "ranks:stops_itself", "one of two ranks stops itself with SIGSTOP", TIMEOUT,
        "on rank 1 of 2: the process was stopped", ranks=2,
    ),
    Scenario(
        "ranks:raises_in_loss", "the loss raises on one of two ranks", CRASHED,
        "on rank 1 of 2: RuntimeError: the loss went wrong", ranks=2,
    ),
    Scenario(
        "ranks:exits_quietly", "one of two ranks calls os._exit(0)", CRASHED,
        "on rank 1 of 2: the process ended by itself", ranks=2,
    ),
    Scenario(
        "ranks:out_of_memory_in_backward", "the address space of one of two ranks ends in a backward pass", Outcome.OOM,
        "on rank 1 of 2", ranks=2,
    ),
    Scenario(
        "ranks:sleeps_for_ever", "the loss of one of two ranks hangs", TIMEOUT,
        "'train'", ranks=2, deadline_seconds=4.0,
    ),
    Scenario("ranks:nan_loss", "the loss of one of two ranks is NaN", Outcome.INVALID, "the loss became nan", ranks=2),
    Scenario(
        "ranks:past_the_model", "the loss goes past the model, so that ranks exchange no gradients", Outcome.INVALID,
        "no longer train the same weights", ranks=2,
    ),
)  # fmt: skip


PLAYERS = (
    Scenario("players:raises", "the loss raises for one player", CRASHED, "the loss went wrong"),
    Scenario("players:out_of_memory", "the loss raises MemoryError for one player", Outcome.OOM, "MemoryError"),
    Scenario(
        "players:leaks",
        "one player takes 64 MB a step, up to the memory target",
        Outcome.OOM,
        "more than the target",
        memory_limit_bytes=2**30,
    ),
    Scenario("players:nan_loss", "the loss is NaN for one player", Outcome.INVALID, "the loss became nan"),
    Scenario("players:changes_globals", "one player changes torch's default type and its backends", OK),
    Scenario("players:exits", "one player calls os._exit(0)", CRASHED, "exit status 0"),
    Scenario("players:exits_politely", "one player calls sys.exit(3)", CRASHED, "SystemExit"),
    Scenario("players:killed", "the process gets SIGKILL in one player's step", CRASHED, "SIGKILL"),
    Scenario("players:hangs", "one player's step hangs", TIMEOUT, "'train'"),
    Scenario("players:worker_hangs", "one player's worker hangs", TIMEOUT, "'train'", workers=1),
    Scenario("players:worker_killed", "one player's worker gets SIGKILL", CRASHED, "SIGKILL", workers=1),
    Scenario(
        "players:worker_killed_while_held", "it gets SIGKILL while another player plays", CRASHED, "SIGKILL", workers=1
    ),
)
"""Of one player of several that share a process: the outcome is its own."""


@dataclass(frozen=True)
class Importing:
    """A module that goes wrong while it is imported, or leaves something that cannot be forked.

    Attributes:
        module: Under `tests.faults.workloads.at_import`.
        what: What happens, in words.
        error: What the error says; None when bursts run.
        unsafe: Why each burst must import the module again; None when it can be forked.
        outcome: Of a burst.
        workers: DataLoader workers.
        by_path: Whether the target names the file, by a relative path.
        deadline_seconds: Of the import.
        pause_seconds: Between two bursts.
        bursts: How many run; two where the second begins from another state.
    """

    module: str
    what: str
    error: str | None = None
    unsafe: str | None = None
    outcome: Outcome = OK
    workers: int = 0
    by_path: bool = False
    deadline_seconds: float = 60.0
    pause_seconds: float = 0.0
    bursts: int = 2

    @property
    def ends(self) -> str:
        """How it must end, in words."""
        if self.error is not None:
            return f"error: {self.error}"
        return self.outcome.value + (f"; told: {self.unsafe}" if self.unsafe else "")


IMPORTING = (
    Importing("hangs", "the import hangs", error="did not finish within", deadline_seconds=3.0),
    Importing("ends_the_process", "the import calls os._exit(3)", error="last words"),
    Importing("exits", "the import calls sys.exit(0)", error="ended the process"),
    Importing("is_killed", "the import gets SIGKILL", error="ended the process twice, by a signal: free memory"),
    Importing("raises", "the import raises", error="the import went wrong"),
    Importing("is_interrupted", "the import raises KeyboardInterrupt", error="KeyboardInterrupt"),
    Importing("closes_descriptors", "the import closes all file descriptors, ours too", error="ended the process"),
    Importing("changes_directory", "the import changes the working directory", by_path=True),
    Importing("starts_threads", "the import starts a thread that never ends", unsafe="starts threads", bursts=1),
    Importing("starts_processes", "the import starts a process that bursts need", unsafe="starts processes"),
    Importing("forks", "the import forks, and both processes go on", unsafe="starts processes", bursts=1),
    Importing("initialises_a_device", "the import initialises a device", unsafe="initialises CUDA", bursts=1),
    Importing("wants_spawn", "the import sets the start method spawn", workers=1, bursts=1),
    Importing("wants_forkserver", "the import sets the start method forkserver", workers=1, bursts=1),
    Importing("sets_threads", "the import calls torch.set_num_threads(1)"),
    Importing("prints_megabytes", "the import prints 20 MB"),
    Importing("replaces_modules", "the import replaces the clock, json, print and the standard streams"),
    Importing("handles_signals", "the import ignores signals and registers a handler that hangs at exit"),
    Importing("sets_an_alarm", "an alarm of the import's strikes the forkserver between bursts", pause_seconds=1.5),
)


@dataclass(frozen=True)
class Stage:
    """A stage of the command in which a signal strikes.

    Attributes:
        name: As it is printed; None while the result is written.
        what: What happens then, in words.
        target: A workload that gives time to strike.
        options: Of the command.
        status: Exit status.
        written: The status of the result, None when there must be none.
    """

    name: str | None
    what: str
    target: str
    options: tuple[str, ...] = ()
    status: int = 130
    written: str | None = None

    @property
    def signal(self) -> signal.Signals:
        """What comes then. One handler serves all of them in all stages, so that stages take turns."""
        return SIGNALS[STAGES.index(self) % len(SIGNALS)]

    @property
    def ends(self) -> str:
        """How it must end, in words."""
        return f"exit status {self.status}, " + (f"a {self.written} result" if self.written else "no result")


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COMMANDED = f"{PACKAGE}.commanded"
STAGES = (
    Stage("importing", "the module is imported", f"{PACKAGE}.at_import.hangs:build"),
    Stage("checking the workload", "the workload is checked", f"{COMMANDED}:hangs_in_check"),
    Stage("baseline", "the baseline is measured", f"{COMMANDED}:hangs_in_training"),
    Stage(
        "expected gain", "another config is measured", f"{COMMANDED}:hangs_at_another_batch",
        ("--only", "batch_size"), written="partial",
    ),
    Stage(
        "confirm", "the finalists are confirmed", f"{COMMANDED}:gains_by_workers",
        ("--only", "num_workers", "--pin", "num_workers<=1"), written="partial",
    ),
    Stage(
        None, "the result is written, twice over", "tests.workloads.tiny:build",
        ("--only", "cudnn_benchmark"), status=0, written="complete",
    ),
)  # fmt: skip
