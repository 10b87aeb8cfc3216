"""The report of a result: what it says, that it is one file, escaped, light, and made of any result there is."""

from __future__ import annotations

import base64
import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import ResultFileError
from autotune.knobs.config import TrainConfig
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.report import render_report, write_report
from autotune.results.files import parse_document, write_document
from autotune.results.gather import gather
from autotune.results.result import Diagnosis, Result, Side, read_result
from tests.broken import json_values, leaves, with_value
from tests.factories import make_gpu, make_hardware, make_measurement, make_result
from tests.report.pages import Page
from tests.report.samples import HOSTILE, beside_other_load, full_result, trial

ROOT = Path(__file__).parents[2]
REAL = [Path(name) for name, _ in gather([ROOT / "results"]).results]
WHOLE = json.loads(full_result().model_dump_json(by_alias=True))


def shown(result: Result, source: Path | None = None) -> str:
    """What a reader sees of a page."""
    return Page(render_report(result, source)).text


@functools.cache
def full_html() -> str:
    """The page of the full result with all its pictures, which most tests only read."""
    return render_report(full_result())


@functools.cache
def full_page() -> Page:
    """The same, parsed."""
    return Page(full_html())


# What it says.


def test_headline_is_the_confirmed_ratio_with_its_interval() -> None:
    """The first figure on the page, with how sure it is and the rates behind it."""
    text = full_page().text
    headline = text[text.index("Headline") : text.index("Before and after", text.index("Headline"))]
    assert "2.50× confirmed speed-up 95 % interval 2.40 – 2.60, 5 interleaved pairs" in headline
    assert "→ 2,5" in headline


def test_headline_says_that_other_load_was_there() -> None:
    """As the terminal does: whoever reads the page alone would believe the gain more."""
    text = shown(beside_other_load(0.46))
    headline = text[text.index("Headline") : text.index("Before and after", text.index("Headline"))]
    assert "pairs; measured while other load took 46 % of the CPUs: the gain may be larger" in headline


def test_without_a_confirmed_gain_there_is_no_large_figure() -> None:
    """A ratio whose interval includes 1 is told, but not as the answer."""
    doubtful = full_result(speedup=Speedup(ratio=1.01, ci95=Interval(0.98, 1.04), pairs=4))
    html = render_report(doubtful)
    assert "no confirmed speed-up 1.010× (95 % interval 0.980 – 1.040" in Page(html).text
    assert 'class="figure"' not in html
    assert "no confirmed speed-up nothing was faster" in shown(
        full_result(speedup=None, speedup_reason="nothing was faster")
    )


@pytest.mark.parametrize(
    "words",
    [
        "effective batch 64 192",
        "memory_format",  # among all knobs, though it was not changed
        "compile_mode none default",
        "Compiling takes 40 s; break-even after about",
        "Before tuning, loading costs 29 % of the time, its share of the processors included: a faster loader gives at",
        "precision 1.60× 1.50 – 1.70",
        "Alone, the changes multiply to 2.00×. The remaining 1.25× is",
        "compute alone 2,600 samples/s 9",
        "copy alone not measured",
        "The target, 90 % of the device memory that is free, is 9.90 GiB.",
        "512 1 not measured 1",
        "The tuned side was ahead in 8 of 8 pairs of blocks; over all 2.50× (95 % interval 2.40 – 2.60, 5",
        "1.12× (1.080 – 1.16) over the best so far",
        "5 bursts, 1 of them failed; the best reached 2,500 samples/s.",
        "failed: 12 GiB were wanted",
        "disturbed: other load",
        "GPU: time with a kernel running 97 % 97 %",
        "power, mean 180.0 W 180.0 W",
        "bottleneck: compute (busy 96 % of the time)",
        "mind the cooling",
        "aten::mm 0.002 ms 0.002 ms",
        "decode data.py:7 0.9 ms",
        "numerics: agrees: as eager fp32",
        "cosine of the first step's gradients 0.99 0.95 passed",
        "NVIDIA GeForce RTX 4070",
        "autotune check",
        "stopped by: budget",
        "Knobs that were not searched: 1",
    ],
)
def test_page_says(words: str) -> None:
    """Each section has its figures in words, not in pictures alone."""
    assert words in full_page().text


def test_candidates_of_a_running_training_have_not_failed() -> None:
    """They have ratios, and no rates to draw."""
    live = trial(None, outcome="ok", failure=None, partner={}, ratio=1.12, ci95=Interval(1.08, 1.16))
    text = shown(full_result(trials=(live, live)))
    assert "2 bursts, 0 of them failed." in text
    assert "1.12× (1.080 – 1.16) over the baseline" in text


