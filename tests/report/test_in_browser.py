"""The pages in a real browser: nothing is loaded, nothing complains, nothing sticks out, and the keyboard suffices."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.report import render_report
from autotune.report.comparison import render_comparison
from autotune.results.files import parse_document
from autotune.results.result import Result, read_result
from tests.crosses import compared, make_cross, on_gpu
from tests.factories import make_result
from tests.report.samples import HOSTILE, full_result

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")]
ARGUMENTS = [
    "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-quic", *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
]  # fmt: skip
RESULTS = Path(__file__).parents[2] / "results"
PAGES = ("hostile", "plain", "real", "comparison")
FOCUSABLE = """() => [...document.querySelectorAll('a[href], summary, input, [tabindex="0"]')]
    .filter(one => one.checkVisibility()).length"""
FOCUSED = """() => {
    const one = document.activeElement;
    return [...document.querySelectorAll('*')].indexOf(one) + ' ' + getComputedStyle(one).outlineStyle;
}"""
CROPPED = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
    const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')].filter(text => {
        const box = text.getBoundingClientRect();
        return box.left < 0 || box.right > innerWidth || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    }).map(text => text.textContent);
})"""
COVERED = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
    const found = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    return found.flatMap(([words, a], i) => found.slice(i + 1).filter(([, b]) =>
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1
    ).map(([others]) => words + ' / ' + others));
})"""


FAINT = """() => {
    const parts = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = colour => parts(colour).slice(0, 3).map(c => c / 255)
        .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
    const ground = one => {
        for (; one; one = one.parentElement) {
            const colour = getComputedStyle(one).backgroundColor;
            if ((parts(colour)[3] ?? 1) > 0) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    return [...document.querySelectorAll('body *')].filter(one => one.checkVisibility() &&
        [...one.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim())
    ).flatMap(one => {
        const style = getComputedStyle(one), size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
        const [a, b] = [light(one.closest('svg') ? style.fill : style.color), light(ground(one))];
        const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        return contrast < (large ? 3 : 4.5) ? [one.textContent + ' ' + contrast.toFixed(2)] : [];
    });
}"""
NAMELESS = """() => [...document.querySelectorAll('html, a, summary, section, nav, label, [role]')].filter(one => {
    const by = document.getElementById(one.getAttribute('aria-labelledby'));
    return !(one.lang || one.ariaLabel || (by ?? one).textContent.trim());
}).map(one => one.outerHTML.slice(0, 80))"""
SMALL = """() => [...document.querySelectorAll('a, summary, label')].filter(one => {
    const box = one.getBoundingClientRect();
    return box.width < 24 || box.height < 24;
}).map(one => one.textContent)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests, driven from outside."""
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as files, as a person opens them."""
    place = tmp_path_factory.mktemp("pages")
    real = min(RESULTS.glob("*/*.json"))
    pages = {
        "hostile": render_report(full_result(name=HOSTILE, target=HOSTILE), Path("results/rtx-4070/train-build.json")),
        "plain": render_report(make_result(status="partial", speedup=None)),
        "real": render_report(read_result(real), real.relative_to(RESULTS.parent)),
        "comparison": render_comparison(compared(on_gpu(), make_result(), crosses=[make_cross()], warnings=[HOSTILE])),
    }
    for name, html in pages.items():
        (place / f"{name}.html").write_text(html, encoding="utf-8")
    return place


def opened(
    browser: Browser, path: Path, *, width: int = 1280, height: int = 800, scheme: Any = "light"
) -> tuple[Page, list[str]]:
    """A page in a window of its own, and what it did that it should not have."""
    page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height}).new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: faults.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    return page, faults


