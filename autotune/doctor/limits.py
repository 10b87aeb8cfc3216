"""Checks the system's limits: files, memory, processes that stop and continue; and the counters of the GPU's driver."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from autotune.doctor.context import DEADLINE_SECONDS, SHORT, Clinic, point
from autotune.doctor.findings import Finding
from autotune.measuring import Burst, Measurement, TelemetrySummary
from autotune.sandbox.cgroups import process_limit, read_text
from autotune.sandbox.protection import find_offer
from autotune.sandbox.system import KILL, LINUX, WINDOWS, open_files_limit, resource
from autotune.units import format_bytes

LEAST_FILES = 1024
"""The default of Linux. Each worker takes some files, and each batch in transit takes one."""
LEAST_SHARED_BYTES = 256 * 2**20
"""Docker grants 64 MiB by default, which the images of two workers almost fill."""
LEAST_MEMORY_BYTES = 2 * 2**30
"""Enough for two processes with torch and a small model, and for the system."""
LEAST_PROCESSES = 256
"""The limit counts threads too: each process with torch starts one per processor, and a few more."""
PATIENCE_SECONDS = 5.0
_WAITS = "import sys; sys.stdin.read()"
FAMILY = (
    "import subprocess, sys; "
    f"print(subprocess.Popen([sys.executable, '-c', {_WAITS!r}]).pid, flush=True); sys.stdin.read()"
)
ORPHANED = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]]); print(p.pid, flush=True)"
"""Starts another program and ends, because a command's live descendants count as its own."""
FOREIGN = "import torch, time; x = torch.ones(1, device='cuda'); print('here', flush=True); time.sleep(60)"
EXCLUSIVE = "busy or unavailable"
"""CUDA's words where the driver admits one program at a time (exclusive-process mode)."""


def open_files(_: Clinic) -> Iterator[Finding]:
    """Open files."""
    soft, hard = open_files_limit() or (0, 0)
    yield Finding.of(
        "open files",
        holds=not soft or soft >= LEAST_FILES,
        found=f"a process may open {soft or 'any number of'} files",
        remedy=f"raise the limit: ulimit -n {min(65536, hard) if hard > soft else 65536}",
    )
    if resource is not None and (address_space := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        yield Finding.of(
            "address space",
            holds=False,
            found=f"a process may map only {format_bytes(address_space)}, including memory that it never touches",
            remedy="lift it (ulimit -v unlimited) and limit memory by a container or cgroup instead",
        )


def files_of_scripts(_: Clinic) -> Iterator[Finding]:
    """Your files, while scripts are tuned."""
    offer = find_offer()
    remedy = "allow user namespaces, or pass --writable for what a script may change"
    yield Finding.of(
        "your files, while scripts are tuned", holds=offer.row != "none", found=offer.sentence, remedy=remedy
    )


def shared_memory(clinic: Clinic) -> Iterator[Finding]:
    """Shared memory."""
    free = clinic.hardware.memory.shm_bytes
    if not LINUX:
        yield Finding.none("shared memory", "only Linux has /dev/shm")
        return
    enough = free is not None and free >= LEAST_SHARED_BYTES
    remedy = "enlarge it: docker run --shm-size=8g, or an emptyDir of medium Memory at /dev/shm under Kubernetes"
    there = "there is no /dev/shm" if free is None else f"{format_bytes(free)} are free in /dev/shm"
    yield Finding.of("shared memory", holds=enough, found=f"{there}, which workers send batches through", remedy=remedy)


def host_memory(clinic: Clinic) -> Iterator[Finding]:
    """Host memory."""
    memory = clinic.hardware.memory
    limit = memory.cgroup_limit_bytes
    within = f" of the {format_bytes(limit)} that its control group may take" if limit is not None else ""
    yield Finding.of(
        "host memory",
        holds=memory.available_bytes >= LEAST_MEMORY_BYTES,
        found=f"{format_bytes(memory.available_bytes)}{within} are available",
        remedy="give the container more memory (docker run --memory), or end other programs",
    )


def processes(_: Clinic) -> Iterator[Finding]:
    """Processes stop, continue, and end with their children."""
    if WINDOWS:
        yield Finding.none("processes", "Windows has no signals: runners wait by themselves")
        return
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], stdin=pipe, stdout=pipe, stderr=nowhere, text=True)
    wrong, pids = "", [parent.pid]
    try:
        pids.append(int(_next_line(parent, "a child process cannot start another one")))
        for pid in pids:
            wrong = wrong or _stops_and_goes_on(pid)
    except (OSError, ValueError, subprocess.SubprocessError, psutil.Error) as error:
        wrong = f"no process could be started and stopped: {error}"
    finally:
        for pid in pids:  # if the system forbids signals, both end with their input
            _end(pid)
        parent.communicate()
    remedy = "allow the container to send signals to its own processes (its seccomp profile forbids kill)"
    text = wrong or "stop, continue and end, with their children"
    yield Finding.of("processes", holds=not wrong, found=text, remedy=remedy, decisive=True)
    yield from _room_for_processes()


def _end(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, KILL)


