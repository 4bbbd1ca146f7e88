"""The page in a real browser: answered by keyboard, killed half-way, gone on with."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from page_examples import FAINT, write_pages
from PIL import Image

from repair_hf.records.answers import CRITERIA, read_answers

playwright = pytest.importorskip("playwright.sync_api", reason="drives a browser by Playwright: make test-page")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)

MARK = f"--opened-by={os.getpid()}"  # tells our browser from others; Chromium passes over what it does not know
PATIENCE = 60_000  # milliseconds: a first start on a busy machine takes long
CUT = """[...document.querySelectorAll(".scroll")].filter(
  table => table.scrollWidth > table.clientWidth).map(table => table.innerText)"""
LINES = """[...document.querySelectorAll(".cells")].map(
  cells => new Set([...cells.children].map(cell => cell.getBoundingClientRect().top)).size)"""
# The next request to the server is held until `window.release` is called.
HOLD = """(() => {
  const send = window.fetch, held = () => window.release || new Promise(go => window.release = go);
  window.fetch = async (...given) => (await held(), send(...given));
})()"""
EVIL = [
    '<script>document.title = "broken in"</script>',
    "<img src=x onerror=\"document.title = 'broken in'\">",
    "${document.title = 'broken in'} {{document.title = 'broken in'}}",
]


def lay(folder: Path, task: str, count: int) -> None:
    """Write a task whose first captions try to break in."""
    (folder / "shown" / "pictures").mkdir(parents=True)
    Image.new("RGB", (40, 30), "#cc2200").save(folder / "shown" / "pictures" / "p.webp", "WEBP")
    captions = [*EVIL, *(f"caption number {k}" for k in range(count - len(EVIL)))]
    roles = ("q", "gt", "fp") + (("edit",) if task == "edits" else ())
    lines = []
    for number, caption in enumerate(captions):
        cells = {role: {"text": caption} for role in roles} | {"q": {"picture": "p.webp"}}
        lines.append(json.dumps({"item": f"item-{number}", "direction": "i2t", "cells": cells}))
    (folder / "shown" / "items.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "task.json").write_text(json.dumps({"task": task, "size": count, "seed": 0}))


@contextmanager
def serving(folder: Path):
    """Serve a task by a process of its own; gives the address and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from repair_hf.analysis.people.page import Judging\n"
    code += f"Judging({str(folder)!r}, '127.0.0.1', {port}, ['127.0.0.1']).serve_forever()"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield wait_for(f"http://127.0.0.1:{port}/"), process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(url: str) -> str:
    for _ in range(1800):
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=60)
            return url
        time.sleep(0.1)
    raise TimeoutError("the page did not come up within three minutes")


@pytest.fixture
def served(tmp_path):
    """Serves a task by a process of its own; gives back its folder, the address and the process."""
    with ExitStack() as stack:

        def serve(task: str, count: int) -> tuple[Path, str, subprocess.Popen]:
            folder = tmp_path / task
            if not folder.exists():
                lay(folder, task, count)
            return folder, *stack.enter_context(serving(folder))

        yield serve


@pytest.fixture(scope="module")
def chromium():
    """Starts a browser."""
    with playwright.sync_playwright() as driver:

        def start(*words: str):
            options = {"executable_path": CHROMIUM, "args": ["--no-sandbox", *words], "timeout": PATIENCE}
            return driver.chromium.launch(**options)

        yield start


@pytest.fixture
def browser(chromium):
    opened = []

    def open_page(url: str, *, item: int | None = None):
        opened.append(chromium(MARK))
        page = opened[-1].new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.goto(url)
        if item is not None:
            wait_for_item(page, item)
        return page

    yield open_page
    for one in opened:
        one.close()


def kill_browser() -> None:
    """As a power cut would, without a word to the page."""
    ours = [path for path in Path("/proc").glob("[0-9]*/cmdline") if MARK.encode() in path.read_bytes().split(b"\0")]
    assert ours
    for path in ours:
        os.kill(int(path.parent.name), signal.SIGKILL)


def wait_for_item(page, number: int) -> None:
    page.wait_for_selector(f".item[data-item='item-{number}']")


