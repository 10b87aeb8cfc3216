"""The result card says what a result says, in both kinds of picture, whatever the result is."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from autotune.report.card import WIDTH, card
from autotune.results.files import write_document
from autotune.results.result import Result
from tests.factories import make_result
from tests.inside import run_inside
from tests.report.samples import HOSTILE, beside_other_load, full_result

SVG = "{http://www.w3.org/2000/svg}"


def texts(result: Result) -> list[str]:
    """What is written on a card."""
    root = ET.fromstring(card(result, "svg"))  # noqa: S314 - made here
    return ["".join(one.itertext()).strip() for one in root.iter(f"{SVG}text")]


def test_a_card_has_the_speedup_both_rates_each_change_and_where_it_was_measured() -> None:
    """In words and figures that the report and the terminal use."""
    written = texts(full_result())
    for told in (
        "digits", "NVIDIA GeForce RTX 4070, 2 CPUs, 2026-11-20", "2.50× confirmed speed-up",
        "95 % interval 2.40 – 2.60, 5 interleaved pairs", "998 samples/s", "2,500 samples/s", "3.00 GiB → 3.00 GiB",
        "precision", "fp32 → bf16", "1.60× (1.50 – 1.70)", "autotune 0.1.0 · torch 2.13.0 · numerics: agrees",
    ):  # fmt: skip
        assert told in written


def test_a_card_says_that_other_load_was_there() -> None:
    """It is shown where the result is not."""
    assert "measured while other load took 46 % of the CPUs" in " ".join(texts(beside_other_load(0.46)))


def test_a_card_without_a_gain_says_so_and_claims_nothing() -> None:
    """The reason stands in the place of the figure, and one rate is enough."""
    nothing = make_result(speedup=None, speedup_reason="nothing was faster than the baseline", ablation=())
    written = texts(nothing.model_copy(update={"best": nothing.baseline}))
    assert "no confirmed speed-up" in written
    assert "nothing was faster than the baseline" in written
    assert not any("×" in text or "→" in text or text == "changed" for text in written)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": HOSTILE * 9},
        {"status": "partial", "stopped_by": "interrupted"},
        {"speedup": None, "speedup_reason": "word " * 500},
        {"name": "模型 $x$ \x1b[31m"},
    ],
    ids=["markup", "partial", "a long reason", "other scripts and control characters"],
)
def test_any_result_has_a_card(changes: dict[str, Any]) -> None:
    """Names do not steer the picture, nor make it endless."""
    result = make_result(**changes)
    root = ET.fromstring(card(result, "svg"))  # noqa: S314 - made here
    assert not list(root.iter(f"{SVG}script"))
    width, height = (float(root.attrib[side].removesuffix("pt")) for side in ("width", "height"))
    assert width == WIDTH
    assert height < 700


def test_a_side_that_was_not_measured_leaves_its_place_empty() -> None:
    """A partial result may have none."""
    result = make_result()
    result = result.model_copy(update={"best": result.best.model_copy(update={"measurement": None})})
    assert "998 samples/s" in texts(result)


def test_a_tuned_rate_that_stands_alone_is_none_as_it_is() -> None:
    """As where the baseline runs out of memory."""
    result = make_result()
    written = texts(result.model_copy(update={"baseline": result.baseline.model_copy(update={"measurement": None})}))
    assert "after" in written
    assert "as it is" not in written
    assert "as it is" in texts(result.model_copy(update={"best": result.baseline}))


def test_the_command_writes_both_kinds_or_the_one_that_is_named(tmp_path: Path) -> None:
    """The PNG has two pixels for one of the SVG's."""
    write_document(make_result(), tmp_path / "result.json")
    done = run_inside(["card", "result.json"], tmp_path)
    assert (done.status, done.out.split()) == (0, ["result.svg", "result.png"])
    png = (tmp_path / "result.png").read_bytes()
    assert (png[:8], struct.unpack(">I", png[16:20])[0]) == (b"\x89PNG\r\n\x1a\n", 2 * WIDTH)
    assert run_inside(["card", "result.json", "--png", "card.png"], tmp_path).out.split() == ["card.png"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "tmp") == [
        "card.png", "result.json", "result.png", "result.svg",
    ]  # fmt: skip
