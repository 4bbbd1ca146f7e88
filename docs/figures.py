"""Draw the pictures of the documentation from the toy world, into `docs/images`.

    python docs/figures.py [FOLDER]

FOLDER keeps the demo, the world and the records for the next time; by default they are made in a temporary folder.
"""

from __future__ import annotations

import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle
from PIL import Image
from sheet import chart, contact_sheet
from sheet import save as save_figure

from repair_hf import DualEncoder, Pairs, load_pairs, load_records
from repair_hf.analysis.pages import INK, MUTED, ROLES
from repair_hf.analysis.record_sample import RecordSample, record_at
from repair_hf.cli.demo import BLEND, TITLES
from repair_hf.cli.main import main as run
from repair_hf.runtime.files import read_json
from repair_hf.training.fills import Edits

IMAGES = Path(__file__).parent / "images"
MODEL = "world/base"
SHOWN = 5  # images of a ranking
COLORS = 128  # of a picture
TRIED = 300  # grids to choose from
LEARNING_RATE = 3e-4
LINES = MUTED, ROLES["edit"], ROLES["fp"]  # colors of the demo's trainings
SLOTS = ("anchor", "fits the 2nd caption", "wrong image"), ("anchor", "wrong caption", "fits the 3rd image")


def main(folder: Path) -> None:
    IMAGES.mkdir(exist_ok=True)
    tuned = make(folder)
    pairs, records = load_pairs(folder / "world"), load_records(folder / "records")
    encoder = DualEncoder.from_pretrained(MODEL)
    short = short_records(records)
    available = Counter(records["direction"][:])
    save(contact_sheet(RecordSample(list(short.values()), dict(available))), IMAGES / "record.png")
    draw_failure(pairs, encoder, short["t2i"])
    draw_edits(pairs, encoder, short["t2i"])
    draw_demo(folder / "demo")
    draw_grid(Edits(pairs, records, seed=0, own_failures=True), encoder, DualEncoder.from_pretrained(tuned))


def make(folder: Path) -> Path:
    """Draw a world without faults, repair its failures, and train on them."""
    world, failures, records, tuned = (str(folder / name) for name in ("world", "failures", "records", "tuned"))
    both = ["--pairs", world, "--model", MODEL]
    commands = (
        ["world", "build", "--domain", "plain", "--train", "300", "--validation", "20", "--test", "20"],
        ["mine", *both],
        ["synthesize", *both, "--failures", failures, "--llm", "world/oracle", "--editor", "world"],
        ["train", *both, "--records", records, "--max-steps", "30", "--learning-rate", str(LEARNING_RATE)],
    )
    for words, output in zip(commands, (world, failures, records, tuned), strict=True):
        if code := run([*words, "--output", output]):
            sys.exit(code)
    return Path(tuned)


def short_records(records: Any) -> dict[str, dict[str, Any]]:
    """Return the record of each direction whose edit is nearest, among failures with short instructions."""
    columns = ("direction", "fp_rank", "gt_rank", "edit_instruction", "edit_similarity")
    rows = records.select_columns(list(columns)).to_list()
    found = {}
    for direction in ("t2i", "i2t"):
        missed = [
            n for n, row in enumerate(rows)
            if (row["direction"], row["fp_rank"]) == (direction, 1) and row["gt_rank"] <= SHOWN
        ]  # fmt: skip
        short = sorted(missed, key=lambda n: len(rows[n]["edit_instruction"]))[:10]
        found[direction] = record_at(records, max(short, key=lambda n: rows[n]["edit_similarity"]))
    return found