def test_usage_names_the_file_as_it_was_given() -> None:
    """The lines can be copied."""
    text = shown(full_result(), Path("results/my machine/train-build.json"))
    assert 'tuned = autotune.load("results/my machine/train-build.json")' in text
    assert "autotune check 'results/my machine/train-build.json'" in text


def test_what_to_do_next_follows_from_the_proof() -> None:
    """Train with a proven gain; without one train as before, or give the search more time where that can help."""
    assert "What to do next Train with this result: Python that trains" in full_page().text
    doubtful = {"speedup": Speedup(ratio=1.01, ci95=Interval(0.98, 1.04), pairs=4)}
    assert "no gain is proven. To try more, repeat" in shown(full_result(**doubtful))
    assert "To try more" not in shown(full_result(**doubtful, stopped_by="exhausted"))


def test_a_training_is_continued_by_another_training() -> None:
    """`autotune train` takes no budget, and resumes nothing."""
    constraints = make_result().constraints.model_copy(update={"sampler": "none"})
    text = shown(full_result(speedup=None, constraints=constraints, status="partial", stopped_by="interrupted"))
    assert "repeat your command: its search begins anew" in text
    assert "--resume" not in text


def test_the_advice_to_search_longer_leaves_out_no_option() -> None:
    """A result does not hold all options of its command, so it prints what to add and no command to copy."""
    doubtful = {"speedup": Speedup(ratio=1.01, ci95=Interval(0.98, 1.04), pairs=4)}
    text = shown(full_result(**doubtful))
    assert "repeat your command with all its options, but with --budget" in text
    assert "autotune --model" not in text


def test_partial_result_says_so_before_the_headline() -> None:
    """Nobody takes an interrupted tuning for a finished one."""
    text = shown(full_result(status="partial", stopped_by="interrupted"))
    assert text.index("PARTIAL: tuning was interrupted") < text.index("Headline")


LIVE = "training that is tuned while it runs does not measure this."


def test_the_page_of_a_training_says_that_it_does_not_measure_what_a_tuning_does() -> None:
    """It lacks no time, and has no budget."""
    constraints = full_result().constraints.model_copy(update={"sampler": "none"})
    text = shown(full_result(constraints=constraints, ablation=(), diagnosis=Diagnosis(data_wait_fraction=None)))
    assert f"A {LIVE}" in text
    assert f"No part of the training was measured alone: a {LIVE}" in text
    assert f"No profile was taken: a {LIVE}" in text
    assert "torch 2.13.0, stopped by: budget" in text


def test_the_page_of_a_gain_in_energy_calls_no_joules_speed() -> None:
    """What was maximised has its own name, and the picture of rates its own figures."""
    constraints = full_result().constraints.model_copy(update={"objective": "samples_per_joule"})
    sides = {
        name: side.model_copy(
            update={"measurement": make_measurement(rate).model_copy(update={"block_joules": (10.0,) * 8})}
        )
        for name, side, rate in (("baseline", full_result().baseline, 1000), ("best", full_result().best, 2500))
    }
    text = shown(full_result(constraints=constraints, **sides))
    assert "the answer's samples per joule over its samples per joule with one knob as before" in text
    assert re.search(r"Rate before: [\d,.]+ samples/s; after: [\d,.]+ samples/s\.", text)
    assert not re.search("fastest|speed without", text)


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        (
            {
                "ablation": (),
                "trials": (),
                "diagnosis": make_result().diagnosis.model_copy(update={"ceilings": {}}),
                "numerics": None,
            },
            (
                "The search tried too little to estimate what each change is worth.",
                "No burst in this file tells how much memory it took.",
                "This file does not say which bursts were run.",
                "No part of the training was measured alone: no time was left, or it failed.",
                "No profile was taken: no time was left, or it failed.",
                "This file does not say.",
            ),
        ),
        ({"ablation": (), "best": full_result().baseline}, ("No knob was changed, so there is nothing to revert.",)),
        (
            {
                "baseline": Side(config=TrainConfig(), measurement=None),
                "best": Side(config=TrainConfig(), measurement=None),
            },
            ("Neither side was measured, so there is no rate to show.",),
        ),
    ],
    ids=["nothing was tried", "nothing was changed", "nothing was measured"],
)
def test_section_without_data_says_why(changes: dict[str, Any], reasons: tuple[str, ...]) -> None:
    """There is no empty picture."""
    page = shown(full_result(**changes))
    assert [reason for reason in reasons if reason not in page] == []


