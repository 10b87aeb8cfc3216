"""The page of several machines."""

from __future__ import annotations

import base64

from autotune.knobs.config import TrainConfig
from autotune.report.comparison import render_comparison
from autotune.results.compare import Comparison
from autotune.results.result import Side
from tests.crosses import compared, make_cross, on_gpu
from tests.factories import make_measurement, make_result
from tests.report.pages import Page
from tests.report.samples import HOSTILE


def shown(comparison: Comparison) -> str:
    """What a reader sees of a page."""
    return Page(render_comparison(comparison)).text


def test_each_machine_stands_with_its_rates_and_spread() -> None:
    """Before and after with their intervals, the speed-up, memory, and when it was measured."""
    text = shown(compared(on_gpu(), make_result(speedup=None, status="partial")))
    assert "1 workload on 2 machines" in text
    assert "1.50× 1.47 – 1.53" in text
    assert "not confirmed" in text
    assert "3.00 GiB device" in text
    assert "2026-11-20 torch 2.13.0 partial 1.json" in text


def test_shared_and_particular_knobs_are_told_apart() -> None:
    """What all machines agree on, and what differs."""
    fast = Side(config=TrainConfig(precision="bf16", num_workers=4), measurement=make_measurement(2000))
    slow = Side(config=TrainConfig(precision="bf16", num_workers=2), measurement=make_measurement(1000))
    text = shown(compared(on_gpu(best=fast), make_result(best=slow)))
    assert "shared by both machines: " in text
    assert "precision=bf16" in text.split("shared by both machines: ")[1].split(".")[0]
    assert "num_workers 4 on NVIDIA GeForce RTX 4070, 2 CPUs; 2 on Intel" in text


def test_what_a_config_does_elsewhere_is_told_with_its_notes() -> None:
    """The loss, against what, and the warnings."""
    cross = make_cross(notes=("the model has changed",))
    text = shown(compared(on_gpu(), make_result(), crosses=[cross]))
    assert f"{cross.machine} {cross.finding}" in text
    assert "warning: the model has changed" in text


def test_warnings_and_what_was_left_out_have_their_sections() -> None:
    """Nothing is hidden because it is inconvenient."""
    text = shown(compared(make_result(), warnings=["mind this"], problems=["x.json is broken"]))
    assert "Warnings mind this" in text
    assert "Left out x.json is broken" in text


def test_comparison_of_nothing_is_a_sentence() -> None:
    """No empty page."""
    assert "No results to compare." in shown(Comparison(groups=()))


def test_page_carries_the_comparison_itself() -> None:
    """As `--format json` prints it."""
    comparison = compared(on_gpu(), make_result())
    page = Page(render_comparison(comparison))
    (uri,) = [one["href"] or "" for one in page.of("a") if "download" in one]
    assert Comparison.model_validate_json(base64.b64decode(uri.partition("base64,")[2])) == comparison


def test_names_stay_text_and_the_page_is_well_made() -> None:
    """A machine or a workload can be called anything."""
    results = [on_gpu(name=HOSTILE), make_result(name=HOSTILE, fingerprint="f2")]
    page = Page(render_comparison(compared(*results)))
    assert page.problems == []
    assert page.of("script") == []
    assert HOSTILE in page.text
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))


def test_samples_per_joule_and_dollar_have_pictures_where_they_are_known() -> None:
    """A picture of rates always; of the others only where a machine has them."""
    priced = render_comparison(compared(on_gpu(dollars_per_hour=2.0), make_result()))
    assert "Samples per dollar: NVIDIA GeForce RTX 4070, 2 CPUs: " in Page(priced).text
    assert len(Page(priced).of("svg")) == 2
    assert len(Page(render_comparison(compared(on_gpu(), make_result()))).of("svg")) == 1


def test_each_machine_and_each_workload_has_a_box() -> None:
    """Whatever can be hidden has the key of a box; a single machine needs none."""
    page = Page(render_comparison(compared(on_gpu(), make_result(fingerprint="f2"), make_result())))
    boxes = [one["id"] for one in page.of("input")]
    assert boxes == ["show-machine-1", "show-machine-2", "show-workload-1", "show-workload-2"]
    classes = set(page.attributes("class"))
    assert {"machine-1", "machine-2", "workload-1", "workload-2"} <= classes
    assert Page(render_comparison(compared(make_result()))).of("input") == []