def draw_failure(pairs: Pairs, encoder: DualEncoder, record: dict[str, Any]) -> None:
    """Draw the images that rank highest for a caption."""
    images, _ = encoder.embed_pairs(pairs)
    scores = images @ encoder.embed_texts([record["q_text"]])[0]  # (N,)
    ids = pairs.images["image_id"][:]
    with chart(1.75, columns=SHOWN, width=6.5) as (figure, panels):
        figure.suptitle(f"“{record['q_text']}”", color=INK, fontsize=9)
        for rank, (panel, row) in enumerate(zip(panels, np.argsort(-scores), strict=False), start=1):
            role = {record["gt_id"]: "gt", record["fp_id"]: "fp"}.get(ids[row])
            name = {"gt": "ground truth", "fp": "false positive"}.get(role, "")
            _picture(panel, pairs.images[int(row)]["image"], ROLES.get(role, "none"))
            panel.set_title(f"rank {rank} · cosine {scores[row]:.3f}", fontsize=6.5, color=MUTED)
            panel.set_xlabel(name, fontsize=7, color=ROLES.get(role, MUTED), weight="bold")
    save(figure, IMAGES / "failure.png")


def draw_edits(pairs: Pairs, encoder: DualEncoder, record: dict[str, Any]) -> None:
    """Draw the similarity matrix of a false positive, its edit, its own caption and the query."""
    row = pairs.images["image_id"][:].index(record["fp_id"])
    captions = [pairs.captions[caption]["caption"] for caption in pairs.captions_of(row)]
    fp, edit = encoder.embed_images([record["fp_image"], record["edit_image"]])  # (D,), (D,)
    own = captions[int(np.argmax(encoder.embed_texts(captions) @ (fp - edit)))]  # one that the edit made false
    images = {"training image\n(the false positive)": record["fp_image"], "its edit": record["edit_image"]}
    texts = {"training caption": own, "query": record["q_text"]}
    scores = encoder.embed_texts(list(texts.values())) @ encoder.embed_images(list(images.values())).T  # (2, 2)
    with chart(2.6, rows=3, columns=3, width=5.2) as (figure, panels):
        panels[0, 0].axis("off")
        for column, (name, image) in enumerate(images.items(), start=1):
            _picture(panels[0, column], image, ROLES["fp" if column == 1 else "edit"])
            panels[0, column].set_title(name, fontsize=7)
        for line, (name, text) in enumerate(texts.items(), start=1):
            panels[line, 0].axis("off")
            said = "\n".join(textwrap.wrap(text, 26))
            panels[line, 0].text(0, 0.5, f"{name}:\n{said}", fontsize=7, va="center", color=INK)
            for column in (1, 2):
                _cell(panels[line, column], scores[line - 1, column - 1], is_pair=line == column)
    save(figure, IMAGES / "edits.png")


def draw_grid(fill: Edits, before: DualEncoder, after: DualEncoder) -> None:
    """Draw a 3x3 grid with its cosines before and after training: of some grids with two edits, the one that gains."""
    pairs, anchors = fill.pairs, np.arange(len(fill.pairs.captions))
    rows = fill.draw(np.zeros_like(anchors), anchors)  # images and captions, (anchors, 3) each
    is_edit = (rows[0][:, 1] >= len(pairs.images)) & (rows[1][:, 2] >= len(pairs.captions))
    grids = []
    for images, texts in zip(*(each[is_edit][:TRIED] for each in rows), strict=True):
        shown = [_item(pairs.images, "image", fill.images, row) for row in images.tolist()]
        said = [_item(pairs.captions, "caption", fill.texts, row) for row in texts.tolist()]
        scores = [each.embed_texts(said) @ each.embed_images(shown).T for each in (before, after)]  # (3, 3) each
        grids.append((shown, said, scores))
    images, texts, scores = max(grids, key=lambda grid: right_answers(grid[2][1]) - right_answers(grid[2][0]))
    with chart(3.0, rows=4, columns=7, width=6.5) as (figure, panels):
        for line, column in np.ndindex(4, 7):
            panels[line, column].axis("off")
        for line, (text, slot) in enumerate(zip(texts, SLOTS[1], strict=True), start=1):
            lines = "\n".join([f"{slot}:", *textwrap.wrap(text, 22)])
            panels[line, 0].text(1, 0.5, lines, fontsize=5.5, va="center", ha="right", color=INK)
        for side, (name, matrix) in enumerate(zip(("before", "after"), scores, strict=True)):
            panels[0, 2 + 3 * side].set_title(f"{name} training: {right_answers(matrix)} of 6 right", fontsize=7)
            for column, image in enumerate(images):
                _picture(panels[0, 1 + column + 3 * side], image, ROLES["fp" if column == 2 else "gt"])
            for line, column in np.ndindex(3, 3):
                _cell(panels[line + 1, 1 + column + 3 * side], matrix[line, column], is_pair=line == column, size=5)
    save(figure, IMAGES / "grid.png")


