"""Puts together what was read of the machine: `probe_host` without torch, `merge` with what torch found.

The two are apart since importing torch takes seconds, and a process that has opened a CUDA context holds
memory that is to be measured: torch is asked in a child process, and its report comes back as JSON.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from autotune.hardware import host, nvidia, surroundings
from autotune.hardware.cgroups import ROOT
from autotune.hardware.model import Gpu, Hardware, Peaks


def probe_host(
    *,
    root: Path = ROOT,
    nvml: Any | None = None,
    environ: Mapping[str, str] = os.environ,
    usable_cpus: int | None = None,
) -> Hardware:
    """What this machine is, as far as it can be told without torch; takes well under a second.

    Args:
        root: Where ``/proc``, ``/sys``, ``/dev`` and ``/etc`` are found.
        nvml: The `pynvml` module, or an object like it; the installed one when None.
        environ: The environment variables.
        usable_cpus: CPUs that the operating system lets this process use; None asks it.
    """
    unread: dict[str, str] = {"peaks": "not measured"}
    return Hardware(
        hostname=platform.node() or "unknown",
        gpus=nvidia.read_gpus(nvml, unread, environ),
        cpu=host.read_cpu(unread, root, usable=usable_cpus),
        memory=host.read_memory(unread, root),
        software=surroundings.read_software(unread, root),
        unread=unread,
    )


def merge(host: Hardware, torch_report: Mapping[str, Any]) -> Hardware:
    """The machine with what a child process found that imported torch.

    GPUs are matched by UUID, and follow torch's order. A GPU that this torch cannot use is left out, with
    the reason: training cannot run on it.

    Args:
        host: What `probe_host` gave.
        torch_report: What `autotune.bursts.peaks_job.report` gave, decoded from JSON; may be empty.

    Raises:
        pydantic.ValidationError: When the report does not hold what it should.
    """
    if not torch_report:
        return host
    version, cuda, peaks = torch_report["torch"], torch_report["cuda"], torch_report.get("peaks")
    gpus, gpu_reasons = _merge_gpus(host, [Gpu.model_validate(entry) for entry in torch_report["gpus"]], version)
    reasons = {key: why for key, why in host.unread.items() if key.split(".")[0] != "gpus"}
    reasons |= {**torch_report["unread"], **gpu_reasons, "software.cuda": f"torch {version} is not built for CUDA"}
    changes = {
        "gpus": gpus,
        "software": host.software.model_copy(update={"torch": version, "cuda": cuda}),
        "peaks": Peaks.model_validate(peaks) if peaks else None,
    }
    merged = host.model_copy(update=changes)
    dump = merged.model_dump()
    return merged.model_copy(update={"unread": {key: why for key, why in reasons.items() if _is_missing(dump, key)}})


def _merge_gpus(host: Hardware, reported: Sequence[Gpu], version: str) -> tuple[tuple[Gpu, ...], dict[str, str]]:
    """The GPUs that torch can use, each with what the driver told about it, and the reasons for gaps."""
    left = dict(enumerate(host.gpus))
    merged: list[Gpu] = []
    reasons = {key: reason for key, reason in host.unread.items() if key.startswith("gpus.bus.")}
    for place, seen in enumerate(reported):
        number = _match(seen, left)
        gpu = seen if number is None else _filled(left.pop(number), seen)
        for field in (name for name, value in gpu if value is None):
            reasons[f"gpus.{place}.{field}"] = f"torch does not report this for the kind {gpu.kind}"
        # What the driver said goes before what torch did not say.
        told = f"gpus.{number}."
        reasons |= {f"gpus.{place}.{k[len(told) :]}": why for k, why in host.unread.items() if k.startswith(told)}
        merged.append(gpu)
    if left:
        names = ", ".join(gpu.name for gpu in left.values())
        key = "gpus.unusable" if merged else "gpus"
        reasons[key] = f"the driver reports {names}, but torch {version} cannot use it"
    elif not merged:
        reasons["gpus"] = f"{host.unread.get('gpus', 'no NVIDIA GPU')}; torch {version} offers no other GPU"
    return tuple(merged), reasons


def pin_gpu(environ: MutableMapping[str, str] = os.environ, nvml: Any | None = None) -> str | None:
    """Lets this process and all that it starts see one NVIDIA GPU only: of several the one with most memory free.

    Args:
        environ: Changed.
        nvml: As for `probe_host`.

    Returns:
        What was chosen, in a sentence; None where there is no choice.
    """
    gpus = [gpu for gpu in nvidia.read_gpus(nvml, {}, environ) if gpu.kind == "cuda" and gpu.uuid is not None]
    if len(gpus) < 2:
        return None
    freest = max(gpus, key=lambda gpu: (gpu.free_bytes or 0, -gpu.index))
    environ["CUDA_VISIBLE_DEVICES"] = freest.uuid or ""
    return f"of {len(gpus)} GPUs, number {freest.index} ({freest.name}) is tuned, which has most memory free"


def _match(seen: Gpu, known: Mapping[int, Gpu]) -> int | None:
    """Which of the driver's GPUs torch means: by UUID, else by name where UUIDs cannot decide."""
    uuid = None if seen.uuid is None else _bare(seen.uuid)
    uuids = {_bare(gpu.uuid): number for number, gpu in known.items() if gpu.uuid is not None}
    if uuid in uuids:
        return uuids[uuid]
    # Of a slice, CUDA tells the UUID of the slice or of its card, by version.
    if uuid is not None and uuids and not any(gpu.mig for gpu in known.values()):
        return None
    return next((number for number, gpu in known.items() if gpu.kind == seen.kind and gpu.name == seen.name), None)


def _filled(known: Gpu, seen: Gpu) -> Gpu:
    """The driver's record under torch's index, its gaps filled by what torch told."""
    gaps = {name: getattr(seen, name) for name, value in known if value is None}
    if gaps.get("compute_capability") is not None:
        gaps |= {"precisions": seen.precisions, "precision_reason": seen.precision_reason}
    return known.model_copy(update=gaps | {"index": seen.index})


def _bare(uuid: str) -> str:
    """A UUID without the prefix that NVML writes and torch leaves out."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _is_missing(dump: Any, key: str) -> bool:
    """Whether a dotted key leads to nothing: None, an empty list, or no field at all."""
    for part in key.split("."):
        if isinstance(dump, (list, tuple)):
            dump = dump[int(part)] if part.isdigit() and int(part) < len(dump) else None
        elif isinstance(dump, dict):
            dump = dump.get(part)
    return dump in (None, (), [])