@pytest.mark.parametrize("blocks", [(), (4, 5), (8, 0)], ids=["none", "too many", "an empty round"])
def test_without_pairs_of_blocks_there_is_no_section_on_them(blocks: tuple[int, ...]) -> None:
    """Whole bursts alternated, or the file contradicts itself."""
    text = shown(full_result(speedup=Speedup(ratio=2.5, ci95=Interval(2.4, 2.6), pairs=5, blocks=blocks)))
    assert "pair by pair" not in text


# That it can be trusted.


@pytest.mark.parametrize("hostile", [HOSTILE, """--><img src=x onerror=alert(1)> " onload="alert(1) ]]>&lt;x $a$"""])
def test_what_users_write_stays_text(hostile: str) -> None:
    """In the title, in tables, in pictures and in the raw data: shown as it is written, and nothing of it is a tag."""
    result = full_result(
        name=hostile,
        target=hostile,
        best=Side(config=TrainConfig(), parameters={hostile: hostile}, measurement=make_measurement(2000)),
        ablation=tuple(row.model_copy(update={"knob": hostile}) for row in full_result().ablation),
        trials=(trial(1000, stage=hostile, reason=hostile, disturbance=hostile), trial(None, failure=hostile)),
        diagnosis=full_result().diagnosis.model_copy(update={"advice": (hostile,)}),
    )
    page = Page(render_report(result, Path(f"{hostile.replace('/', '')}.json")))
    harmless = full_page()
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in harmless.tags}
    assert {name for _, attributes in page.tags for name in attributes} <= {
        name for _, attributes in harmless.tags for name in attributes
    }
    assert page.text.count(hostile) >= 8
    assert page.problems == []


def test_control_characters_are_spelled_out() -> None:
    """A name cannot turn the direction of what follows, nor break the file's encoding."""
    text = render_report(make_result(name="a\x1b[2J\u202eb", speedup=None, speedup_reason="\x00"))
    assert r"a\x1b[2J\u202eb" in text
    assert not {"\x1b", "\u202e", "\x00"} & set(text)


def test_page_is_one_file_that_loads_nothing() -> None:
    """No script, no address but its own sections and the data that it carries."""
    page = full_page()
    assert page.of("script") == []
    links = page.attributes("href") + page.attributes("src") + page.attributes("xlink:href")
    assert all(link.startswith(("#", "data:")) for link in links)
    policy = next(one["content"] for one in page.of("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "@import" not in full_html()
    assert "url(http" not in full_html()


@pytest.mark.parametrize("make", [full_page, lambda: Page(render_report(make_result()))], ids=["full", "plain"])
def test_page_is_well_made(make: Callable[[], Page]) -> None:
    """Tags are closed, ids are unique and found, tables have captions, pictures have words."""
    page = make()
    assert page.problems == []
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    targets = [link[1:] for link in page.attributes("href") + page.attributes("xlink:href") if link.startswith("#")]
    assert set(targets) | set(page.attributes("aria-labelledby")) <= set(ids)
    assert len(page.of("caption")) == len(page.of("table")) > 0
    assert all(cell.get("scope") in {"row", "col"} for cell in page.of("th"))
    pictures = [one for one in page.of("div") if one.get("role") == "img"]
    assert len(pictures) == len(page.of("svg"))
    assert all(picture["aria-label"] for picture in pictures)


def test_pictures_take_their_colours_from_the_page() -> None:
    """In the dark they are light: no colour of theirs is fixed, and each variable is one that the page sets."""
    html = full_html()
    start, style = html.index("<main"), html[: html.index("</style>")]
    svg = html[start:].split("<svg")
    used = {name.split(")")[0] for part in svg[1:] for name in part.split("</svg>")[0].split("var(")[1:]}
    assert used
    assert all(f"{name}:" in style for name in used)
    colours = [
        colour for part in svg[1:] for colour in re.findall(r"(?:fill|stroke): ([^;\"]+)", part.split("</svg>")[0])
    ]
    assert all(colour == "none" or colour.startswith("var(--") for colour in colours)


def test_same_result_gives_the_same_bytes() -> None:
    """A page kept in version control changes when its result does."""
    assert render_report(full_result()) == full_html()


# The raw data, and the page's weight.


def attached(page: Page) -> list[str]:
    """What can be saved from a page."""
    uris = [one["href"] or "" for one in page.of("a") if "download" in one]
    return [base64.b64decode(uri.partition("base64,")[2]).decode() for uri in uris]


def test_raw_data_can_be_saved() -> None:
    """The page alone is enough to go on with."""
    page = Page(render_report(full_result(), Path("results/rtx-4070/train-build.json")))
    (text,) = attached(page)
    assert parse_document(json.loads(text), "the page", Result) == full_result()
    assert "train-build.json" in page.attributes("download")


def test_page_tells_its_weight() -> None:
    """In its last line, and truly."""
    html = full_html()
    told = float(html.partition("One file of ")[2].split(" KiB")[0])
    assert told == pytest.approx(len(html.encode()) / 1024, rel=0.01)


# Any result.


def test_report_lies_beside_its_result(tmp_path: Path) -> None:
    """The same name with another ending, and nothing else."""
    path = tmp_path / "train-build.json"
    write_document(full_result(), path)
    place = write_report(full_result(), path)
    assert place == tmp_path / "train-build.html"
    assert place.read_text(encoding="utf-8") == render_report(full_result(), path)
    assert sorted(tmp_path.iterdir()) == [place, path]


def test_report_that_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """One sentence with the place."""
    (tmp_path / "train-build.html").mkdir()
    with pytest.raises(ResultFileError, match=r"could not be written to .*train-build\.html"):
        write_report(make_result(), tmp_path / "train-build.json")
    assert [one.name for one in tmp_path.iterdir()] == ["train-build.html"]


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.slow if path != REAL[-1] else (), id=path.stem) for path in REAL]
)
def test_every_result_that_is_kept_has_a_page(path: Path) -> None:
    """Real measurements, of whatever version of autotune."""
    page = Page(render_report(read_result(path), path.relative_to(ROOT)))
    assert page.problems == []
    assert len(page.of("svg")) >= 3