def draw_demo(folder: Path) -> None:
    """Draw what each training and its blend gain, against what they keep of the base's own domain."""
    if code := run(["demo", "--output", str(folder)]):
        sys.exit(code)
    rows = read_json(folder / "metrics.json", needs=("base", *TITLES.values()))

    def place(name: str) -> tuple[float, float]:
        gained, kept = (50 * (rows[name][f"{part}i2t_R@1"] + rows[name][f"{part}t2i_R@1"]) for part in ("", "web_"))
        return gained, kept

    last = max(TITLES.values(), key=place)  # the line to the right of all others has the room for names
    with chart(2.8, width=5.2) as (figure, axes):
        for color, title in zip(LINES, TITLES.values(), strict=True):
            start, blended, end = (place(name) for name in ("base", f"{title}, blend {BLEND:g}", title))
            axes.plot(*zip(start, blended, end, strict=True), marker="o", markersize=5, linewidth=1, color=color)
            _name(axes, f"blend {BLEND:g}" if title == last else f"{BLEND:g}", blended)
            _name(axes, title, end, is_left=title != last)
        _name(axes, "base", start)
        axes.margins(x=0.16)
        axes.set(xlabel="gained: R@1 on the test pictures (%)", ylabel="kept: R@1 on the base's own domain (%)")
    save(figure, IMAGES / "demo.png")


def _name(axes: Any, name: str, place: tuple[float, float], *, is_left: bool = False) -> None:
    """Write a name beside its point."""
    shift, end = (-5, "right") if is_left else (5, "left")
    axes.annotate(name, place, xytext=(shift, 0), textcoords="offset points", ha=end, fontsize=6.5, color=INK)


def right_answers(scores: np.ndarray) -> int:
    """Count the captions that rank their image first and the images that rank their caption first; (3, 3) scores."""
    others = np.where(np.eye(len(scores), dtype=bool), -np.inf, scores)
    return sum(int((np.diagonal(scores) > others.max(axis)).sum()) for axis in (0, 1))


def _item(items: Any, column: str, edits: Any, row: int) -> Any:
    """Return an image or a caption by its row, which counts the edits after the items of the pairs."""
    return items[row][column] if row < len(items) else next(iter(edits[row - len(items)].values()))


def save(figure: Any, path: Path) -> None:
    """Write a figure as a small PNG."""
    save_figure(figure, path)
    Image.open(path).convert("RGB").quantize(COLORS).save(path, optimize=True)


def _picture(panel: Any, image: Any, edge: str) -> None:
    panel.imshow(np.asarray(image))
    panel.set(xticks=[], yticks=[])
    panel.grid(False)
    for spine in panel.spines.values():
        spine.set(visible=True, color=edge, linewidth=2)


def _cell(panel: Any, score: float, *, is_pair: bool, size: float = 7) -> None:
    panel.axis("off")
    color = ROLES["gt" if is_pair else "fp"]
    panel.add_patch(Rectangle((0.06, 0.06), 0.88, 0.88, facecolor=color, alpha=0.18, edgecolor=color))
    word = "true pair" if is_pair else "hard negative"
    panel.text(0.5, 0.5, f"{word}\ncosine {score:.3f}", ha="center", va="center", fontsize=size, color=INK)
    panel.set(xlim=(0, 1), ylim=(0, 1))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
