"""The pages in a real browser: read at two widths, and judged by keyboard without a server."""

import json
import shutil
from pathlib import Path

import pytest
from page_examples import FAINT, write_pages
from PIL import Image

from repair_hf.analysis.pages import data_uri
from repair_hf.analysis.people.judgements import CRITERIA, read_judgements
from repair_hf.analysis.people.page import judging_page

playwright = pytest.importorskip("playwright.sync_api", reason="drives a browser by Playwright: make test-page")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)

PATIENCE = 60_000  # milliseconds: a first start on a busy machine takes long
CUT = """[...document.querySelectorAll(".scroll")].filter(
  table => table.scrollWidth > table.clientWidth).map(table => table.innerText)"""
LINES = """[...document.querySelectorAll(".cells")].map(
  cells => new Set([...cells.children].map(cell => cell.getBoundingClientRect().top)).size)"""
EVIL = [
    '<script>document.title = "broken in"</script>',
    "<img src=x onerror=\"document.title = 'broken in'\">",
    "${document.title = 'broken in'} {{document.title = 'broken in'}}",
]
DOT = data_uri(Image.new("RGB", (40, 30), "#cc2200"))


def sheet(path: Path, task: str, count: int) -> str:
    """Write a page whose first captions try to break in; return its address."""
    roles = ("q", "gt", "fp") + (("edit",) if task == "edits" else ())
    items = []
    for number in range(count):
        caption = EVIL[number] if number < len(EVIL) else f"caption number {number}"
        cells = {role: {"text": caption} for role in roles} | {"q": {"picture": "p"}}
        items.append({"item": f"item-{number}", "cells": cells})
    path.write_text(judging_page(task, items, {"p": DOT}))
    return path.as_uri()


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def window(chromium):
    """A browser with a storage of its own; nothing may be requested from elsewhere."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    requests = []
    context.on("request", lambda request: requests.append(request.url))
    yield context
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)
    context.close()


def begin(window, url: str, name: str, *, item: int):
    page = window.new_page()
    page.goto(url)
    page.locator("#name").fill(name)
    page.locator("#start").click()
    wait_for_item(page, item)
    return page


def wait_for_item(page, number: int) -> None:
    page.wait_for_selector(f"#item[data-item='item-{number}']")


def press(page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def save(page, folder: Path) -> Path:
    with page.expect_download() as download:
        page.locator("#save").click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_twenty_failures_with_the_page_closed_half_way(window, tmp_path):
    url = sheet(tmp_path / "qc.html", "qc", 20)
    page = begin(window, url, "Ann Ä.", item=0)
    press(page, *("123"[number % 3] for number in range(11)))
    page.close()
    page = begin(window, url, "Ann Ä.", item=11)
    press(page, *("123"[number % 3] for number in range(11, 20)))
    page.wait_for_selector("text=20 of 20 judged. Thank you. Save the file.")
    path = save(page, tmp_path)
    assert path.name == "qc-Ann_Ä_.json"
    rows = read_judgements([path])["qc"]
    assert set(rows["annotator"]) == {"Ann Ä."} and rows["item"].tolist() == [f"item-{k}" for k in range(20)]
    verdicts = ["genuine", "gt_invalid", "fp_too_similar"]
    assert rows["verdict"].tolist() == [verdicts[k % 3] for k in range(20)]


def test_a_caption_that_is_a_script_does_nothing(window, tmp_path):
    page = begin(window, sheet(tmp_path / "qc.html", "qc", 4), "eve", item=0)
    for number, caption in enumerate(EVIL):
        wait_for_item(page, number)
        assert page.locator("#item bdi").nth(0).inner_text() == caption
        page.wait_for_timeout(300)  # what should not happen gets the time to
        assert page.title() == "repair_hf: judge"
        press(page, "1")


def test_edits_by_criteria_and_failure_mode_and_back(window, tmp_path):
    page = begin(window, sheet(tmp_path / "edits.html", "edits", 4), "Bob", item=0)
    press(page, "Enter")  # all criteria are met
    press(page, "3", "5", "Enter")  # two fail: the mode is missing
    page.wait_for_selector("text=Name the failure mode")
    wait_for_item(page, 1)
    press(page, "d", "Enter", "Backspace")
    press(page, "4", "5", "s", "Enter")  # changed their mind
    save(page, tmp_path)
    press(page, "Enter", "Enter")  # the next two edits; the file is not saved again
    page.wait_for_selector("text=4 of 4 judged")
    rows = read_judgements([save(page, tmp_path)])["edits"].set_index("item")
    failed = {item: [name for name in CRITERIA if not row[name]] for item, row in rows.iterrows()}
    assert failed == {"item-0": [], "item-1": ["edit_minimal", "valid_contrast"], "item-2": [], "item-3": []}
    assert rows["mode"].dropna().to_dict() == {"item-1": "semantic_mismatch"}


def test_annotators_of_one_browser_do_not_see_each_other(window, tmp_path):
    url = sheet(tmp_path / "qc.html", "qc", 5)
    one = begin(window, url, "one", item=0)
    press(one, *"22222")
    other = begin(window, url, "other", item=0)
    press(other, "1")
    begin(window, sheet(tmp_path / "more.html", "qc", 6), "one", item=0)  # another page has other answers
    rows = read_judgements([save(one, tmp_path), save(other, tmp_path)])["qc"]
    assert rows.groupby("annotator").size().to_dict() == {"one": 5, "other": 1}


def test_a_browser_that_keeps_nothing_says_so(window, tmp_path):
    window.add_init_script("Object.defineProperty(window, 'localStorage', {get() { throw new Error(); }})")
    page = begin(window, sheet(tmp_path / "qc.html", "qc", 2), "ann", item=0)
    press(page, "1")
    page.wait_for_selector("text=This browser keeps nothing")
    assert json.loads(save(page, tmp_path).read_text())["answers"] == {"item-0": {"verdict": "genuine"}}


@pytest.fixture(scope="module")
def pages(tmp_path_factory, illustrated_folder, illustrated, chromium):
    """Opens an example of each page of the project."""
    folder = tmp_path_factory.mktemp("pages")
    pages = write_pages(folder, illustrated_folder, *illustrated)
    addresses = {name: path.as_uri() for name, path in pages.items()}
    addresses["annotate"] = addresses["annotate-start"] = sheet(folder / "edits.html", "edits", 4)
    return lambda name, **how: (chromium.new_page(**how), addresses[name])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    "name",
    "report-run report-empty show mined grids annotate annotate-start".split(),
)
def test_each_page_can_be_read(pages, name, width, scheme):
    page, url = pages(name, viewport={"width": width, "height": 900}, color_scheme=scheme)
    errors = []
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    if name == "annotate":
        page.locator("#name").fill("ann")
        page.locator("#start").click()
        page.keyboard.press("3")
        page.wait_for_selector("button.off")
    assert errors == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(FAINT) == []
    if width == 1280:
        assert set(page.evaluate(LINES)) <= {0, 1}  # a record stands on one line
    else:
        assert page.evaluate(CUT) == []
    page.close()