@pytest.mark.parametrize("missing", ["baseline", "best"])
def test_result_without_a_measurement_of_one_side_has_a_page(missing: str) -> None:
    """What was not measured is not 0."""
    text = shown(full_result(**{missing: Side(config=TrainConfig(), measurement=None)}, speedup=None))
    assert "not measured" in text


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from([path for path in leaves(WHOLE) if path]), value=json_values)
def test_whatever_can_be_read_has_a_page(path: tuple[Any, ...], value: Any) -> None:
    """One field of a file is broken: it cannot be read, or the page is made all the same."""
    try:
        result = parse_document(with_value(WHOLE, path, value), "broken.json", Result)
    except ResultFileError:
        return
    assert Page(render_report(result)).problems == []


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rates=st.lists(st.none() | st.floats(1e-6, 1e9), max_size=12),
    sizes=st.lists(st.none() | st.integers(1, 2**45), min_size=12, max_size=12),
    batches=st.lists(st.integers(1, 2**20), min_size=12, max_size=12),
    on_gpu=st.booleans(),
)
def test_any_course_of_a_search_has_a_page(
    rates: list[float | None], sizes: list[int | None], batches: list[int], on_gpu: bool
) -> None:
    """Failures, unread memory, batches and rates of every order of magnitude."""
    trials = tuple(
        trial(rate, None, memory_bytes=size, changes={"batch_size": batch})
        for rate, size, batch in zip(rates, sizes, batches, strict=False)
    )
    hardware = make_hardware(make_gpu() if on_gpu else None)
    constraints = make_result().constraints.model_copy(update={"device": "cuda" if on_gpu else "cpu"})
    page = Page(render_report(make_result(trials=trials, hardware=hardware, constraints=constraints)))
    assert page.problems == []


def test_importing_the_command_imports_no_matplotlib() -> None:
    """Drawing is paid for by who wants a report."""
    code = "import sys, autotune.cli, autotune.report; print([m for m in ('matplotlib', 'jinja2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_text_that_is_no_unicode_is_spelled_out(tmp_path: Path) -> None:
    """JSON can hold half a character, which no file can."""
    result = full_result(trials=(trial(1000, changes={"max_len": "\ud800"}),))
    html = write_report(result, tmp_path / "a.json").read_text(encoding="utf-8")
    assert r"max_len=\ud800" in html


def test_pictures_hold_no_control_characters() -> None:
    """A knob, a part or a machine can be called anything; in SVG such a character ends the page's XML."""
    odd = "a\x00b\x1b[2J\x07\x85\u202e"
    result = full_result()
    diagnosis = result.diagnosis.model_copy(update={"ceilings": {odd: 1000.0}})
    ablation = tuple(row.model_copy(update={"knob": odd}) for row in result.ablation)
    page = render_report(result.model_copy(update={"diagnosis": diagnosis, "ablation": ablation}))
    assert r"a\x00b\x1b[2J" in page
    assert [char for char in page if not char.isprintable() and char not in "\n\t"] == []
