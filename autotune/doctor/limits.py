"""What the system allows: files, memory, processes that stop and go on; and what the GPU's driver tells."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from autotune.doctor.clinic import DEADLINE_SECONDS, SHORT, Clinic, point
from autotune.doctor.findings import Finding
from autotune.measuring import TelemetrySummary
from autotune.sandbox.protection import find_offer
from autotune.units import format_bytes

LEAST_FILES = 1024
"""What Linux grants by default: each worker takes some, each batch on its way one."""
LEAST_SHARED_BYTES = 256 * 2**20
"""Docker grants 64 MiB, of which two workers' images fill most."""
LEAST_MEMORY_BYTES = 2 * 2**30
"""Two processes with torch and a small model, and what the system needs."""
LEAST_PROCESSES = 256
"""Threads count: each process with torch starts one a processor and a few more."""
PATIENCE_SECONDS = 5.0
FAMILY = "import subprocess, sys; p = subprocess.Popen(['sleep', '5']); print(p.pid, flush=True); sys.stdin.read()"
ORPHANED = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]]); print(p.pid, flush=True)"
"""Starts another program and ends: what a command has started, and is still below it, counts as the command's own."""
FOREIGN = "import torch, time; x = torch.ones(1, device='cuda'); print('here', flush=True); time.sleep(60)"


def open_files(_: Clinic) -> Iterator[Finding]:
    """Open files."""
    if sys.platform == "win32":
        yield Finding.none("open files", "Windows has no such limit")
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= LEAST_FILES
    yield Finding.of(
        "open files",
        holds=enough,
        found=f"a process may open {soft if soft != resource.RLIM_INFINITY else 'any number of'} files",
        remedy=f"raise the limit: ulimit -n {min(65536, hard) if hard > soft else 65536}",
    )
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        yield Finding.of(
            "address space",
            holds=False,
            found=f"a process may map {format_bytes(address_space)} only, which counts what it never touches as well",
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
    if sys.platform != "linux":
        yield Finding.none("shared memory", "only Linux has /dev/shm")
        return
    enough = free is not None and free >= LEAST_SHARED_BYTES
    remedy = "enlarge it: docker run --shm-size=8g, or an emptyDir of medium Memory at /dev/shm under Kubernetes"
    there = "there is no /dev/shm" if free is None else f"{format_bytes(free)} are free in /dev/shm"
    yield Finding.of("shared memory", holds=enough, found=f"{there}, through which workers send batches", remedy=remedy)


def host_memory(clinic: Clinic) -> Iterator[Finding]:
    """Host memory."""
    memory = clinic.hardware.memory
    limit = memory.cgroup_limit_bytes
    within = f" of the {format_bytes(limit)} that the container may take" if limit is not None else ""
    yield Finding.of(
        "host memory",
        holds=memory.available_bytes >= LEAST_MEMORY_BYTES,
        found=f"{format_bytes(memory.available_bytes)}{within} are available",
        remedy="give the container more memory (docker run --memory), or end other programs",
    )


def processes(_: Clinic) -> Iterator[Finding]:
    """Processes stop, go on, and end with all that they started."""
    if sys.platform == "win32":
        yield Finding.none("processes", "Windows has no signals: runners wait by themselves")
        return
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wrong = ""
    try:
        child = int(_first_line(parent))
        for pid in (parent.pid, child):
            wrong = wrong or _stops_and_goes_on(pid)
        os.kill(child, signal.SIGKILL)
    except (OSError, ValueError) as error:
        wrong = wrong or f"no process could be started and stopped: {error}"
    finally:
        with contextlib.suppress(OSError):  # which a system that forbids signals answers: then it ends by itself
            parent.kill()
        parent.communicate()
    remedy = "allow the container to send signals to its own processes (its seccomp profile forbids kill)"
    found = wrong or "stop, go on and end, children too"
    yield Finding.of("processes", holds=not wrong, found=found, remedy=remedy, decisive=True)
    yield from _room_for_processes()


def _first_line(process: subprocess.Popen[str]) -> str:
    """What it says first; waits for that."""
    return process.stdout.readline() if process.stdout is not None else ""


def _stops_and_goes_on(pid: int) -> str:
    """What is wrong; empty when nothing is."""
    for name, wanted in (("SIGSTOP", True), ("SIGCONT", False)):
        try:
            os.kill(pid, getattr(signal, name))
        except OSError as error:
            return f"{name} cannot be sent to a process of our own: {error.strerror}"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (psutil.Process(pid).status() == psutil.STATUS_STOPPED) != wanted:
            if time.monotonic() > deadline:
                return f"{name} has no effect on a process of our own"
            time.sleep(0.005)
    return ""


def _room_for_processes() -> Iterator[Finding]:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit != resource.RLIM_INFINITY and limit < LEAST_PROCESSES:
        remedy = f"raise the limit: ulimit -u {LEAST_PROCESSES * 16}, or docker run --pids-limit"
        found = f"{limit} processes and threads are allowed"
        yield Finding.of("number of processes", holds=False, found=found, remedy=remedy)


def telemetry(clinic: Clinic) -> Iterator[Finding]:
    """What the driver tells of the GPU while it works."""
    if clinic.device != "cuda":
        yield Finding.none("telemetry", "only NVIDIA's driver is asked")
        return
    summary = _watched(clinic)
    if summary is None:
        why = clinic.hardware.unread.get("gpus", "it gave no figure")
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
        remedy="do not believe the GPU's figures in the report; rates do not depend on them",
    )
    yield _foreign(clinic)


def _watched(clinic: Clinic) -> TelemetrySummary | None:
    """The telemetry of a burst that keeps the GPU busy."""
    burst = clinic.runner().run(point("saturating"), SHORT, DEADLINE_SECONDS)
    summary = burst.measurement.telemetry if burst.measurement is not None else None
    told = summary is not None and (summary.gpu_utilization_fraction, summary.power_watts) != (None, None)
    return summary if told else None


def _foreign(clinic: Clinic) -> Finding:
    """Whether a second program on the GPU is noticed."""
    starter = subprocess.Popen([sys.executable, "-c", ORPHANED, FOREIGN], stdout=subprocess.PIPE, text=True)
    if not (told := _first_line(starter).strip()):
        starter.wait()
        raise subprocess.SubprocessError("a second program could not be started")
    other = int(told)
    try:
        _first_line(starter)  # it holds the GPU from here on
        starter.wait()
        summary = _watched(clinic)
    finally:
        with contextlib.suppress(OSError):
            os.kill(other, signal.SIGKILL)
        starter.communicate()
    seen = bool(summary is not None and summary.foreign_gpu_processes)
    found = "a second one is seen" if seen else "a second one is not seen: the driver does not tell whose it is"
    remedy = "see to it that nobody else uses this GPU while you tune"
    return Finding.of("other programs on the GPU", holds=seen, found=found, remedy=remedy)
