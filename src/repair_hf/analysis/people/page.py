"""A Gradio page on which people judge failures and edits by keyboard.

An answer is on disk, in `answers/NAME.jsonl`, before the next item is shown. An annotator sees neither other answers
nor the audit's verdict. The same name resumes where it stopped; the last answer to an item counts.

This file imports nothing of `repair_hf`, because it is copied into a Space as `app.py`.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

NAMES = {"q": "Query", "gt": "Ground truth", "fp": "False positive", "edit": "Edit"}
VERDICTS = {
    "1": ("genuine", "Genuine failure: the ground truth fits the query, the false positive does not"),
    "2": ("gt_invalid", "No: the ground truth does not fit the query"),
    "3": ("fp_too_similar", "No: the false positive fits the query as well"),
}
CRITERIA = {
    "1": ("fp_wrong", "The false positive is genuinely wrong for the query"),
    "2": ("edit_fits", "The edit fits the query"),
    "3": ("scaffold_kept", "What both share is preserved"),
    "4": ("edit_minimal", "Nothing is changed beyond what made it wrong"),
    "5": ("valid_contrast", "False positive and edit form a valid hard contrast"),
}
MODES = {
    "s": ("semantic_mismatch", "semantic mismatch: the edit does not fully fit the query"),
    "d": ("scaffold_drift", "scaffold drift: the edit rebuilds the scene"),
    "a": ("artifact", "artifact: something visibly broken"),
    "f": ("ambiguous_fp", "ambiguous false positive: debatable whether it is wrong"),
}
KEYS = {"qc": [*VERDICTS, "back"], "edits": [*CRITERIA, *MODES, "enter", "back"]}
STYLE = """
.item { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 14px; }
.item h3 { margin: 0 0 6px; font-size: 15px; }
.item img { width: 100%; max-height: 340px; object-fit: contain; image-rendering: auto; }
.item p { font-size: 19px; overflow-wrap: anywhere; white-space: pre-line; margin: 0; padding: 12px;
  border-left: 4px solid #5c6773; }
.choices { list-style: none; padding: 0; font-size: 16px; margin: 18px 0 10px; }
.choices li { display: flex; align-items: baseline; line-height: 1.4; margin: 0 0 8px; }
.choices kbd { flex-shrink: 0; }
.off { color: #b34700; font-weight: 700; }
.dark .off { color: #ff9a5c; }
.chosen { font-weight: 700; }
.gradio-container:not(:has(.item)) #keys { display: none; }
kbd { border: 1px solid #5c6773; border-radius: 4px; padding: 0 7px; margin-right: 8px; }
"""
# A key presses the button of its name. Each key waits for the result of the one before, because requests may overtake
# each other. A key that was meant for another item is dropped, so that nobody answers what they have not seen.
# `setTimeout`: while an item appears, Gradio still ignores the button that brought it.
SCRIPT = """<script>
let keys = [], sent = null;
const button = key => document.querySelector("#key-" + CSS.escape(key));
function next() {
  const item = document.querySelector(".item");
  if (!item || item.dataset.presses === sent) return;
  keys = keys.filter(key => key.turn === item.dataset.turn);
  if (!keys.length) return;
  sent = item.dataset.presses;
  button(keys.shift().name).click();
}
document.addEventListener("keydown", event => {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
  const name = {Enter: "enter", Backspace: "back"}[event.key] || event.key.toLowerCase();
  const item = document.querySelector(".item");
  if (!item || !button(name)) return;
  event.preventDefault();
  keys.push({name, turn: item.dataset.turn});
  setTimeout(next);
});
new MutationObserver(() => setTimeout(next)).observe(document, {attributes: true, childList: true, subtree: true});
</script>"""

_lock = threading.Lock()


class Answers:
    """The answers of one task, a file per annotator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, annotator: str) -> dict[str, dict[str, Any]]:
        """Read the annotator's last answer to each item; unfinished and damaged lines do not count."""
        path = self.folder / f"{annotator}.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        rows = [_parse(line) for line in lines if line.endswith(b"\n")]
        return {row["item"]: row for row in rows if isinstance(row, dict) and isinstance(row.get("item"), str)}

    def write(self, annotator: str, item: str, answer: dict[str, Any]) -> None:
        """Append an answer, and return when it is on disk."""
        row = {"annotator": annotator, "item": item, **answer, "time": round(time.time(), 3)}
        path = self.folder / f"{annotator}.jsonl"
        with _lock, path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a line that a dying process had not finished is cut off
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class Sheet:
    """One task: its items, and how they are shown and answered. Answers go to `answers` in its folder by default."""

    def __init__(self, folder: str | Path, answers: Path | None = None) -> None:
        self.folder = Path(folder)
        self.task = json.loads((self.folder / "task.json").read_text())["task"]
        lines = (self.folder / "shown" / "items.jsonl").read_text().splitlines()
        self.items = [json.loads(line) for line in lines]
        self.answers = Answers(answers or self.folder / "answers")

    def begin(self, name: str) -> dict[str, Any] | None:
        """Return the state of an annotator; None if the name is invalid."""
        name = name.strip().lower()
        if not re.fullmatch(r"[a-z0-9_-]{1,32}", name):
            return None
        done = self.answers.read(name)
        left = (place for place, item in enumerate(self.items) if item["item"] not in done)
        return self._at({"name": name, "turn": 0, "presses": 0}, next(left, len(self.items)))

    def press(self, state: dict[str, Any] | None, key: str) -> dict[str, Any] | None:
        """Return the state after a key; a key without a meaning changes nothing."""
        if state is None:
            return None
        state = {**state, "presses": state["presses"] + 1}  # the page waits for a change of it
        if key == "back":
            return self._at(state, max(state["place"] - 1, 0))
        if state["place"] >= len(self.items):
            return state
        if self.task == "qc":
            return self._answer(state, {"verdict": VERDICTS[key][0]}) if key in VERDICTS else state
        if key in CRITERIA:
            return {**state, "failed": state["failed"] ^ {key}, "complaint": ""}
        if key in MODES:
            return {**state, "mode": None if state["mode"] == key else key, "complaint": ""}
        if key != "enter":
            return state
        if bool(state["failed"]) != (state["mode"] is not None):
            told = "Name the failure mode where a criterion fails, and only there."
            return {**state, "complaint": told, "turn": state["turn"] + 1}
        met = {name: key not in state["failed"] for key, (name, _) in CRITERIA.items()}
        return self._answer(state, met | {"mode": MODES[state["mode"]][0] if state["mode"] else None})

    def show(self, state: dict[str, Any] | None) -> str:
        """Return the item as HTML, with every text escaped."""
        if state is None:
            return "<p>A name of letters, digits, - and _, please.</p>"
        stand = f'data-turn="{state["turn"]}" data-presses="{state["presses"]}"'
        if state["place"] >= len(self.items):
            return f'<div class="item" {stand}><p>All {len(self.items)} are done. Thank you.</p></div>'
        item = self.items[state["place"]]
        cells = "".join(f"<div><h3>{NAMES[role]}</h3>{self._cell(cell)}</div>" for role, cell in item["cells"].items())
        return (
            f"<p>{state['place'] + 1} of {len(self.items)} · {html.escape(state['name'])}</p>"
            f'<div class="item" {stand} data-item="{html.escape(item["item"])}">{cells}</div>' + self._choices(state)
        )

    def _at(self, state: dict[str, Any], place: int) -> dict[str, Any]:
        fresh: dict[str, Any] = {"failed": frozenset(), "mode": None, "complaint": ""}
        return {**state, "place": place, "turn": state["turn"] + 1, **fresh}

    def _answer(self, state: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        self.answers.write(state["name"], self.items[state["place"]]["item"], answer)
        return self._at(state, state["place"] + 1)

    def _cell(self, cell: dict[str, str]) -> str:
        if "text" in cell:
            return f"<p>{html.escape(cell['text'])}</p>"
        data = (self.folder / "shown" / "pictures" / Path(cell["picture"]).name).read_bytes()
        return f'<img alt="" src="data:image/webp;base64,{base64.b64encode(data).decode()}">'

    def _choices(self, state: dict[str, Any]) -> str:
        if self.task == "qc":
            lines = [f"<li><kbd>{key}</kbd>{told}</li>" for key, (_, told) in VERDICTS.items()]
            return f'<ul class="choices">{"".join(lines)}</ul><p><kbd>backspace</kbd>the one before</p>'
        lines = []
        for key, (_, told) in CRITERIA.items():
            look, mark = ("off", "✗") if key in state["failed"] else ("", "✓")
            lines.append(f'<li class="{look}"><kbd>{key}</kbd>{mark} {told}</li>')
        modes = [
            f'<li class="{"chosen" if state["mode"] == key else ""}"><kbd>{key}</kbd>{told}</li>'
            for key, (_, told) in MODES.items()
        ]
        return (
            f'<ul class="choices">{"".join(lines)}</ul>'
            f'Where a criterion fails, what failed:<ul class="choices">{"".join(modes)}</ul>'
            "<p><kbd>enter</kbd>keep and go on <kbd>backspace</kbd>the one before "
            f'<b class="off">{state["complaint"]}</b></p>'
        )


def build(sheet: Sheet) -> gr.Blocks:
    """Build the page of a task."""
    with gr.Blocks(title="repair_hf: judge", analytics_enabled=False) as page:
        state = gr.State(None)
        shown = gr.HTML("<p>Loading …</p>")
        with gr.Row(visible=False) as door:  # nobody is asked for a name before `arrive` has looked for one
            name = gr.Textbox(label="Your name", elem_id="name")
            start = gr.Button("Start", elem_id="start")
        with gr.Row(elem_id="keys"):
            buttons = {key: gr.Button(key, elem_id=f"key-{key}", size="sm", min_width=20) for key in KEYS[sheet.task]}

        def begin(name: str) -> tuple:
            now = sheet.begin(name)
            return now, sheet.show(now), gr.update(visible=now is None)

        def arrive(request: gr.Request) -> tuple:
            given = request.query_params.get("annotator", "")
            return begin(given) if given else (None, "<p>Who are you?</p>", gr.update(visible=True))

        def press(key: str):
            def pressed(now: dict | None) -> tuple:
                now = sheet.press(now, key)
                return now, sheet.show(now)

            return pressed

        gr.on([start.click, name.submit], begin, name, [state, shown, door], show_progress="hidden")
        page.load(arrive, None, [state, shown, door], show_progress="hidden")
        one_by_one = {"concurrency_id": "keys", "concurrency_limit": 1}  # else a quick second key sees the old state
        for key, button in buttons.items():
            button.click(press(key), state, [state, shown], show_progress="hidden", **one_by_one)
    return page


def serve(sheet: Sheet, *, host: str = "127.0.0.1", port: int = 7860, middleware: Sequence[Any] = ()) -> None:
    """Show the page until interrupted; the host 0.0.0.0 lets other machines in."""
    theme = gr.themes.Base(font=["system-ui", "sans-serif"])  # no font from elsewhere
    look = {"css": STYLE, "head": SCRIPT, "theme": theme, "footer_links": []}
    app = {"middleware": list(middleware)}
    build(sheet).launch(server_name=host, server_port=port, quiet=True, ssr_mode=False, app_kwargs=app, **look)


if __name__ == "__main__":  # a Space; /data is its persistent storage, where it has one
    storage = Path("/data")
    serve(Sheet(Path(__file__).parent, storage / "answers" if storage.is_dir() else None), host="0.0.0.0")
