"""What is drawn: the steps of the waterfall, memory, the marks; and that pictures keep no state."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autotune.measuring.statistics import Interval
from autotune.report import render_report
from autotune.report.charts import Bar, rates_picture, waterfall_steps
from autotune.report.drawing import SMALL, compact, draw, inline, log_steps, shortened
from autotune.report.scatters import from_zero, memory_picture, thinned
from tests.factories import GIB, make_gpu, make_hardware, make_result
from tests.report.pages import Page
from tests.report.samples import full_result, trial

ROOT = Path(__file__).parents[2]

STYLE = Path(__file__).parents[2] / "autotune" / "report" / "style.css"


def test_waterfall_leads_from_the_baseline_to_the_confirmed_speedup() -> None:
    """The factors multiply; what is missing at the end is a step of its own; the last bar is the whole."""
    steps = waterfall_steps(full_result())
    assert [step.label for step in steps] == ["precision", "compile_mode", "together, beyond alone", "all changes"]
    reached = 1.0
    for step in steps[:-1]:
        assert step.start == pytest.approx(reached)
        reached *= step.ratio
    assert reached == pytest.approx(2.5)
    assert (steps[-1].start, steps[-1].ratio) == (1.0, 2.5)


def test_waterfall_without_a_speedup_claims_no_whole() -> None:
    """Only what was measured is drawn."""
    assert [step.label for step in waterfall_steps(full_result(speedup=None))] == ["precision", "compile_mode"]


def test_memory_target_of_a_cpu_is_the_files_own() -> None:
    """What the machine had free when it was tuned."""
    constraints = make_result().constraints.model_copy(update={"memory_limit_bytes": 5 * GIB})
    page = Page(render_report(make_result(constraints=constraints, trials=(trial(),))))
    assert "of the host memory that is free, is 5.00 GiB." in page.text


def test_memory_target_of_a_gpu_that_was_not_read_is_not_known() -> None:
    """No target is made up from the host's memory; what ran out of memory stays known."""
    page = Page(render_report(full_result(hardware=make_hardware(make_gpu(memory_total_bytes=None)))))
    assert "could not be read, so there is no target." in page.text
    assert "512 1 not measured 1" in page.text


def test_every_picture_names_its_rows_and_figures() -> None:
    """Letters stay letters, in the page's own font; a mark without an interval has no error bar."""
    bars = [Bar("before", 1000.0, Interval(990, 1010), "#0a0b04"), Bar("after", 2000.0, Interval(0, 0), "#0a0b05")]
    svg = rates_picture(bars, "rates")
    assert svg is not None
    assert {"before", "after", "1,000 samples/s", "2,000 samples/s"} <= set(
        re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    )
    without = rates_picture([bar._replace(interval=Interval(0, 0)) for bar in bars], "rates")
    assert without is not None
    assert svg.count("<use") > without.count("<use")


@pytest.mark.parametrize("top", [7547.0, 7548.0, 7700.0, 7900.0, 8000.0])
def test_no_number_beside_an_axis_is_cut_off_by_the_upper_edge(top: float) -> None:
    """Half its height has room above its middle, wherever the highest rate lies; a round number well below stays."""
    svg = draw("edge", 250.0, lambda axes: from_zero(axes, top))
    found = re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>([^<]+)', svg)
    heights = {words: float(height) for height, words in found}
    assert "6k" in heights
    assert min(heights.values()) > SMALL  # the base line of the letters


def test_drawing_leaves_matplotlibs_settings_alone() -> None:
    """A script that draws for itself is not disturbed, and its own style does not reach the report."""
    import matplotlib as mpl

    bars = [Bar("before", 1000.0, Interval(0, 0), "#0a0b04")]
    plain = rates_picture(bars, "rates")
    with mpl.rc_context({"font.size": 30, "text.usetex": True}):
        before = dict(mpl.rcParams)
        assert rates_picture(bars, "rates") == plain
        assert dict(mpl.rcParams) == before


def test_threads_that_draw_at_once_leave_matplotlibs_settings_alone() -> None:
    """The second one would begin while the first one draws, and end after it."""
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    second = threading.Thread(target=draw, args=("second", 250, lambda _: first.join()))

    def paint(_: object) -> None:
        second.start()
        second.join(0.2)

    first = threading.Thread(target=draw, args=("first", 250, paint))
    first.start()
    first.join()
    second.join()
    assert dict(mpl.rcParams) == before


DRAW = "draw('a', 250, lambda axes: axes.text(0, 0, 'a'))"