def judged(folder: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The criteria that each edit fails, and the failure modes."""
    answers = read_answers(folder).set_index("item").sort_index()
    failed = {item: [name for name in CRITERIA if not row[name]] for item, row in answers.iterrows()}
    return failed, answers["mode"].dropna().to_dict()


def press(page, *keys: str) -> None:
    """Press keys; the last one ends the item, so wait for the next."""
    before = page.locator(".item").get_attribute("data-turn")
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_function("before => document.querySelector('.item').dataset.turn !== before", arg=before)


def test_twenty_failures_with_the_browser_and_the_server_killed_half_way(served, browser):
    folder, url, server = served("qc", 20)
    page = browser(f"{url}?annotator=ann", item=0)
    for number in range(11):
        press(page, "123"[number % 3])
    kill_browser()
    os.killpg(server.pid, signal.SIGKILL)  # and so is the server, while it was writing
    with (folder / "answers" / "ann.jsonl").open("ab") as file:
        file.write(b'{"annotator": "ann", "item": "item-1')
    _, url, _ = served("qc", 20)
    page = browser(f"{url}?annotator=ann", item=11)
    for number in range(11, 20):
        press(page, "123"[number % 3])
    page.wait_for_selector("text=All 20 are done")
    lines = (folder / "answers" / "ann.jsonl").read_text().splitlines()
    assert [json.loads(line)["item"] for line in lines] == [f"item-{k}" for k in range(20)]
    verdicts = ["genuine", "gt_invalid", "fp_too_similar"]
    assert read_answers(folder)["verdict"].tolist() == [verdicts[k % 3] for k in range(20)]


def test_a_caption_that_is_a_script_does_nothing(served, browser):
    _, url, _ = served("qc", 4)
    page = browser(f"{url}?annotator=eve")
    for number, caption in enumerate(EVIL):
        wait_for_item(page, number)
        assert page.locator(".item bdi").nth(0).inner_text() == caption
        page.wait_for_timeout(300)  # what should not happen gets the time to
        assert page.title() == "repair_hf: judge"
        press(page, "1")


def test_edits_by_criteria_and_failure_mode_and_back(served, browser):
    folder, url, _ = served("edits", 4)
    page = browser(url)
    page.locator("#name").fill("Bob")
    page.locator("#start").click()
    wait_for_item(page, 0)
    page.locator("body").click(position={"x": 5, "y": 5})  # out of the field, so that keys are answers
    press(page, "Enter")  # all criteria are met
    press(page, "3", "5", "Enter")  # two fail: the mode is missing
    page.wait_for_selector("text=Name the failure mode")
    assert page.locator(".item").get_attribute("data-item") == "item-1"
    press(page, "d", "Enter")
    press(page, "Backspace")
    press(page, "4", "5", "s", "Enter")  # changed their mind
    press(page, "Enter")
    press(page, "Enter")
    page.wait_for_selector("text=All 4 are done")
    failed = {"item-0": [], "item-1": ["edit_minimal", "valid_contrast"], "item-2": [], "item-3": []}
    assert judged(folder) == (failed, {"item-1": "semantic_mismatch"})


def test_a_key_that_was_meant_for_the_item_before_is_dropped(served, browser):
    folder, url, _ = served("edits", 4)
    page = browser(f"{url}?annotator=ann", item=0)
    page.evaluate(HOLD)
    for key in ("3", "s", "Enter", "Enter", "5"):  # the next item is not there yet
        page.keyboard.press(key)
    page.wait_for_function("() => Boolean(window.release)")
    page.evaluate("() => window.release()")
    wait_for_item(page, 1)
    press(page, "Enter")
    assert judged(folder) == ({"item-0": ["scaffold_kept"], "item-1": []}, {"item-0": "semantic_mismatch"})


def test_an_answer_that_is_not_saved_is_asked_for_again(served, browser):
    folder, url, server = served("qc", 4)
    page = browser(f"{url}?annotator=ann", item=0)
    os.killpg(server.pid, signal.SIGKILL)
    page.keyboard.press("1")
    page.wait_for_selector("text=Not saved")
    assert page.locator(".item").get_attribute("data-item") == "item-0" and not (folder / "answers").exists()


def test_annotators_do_not_see_each_other(served, browser):
    folder, url, _ = served("qc", 5)
    one = browser(f"{url}?annotator=one", item=0)
    for _ in range(5):
        press(one, "2")
    other = browser(f"{url}?annotator=other", item=0)
    assert not {"gt_invalid", "accepted", "rejected"} & set(other.content().replace('"', " ").split())
    press(other, "1")
    assert read_answers(folder).groupby("annotator").size().to_dict() == {"one": 5, "other": 1}


@pytest.fixture(scope="module")
def pages(tmp_path_factory, illustrated_folder, illustrated, chromium):
    """Opens an example of each page of the project."""
    folder, window = tmp_path_factory.mktemp("pages"), chromium()
    addresses = {name: path.as_uri() for name, path in write_pages(folder, illustrated_folder, illustrated[1]).items()}
    lay(folder / "edits", "edits", 4)
    with serving(folder / "edits") as (url, _):
        addresses |= {"annotate": f"{url}?annotator=ann", "annotate-start": url}
        yield lambda name, **how: (window.new_page(**how), addresses[name])
    window.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    "name",
    "report-run report-empty show mined annotate annotate-start".split(),
)
def test_each_page_can_be_read(pages, name, width, scheme):
    page, url = pages(name, viewport={"width": width, "height": 900}, color_scheme=scheme)
    errors = []
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    if name == "annotate":
        wait_for_item(page, 0)
        page.keyboard.press("3")
        page.wait_for_selector("button.off")
    elif name == "annotate-start":
        page.wait_for_selector("#start")
    assert errors == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(FAINT) == []
    if width == 1280:
        assert set(page.evaluate(LINES)) <= {1}  # a record stands on one line
    else:
        assert page.evaluate(CUT) == []
    page.close()