def _next_line(process: subprocess.Popen[str], else_why: str) -> str:
    """Waits for a process's next line, and returns it.

    Raises:
        SubprocessError: It ends without one.
    """
    if process.stdout is None or not (line := process.stdout.readline()):
        raise subprocess.SubprocessError(else_why)
    return line


def _stops_and_goes_on(pid: int) -> str:
    """Stops and continues a process. Returns what is wrong; empty if nothing is."""
    for name, stops in (("SIGSTOP", True), ("SIGCONT", False)):
        try:
            os.kill(pid, getattr(signal, name))
        except OSError as error:
            return f"{name} cannot be sent to a child process: {error.strerror}"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (psutil.Process(pid).status() == psutil.STATUS_STOPPED) != stops:
            if time.monotonic() > deadline:
                return f"{name} has no effect on a child process"
            time.sleep(0.005)
    return ""


def _room_for_processes() -> Iterator[Finding]:
    # No limit counts for root, unless the host knows it as another user.
    is_root = os.geteuid() == 0 and read_text(Path("/proc/self/uid_map")).split()[1:2] in ([], ["0"])
    own = resource.RLIM_INFINITY if is_root else resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limits = [limit for limit in (process_limit(), own) if limit not in {None, resource.RLIM_INFINITY}]
    if (limit := min(limits, default=LEAST_PROCESSES)) < LEAST_PROCESSES:
        remedy = f"raise the limit: ulimit -u {LEAST_PROCESSES * 16}, or docker run --pids-limit"
        text = f"{limit} processes and threads are allowed"
        yield Finding.of("number of processes", holds=False, found=text, remedy=remedy)


def telemetry(clinic: Clinic) -> Iterator[Finding]:
    """The driver's counters while the GPU works."""
    if clinic.device != "cuda":
        yield Finding.none("telemetry", "only NVIDIA's driver is queried")
        return
    burst = _watched(clinic)
    if burst.measurement is None:
        remedy = "mend what it names, and run doctor again"
        yield Finding.of("telemetry", holds=False, found=f"the burst to watch {burst.ending}", remedy=remedy)
        return
    summary = _readings(burst.measurement)
    if summary is None:
        why = clinic.hardware.unread.get("gpus", "it returned no figures")
        remedy = "install the driver's libnvidia-ml.so.1 (in a container: the capability `utility`)"
        yield Finding.of("telemetry", holds=False, found=f"NVML does not answer: {why}", remedy=remedy)
        return
    figures = {
        "utilisation": summary.gpu_utilization_fraction, "SM activity": summary.sm_activity_fraction,
        "clock": summary.sm_clock_mhz, "power": summary.power_watts, "energy": summary.energy_joules,
        "temperature": summary.temperature_celsius, "memory": summary.device_context_bytes,
    }  # fmt: skip
    missing = [name for name, value in figures.items() if value is None]
    lies = []
    if summary.gpu_utilization_fraction is not None and summary.gpu_utilization_fraction < 0.1:
        lies.append(f"utilisation reads {summary.gpu_utilization_fraction:.0%} while matrix products run")
    if summary.energy_joules is not None and summary.energy_joules <= 0:
        lies.append("the energy counter stands still")
    yield Finding.of(
        "telemetry",
        holds=not lies,
        found="; ".join(lies) or ("all counters answer" if not missing else f"no {', '.join(missing)}: left out"),
        remedy="do not trust the GPU's figures in the report; rates do not depend on them",
    )
    yield _foreign(clinic)


def _watched(clinic: Clinic) -> Burst:
    """A burst that keeps the GPU busy."""
    return clinic.runner().run(point("saturating"), SHORT, DEADLINE_SECONDS)


def _readings(measurement: Measurement) -> TelemetrySummary | None:
    """The telemetry of a measurement; None if the driver does not answer."""
    summary = measurement.telemetry
    answers = summary is not None and (summary.gpu_utilization_fraction, summary.power_watts) != (None, None)
    return summary if answers else None


def _foreign(clinic: Clinic) -> Finding:
    """Checks whether a second program on the GPU is noticed."""
    with subprocess.Popen([sys.executable, "-c", ORPHANED, FOREIGN], stdout=subprocess.PIPE, text=True) as starter:
        other = int(_next_line(starter, "a second program could not be started"))
        late = threading.Timer(DEADLINE_SECONDS, _end, [other])
        late.start()
        try:
            _next_line(starter, "a second program could not use the GPU")  # it holds the GPU from here on
            late.cancel()
            starter.wait()
            burst = _watched(clinic)
        finally:
            late.cancel()
            _end(other)
    name, remedy = "other programs on the GPU", "make sure that no other program uses this GPU while you tune"
    if burst.measurement is None:
        text = f"while a second program held the GPU, training {burst.ending}"
        if EXCLUSIVE in text:
            return Finding.none(name, text)
        return Finding.of(name, holds=False, found=text, remedy=remedy)
    summary = _readings(burst.measurement)
    seen = bool(summary is not None and summary.foreign_gpu_processes)
    text = "a second one is seen" if seen else "a second one is not seen: the driver does not report its process"
    return Finding.of(name, holds=seen, found=text, remedy=remedy)