def unfold(page: Page) -> None:
    """Opens all that is folded."""
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_loaded_nothing_complains_and_nothing_sticks_out(
    browser: Browser, folder: Path, name: str, width: int, scheme: str
) -> None:
    """On a phone and on a desk, by day and by night, folded and unfolded."""
    page, faults = opened(browser, folder / f"{name}.html", width=width, scheme=scheme)
    for _ in range(2):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        unfold(page)
    assert faults == []
    page.context.close()


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_words_in_pictures_are_whole_legible_and_apart(browser: Browser, folder: Path, name: str, width: int) -> None:
    """No label is cut off, lies on another, or is smaller than 10 pixels."""
    page, _ = opened(browser, folder / f"{name}.html", width=width)
    assert page.evaluate(CROPPED) == []
    assert page.evaluate(COVERED) == []
    heights = page.evaluate("[...document.querySelectorAll('svg text')].map(one => one.getBoundingClientRect().height)")
    assert min(heights) >= 10
    page.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_whatever_can_be_used_is_reached_by_the_keyboard_and_seen_to_be(
    browser: Browser, folder: Path, name: str
) -> None:
    """Tab goes through every link, fold and scrolled region, each with an outline, and comes to the end."""
    page, _ = opened(browser, folder / f"{name}.html", width=360)
    unfold(page)
    count = page.evaluate(FOCUSABLE)
    seen = []
    for _ in range(count):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUSED))
    assert len(set(seen)) == count > 5
    assert all(one.endswith("solid") for one in seen)
    page.context.close()


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_the_first_screen_holds_the_answers(browser: Browser, folder: Path, width: int, height: int) -> None:
    """What was gained, whether it is safe, what to do next, and what is the limit: without scrolling."""
    page, _ = opened(browser, folder / "real.html", width=width, height=height)
    ends = page.evaluate("""() => [...document.querySelectorAll('.headline, .answers section')]
        .map(one => [one.id, one.getBoundingClientRect().bottom])""")
    assert [name for name, _ in ends] == ["", "safe", "next", "limit"]
    assert max(end for _, end in ends) <= height
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_all_words_stand_out_from_their_background(browser: Browser, folder: Path, name: str, scheme: str) -> None:
    """A contrast of 4.5, of 3 for large letters, on the screen and printed: level AA of WCAG 2.2."""
    page, _ = opened(browser, folder / f"{name}.html", scheme=scheme)
    unfold(page)
    for medium in ("screen", "print"):
        page.emulate_media(media=medium, color_scheme=scheme)
        assert page.evaluate(FAINT) == []
    page.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_everything_has_a_name_and_headings_follow_in_order(browser: Browser, folder: Path, name: str) -> None:
    """Links, folds, regions and pictures, as a screen reader reads them; and all that is touched is large enough."""
    page, _ = opened(browser, folder / f"{name}.html", width=390)
    unfold(page)
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(SMALL) == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(one => +one.tagName[1])")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    page.context.close()


def test_a_box_hides_its_machine_in_tables_pictures_and_sections(browser: Browser, folder: Path) -> None:
    """From the disk, without a script."""
    page, faults = opened(browser, folder / "comparison.html")
    unfold(page)
    shown = "[...document.querySelectorAll('.machine-1, main > section')].filter(one => one.checkVisibility()).length"
    before = page.evaluate(shown)
    page.get_by_role("checkbox", name="Intel").uncheck()
    hidden = page.locator(".machine-1")
    assert hidden.count() > 2
    assert not any(one.is_visible() for one in hidden.all())
    page.get_by_role("checkbox", name="NVIDIA").uncheck()
    assert not page.locator("#workload-1").is_visible()
    page.get_by_role("checkbox", name="Intel").check()
    page.get_by_role("checkbox", name="NVIDIA").check()
    assert page.evaluate(shown) == before
    assert faults == []
    page.context.close()


def test_folds_open_by_the_keyboard(browser: Browser, folder: Path) -> None:
    """Enter unfolds all bursts."""
    page, _ = opened(browser, folder / "hostile.html")
    fold = page.locator("details", has_text="All bursts").first
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.get_attribute("open") is not None
    assert page.get_by_text("failed: 12 GiB were wanted").is_visible()
    page.context.close()


def test_a_model_named_like_a_script_stays_text(browser: Browser, folder: Path) -> None:
    """It is read as it is written, and nothing of it runs."""
    page, faults = opened(browser, folder / "hostile.html")
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.title().startswith(HOSTILE)
    assert page.locator("script").count() == 0
    assert faults == []
    page.context.close()


def test_the_dark_page_is_dark_and_its_pictures_are_light(browser: Browser, folder: Path) -> None:
    """The scheme reaches the letters inside the pictures."""
    shades = {}
    for scheme in ("light", "dark"):
        page, _ = opened(browser, folder / "real.html", scheme=scheme)
        style = "getComputedStyle(document.querySelector('{}')).{}"
        colours = [page.evaluate(style.format(*one)) for one in (("body", "backgroundColor"), ("svg text", "fill"))]
        shades[scheme] = [sum(map(int, colour.strip("rgb()").split(","))) / 3 for colour in colours]
        page.context.close()
    (ground, letters), (dark_ground, light_letters) = shades["light"], shades["dark"]
    assert ground > 200
    assert letters < 100
    assert dark_ground < 60
    assert light_letters > 150


def test_raw_data_can_be_saved_from_the_page(browser: Browser, folder: Path, tmp_path: Path) -> None:
    """The file that comes is the result."""
    page, _ = opened(browser, folder / "hostile.html")
    with page.expect_download() as caught:
        page.get_by_role("link", name="Save train-build.json").click()
    caught.value.save_as(tmp_path / "saved.json")
    assert caught.value.suggested_filename == "train-build.json"
    saved = parse_document(json.loads((tmp_path / "saved.json").read_text(encoding="utf-8")), "saved.json", Result)
    assert saved == full_result(name=HOSTILE, target=HOSTILE)
    page.context.close()
