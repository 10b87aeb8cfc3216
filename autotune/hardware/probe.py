"""Combines all readings of the machine: `probe_host` works without torch, `merge` adds torch's report.

They are separate because importing torch takes seconds, and a process that has opened a CUDA context holds memory that
must be measured. So a child process asks torch, and returns its report as JSON.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, MutableMapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from autotune.hardware import host, nvidia
from autotune.hardware.model import Gpu, Hardware, Peaks, Software
from autotune.sandbox.cgroups import ROOT, read_text

UNUSABLE = "gpus.unusable"
"""The key of the reason why torch cannot use a GPU of this machine."""


def probe_host(
    *,
    root: Path = ROOT,
    nvml: Any | None = None,
    environ: Mapping[str, str] = os.environ,
    usable_cpus: int | None = None,
) -> Hardware:
    """Describes this machine as far as possible without torch; takes well under a second.

    Args:
        root: Holds ``/proc``, ``/sys``, ``/dev`` and ``/etc``.
        nvml: An object like the `pynvml` module; None: the installed one.
        environ: The environment variables.
        usable_cpus: CPUs for this process; None asks the operating system.
    """
    unread: dict[str, str] = {"peaks": "not measured"}
    return Hardware(
        hostname=platform.node() or "unknown",
        gpus=nvidia.read_gpus(nvml, unread, environ),
        cpu=host.read_cpu(unread, root, usable=usable_cpus),
        memory=host.read_memory(unread, root),
        software=read_software(unread, root),
        unread=unread,
    )


def merge(host: Hardware, torch_report: Mapping[str, Any]) -> Hardware:
    """Adds the report of a child process that imported torch.

    GPUs are matched by UUID, and follow torch's order. A GPU that this torch cannot use is left out, with the reason:
    training cannot run on it.

    Args:
        host: The result of `probe_host`.
        torch_report: The result of `autotune.bursts.jobs.peaks_job.report`, decoded from JSON; may be empty.

    Raises:
        pydantic.ValidationError: The report is malformed.
    """
    if not torch_report:
        return host
    version, cuda, peaks = torch_report["torch"], torch_report["cuda"], torch_report.get("peaks")
    gpus, gpu_reasons = _merge_gpus(host, [Gpu.model_validate(entry) for entry in torch_report["gpus"]], version)
    gpu_reasons |= {key: why for key, why in torch_report["unread"].items() if key == UNUSABLE}  # torch knows it better
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
    """The GPUs that torch can use, each with the driver's values, and the reasons for gaps."""
    unmatched = dict(enumerate(host.gpus))
    merged: list[Gpu] = []
    reasons = {key: reason for key, reason in host.unread.items() if key.startswith("gpus.bus.")}
    for place, seen in enumerate(reported):
        number = _match(seen, unmatched)
        gpu = seen if number is None else _filled(unmatched.pop(number), seen)
        for field in (name for name, value in gpu if value is None):
            reasons[f"gpus.{place}.{field}"] = f"torch does not report this for the kind {gpu.kind}"
        # The driver's reasons override torch's.
        prefix = f"gpus.{number}."
        reasons |= {f"gpus.{place}.{k[len(prefix) :]}": why for k, why in host.unread.items() if k.startswith(prefix)}
        merged.append(gpu)
    if unmatched and not (merged and nvidia.ANY_OF_THESE in host.unread):
        names = ", ".join(gpu.name for gpu in unmatched.values())
        reasons[UNUSABLE] = f"the driver reports {names}, but torch {version} cannot use it"
    if not merged and UNUSABLE in reasons:
        reasons["gpus"] = reasons[UNUSABLE]
    elif not merged:
        reasons["gpus"] = f"{host.unread.get('gpus', 'no NVIDIA GPU')}; torch {version} offers no other GPU"
    return tuple(merged), reasons


def pin_gpu(environ: MutableMapping[str, str] = os.environ, nvml: Any | None = None) -> str | None:
    """Restricts this process and its descendants to one NVIDIA GPU: the one with the most free memory.

    Args:
        environ: The environment variables, which are changed.
        nvml: See `probe_host`.

    Returns:
        A sentence about the choice; None if there is no choice, or it is not certain which GPUs the environment allows.
    """
    unread: dict[str, str] = {}
    gpus = [gpu for gpu in nvidia.read_gpus(nvml, unread, environ) if gpu.kind == "cuda" and gpu.uuid is not None]
    if len(gpus) < 2 or nvidia.ANY_OF_THESE in unread:
        return None
    freest = max(gpus, key=lambda gpu: (gpu.free_bytes or 0, -gpu.index))
    environ["CUDA_VISIBLE_DEVICES"] = freest.uuid or ""
    return f"of {len(gpus)} GPUs, number {freest.index} ({freest.name}) is tuned, which has most memory free"


def _match(seen: Gpu, host_gpus: Mapping[int, Gpu]) -> int | None:
    """Finds the driver's GPU for one of torch's: by UUID, or by name where UUIDs cannot decide."""
    uuid = None if seen.uuid is None else _bare(seen.uuid)
    uuids = {_bare(gpu.uuid): number for number, gpu in host_gpus.items() if gpu.uuid is not None}
    if uuid in uuids:
        return uuids[uuid]
    # For a slice, CUDA reports the UUID of the slice or of its card, depending on the version.
    if uuid is not None and uuids and not any(gpu.mig for gpu in host_gpus.values()):
        return None
    return next((number for number, gpu in host_gpus.items() if gpu.kind == seen.kind and gpu.name == seen.name), None)


def _filled(host_gpu: Gpu, seen: Gpu) -> Gpu:
    """The driver's record under torch's index, with gaps filled from torch's."""
    gaps = {name: getattr(seen, name) for name, value in host_gpu if value is None}
    if gaps.get("compute_capability") is not None:
        gaps |= {"precisions": seen.precisions, "precision_reason": seen.precision_reason}
    return host_gpu.model_copy(update=gaps | {"index": seen.index})


def _bare(uuid: str) -> str:
    """A UUID without the prefix that only NVML writes."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _is_missing(dump: Any, key: str) -> bool:
    """Whether a dotted key leads to None, an empty list, or no field at all."""
    for part in key.split("."):
        if isinstance(dump, (list, tuple)):
            dump = dump[int(part)] if part.isdigit() and int(part) < len(dump) else None
        elif isinstance(dump, dict):
            dump = dump.get(part)
    return dump in (None, (), [])


DISTRIBUTION = "autotune-torch"


def read_software(unread: dict[str, str], root: Path = ROOT) -> Software:
    """The versions that affect speed, as far as they are known without importing torch."""
    unread["software.cuda"] = "only torch knows what it was built for, and it was not imported"
    return Software(
        os=_os_name(root),
        python=platform.python_version(),
        torch=_version("torch", "software.torch", unread),
        autotune=_version(DISTRIBUTION, "software.autotune", unread),
    )


def _version(distribution: str, field: str, unread: dict[str, str]) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        unread[field] = f"the package {distribution} is not installed"
        return None


def _os_name(root: Path) -> str:
    """The operating system with its kernel and C library, which determines the allocator."""
    if platform.system() != "Linux":
        return platform.platform()
    release = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release")
    names = re.findall(r"^PRETTY_NAME=[\"']?(.*?)[\"']?$", release, re.MULTILINE)
    library = " ".join(platform.libc_ver()).strip()
    return ", ".join(filter(None, [*names, f"Linux {platform.release()} {platform.machine()}", library]))