@pytest.mark.parametrize(
    "drawing",
    [
        DRAW,
        f"from threading import Thread; threads = [Thread(target=lambda: {DRAW}) for _ in range(3)]; "
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]",
    ],
    ids=["one thread", "several threads"],
)
def test_drawing_writes_nothing_into_a_home_and_leaves_matplotlib_with_it(drawing: str, tmp_path: Path) -> None:
    """Matplotlib would make folders there, and a list of fonts; a script that draws later finds its own settings.

    Wrong lines of these settings are not reported, since no picture uses them.
    """
    config = tmp_path / ".config" / "matplotlib"
    (config / "stylelib").mkdir(parents=True)
    (config / "matplotlibrc").write_text("lines.linewidth: 7\nbackend: none of them")
    (config / "stylelib" / "mine.mplstyle").write_text("lines.linewidth: 8\nno.such.key: 3")
    before = sorted(tmp_path.rglob("*"))
    code = (
        f"from autotune.report.drawing import draw; {drawing}\n"
        "import os, pathlib\n"
        "print(os.environ.get('MPLCONFIGDIR'), sorted(map(str, pathlib.Path.home().rglob('*'))))\n"
        "import matplotlib as mpl, matplotlib.style; print(mpl.rcParams['lines.linewidth'], mpl.get_configdir(), "
        "'mine' in mpl.style.available)"
    )
    kept = {name: value for name, value in os.environ.items() if name not in {"MPLCONFIGDIR", "MATPLOTLIBRC"}}
    kept = {name: value for name, value in kept.items() if not name.startswith("XDG_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**kept, "HOME": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [f"None {[*map(str, before)]}", f"7.0 {config} True"], done.stderr
    assert done.stderr == ""


def test_drawing_needs_no_temporary_folder(tmp_path: Path) -> None:
    """Matplotlib has folders of its own."""
    code = f"import tempfile; tempfile.tempdir = '/none'; from autotune.report.drawing import draw; {DRAW}"
    own = {**os.environ, "MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=own, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_ids_of_a_stand_alone_file_do_not_meet_on_the_page() -> None:
    """What nothing refers to loses its id; the rest is told apart by the picture's name."""
    svg = '<svg a="b"><g id="figure_1"><path id="m1"/><use href="#m1" style="fill: #0a0b02"/></g></svg>'
    assert inline(svg, 10, 5) == (
        '<svg viewBox="0 0 10 5" focusable="false">\n'
        '<g><path id="m1"/><use href="#m1" style="fill: var(--muted)"/></g>\n</svg>'
    )


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.9), (0.9, 3.5), (1, 50), (3, 80_000), (1e-3, 1e9)])
def test_logarithmic_axes_have_a_few_numbers_within_their_range(low: float, high: float) -> None:
    """Enough to read from, and not so many that they run into each other."""
    ticks = log_steps(low, high)
    assert 2 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick in ticks)
    assert ticks == sorted(ticks)


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (0.5, "0.5"), (850, "850"), (1200, "1.2k"), (3e6, "3M")])
def test_numbers_beside_an_axis_are_short(number: float, text: str) -> None:
    """There is little room on a phone."""
    assert compact(number) == text


def test_long_labels_are_cut_where_it_shows() -> None:
    """With an ellipsis; short ones stay."""
    assert shortened("precision", 9) == "precision"
    assert shortened("a_long_argument", 9) == "a_long_a…"


def test_many_marks_are_thinned_evenly() -> None:
    """Every n-th, from the first on; few stay as they are."""
    assert thinned([1, 2, 3], 3) == [1, 2, 3]
    assert thinned(range(10), 3) == [0, 4, 8]
    assert thinned([], 3) == []


def luminance(colour: str) -> float:
    """The relative luminance of a colour, as WCAG 2 defines it."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return math.fsum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_stand_out_from_the_page(scheme: str) -> None:
    """Letters by 4.5 to 1 and marks by 3 to 1, as WCAG asks, on both backgrounds."""
    light, _, dark = STYLE.read_text(encoding="utf-8").partition("prefers-color-scheme: dark")
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light if scheme == "light" else dark))
    for name in ("ink", "muted", "accent", "good", "failed", "target", "before", "after", "part"):
        for ground in ("surface", "raised"):
            first, second = sorted((luminance(colours[name]), luminance(colours[ground])), reverse=True)
            least = 3.0 if name in {"before", "after", "part"} else 4.5
            assert (first + 0.05) / (second + 0.05) >= least, f"{name} on {ground}"


def test_batches_between_two_powers_of_two_are_named_themselves() -> None:
    """There is no batch of 4.8 samples."""
    svg = memory_picture([(3, 800_000_000), (6, 900_000_000)], [], None)
    assert svg is not None
    words = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"3", "6"} <= set(words)
    assert "4.8" not in words
