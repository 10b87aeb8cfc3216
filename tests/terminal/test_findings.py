"""What the doctor says of its findings at the end."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from autotune.doctor.examination import examine_quickly
from autotune.doctor.findings import Drop, Finding
from autotune.terminal.findings import examination_lines
from tests.spaces import cpu_machine


@pytest.mark.parametrize("is_read", [True, False])
def test_what_is_left_out_of_the_search_is_so_only_where_tunings_read_it(is_read: bool) -> None:
    """Else the line says what to do."""
    drop = Drop(knob="precision", value="fp16", reason="it crashed")
    finding = Finding(name="precision", status="does not hold", found="", remedy="", drops=(drop,))
    examined = examine_quickly(cpu_machine(), "cpu").model_copy(update={"findings": (finding,)})
    console = Console(file=io.StringIO(), width=200)
    console.print(examination_lines(examined, "a cpu", Path("here.json"), is_read=is_read))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "left out of the search here: precision=fp16" in text
    assert ("; tunings do not read this file: run doctor without --out" in text) is not is_read
