"""The sections of a result's report, in the order in which a reader asks: how much, why, and what now."""

from __future__ import annotations

from pathlib import Path

from autotune.hardware import hardware_rows
from autotune.report.answer import ablation_section, numerics_section, rates_section, usage_section
from autotune.report.blocks import Section, Table
from autotune.report.history import history_section
from autotune.report.limits import ceilings_section, diagnosis_section, memory_section, telemetry_section
from autotune.results.result import Result


def sections(result: Result, source: Path | None) -> list[Section]:
    """All but the raw data.

    Args:
        result: Any that can be read.
        source: Its file, as the script that trains will name it; None where it lies in none.
    """
    rows = tuple((label, "\n".join(lines)) for label, lines in hardware_rows(result.hardware))
    machine = Table(result.hardware.hostname, ("", ""), rows)
    return [
        rates_section(result),
        ablation_section(result),
        ceilings_section(result),
        memory_section(result),
        history_section(result),
        telemetry_section(result),
        diagnosis_section(result),
        numerics_section(result),
        Section("machine", "The machine", "Machine", (machine,)),
        usage_section(source),
    ]
