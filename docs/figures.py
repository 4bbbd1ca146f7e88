"""Draw the pictures of the documentation from the toy world, into `docs/images`.

    python docs/figures.py [FOLDER]

FOLDER keeps the world and the records for the next time; by default they are made in a temporary folder.
"""

from __future__ import annotations

import sys
import tempfile
import textwrap
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle
from PIL import Image

from repair_hf import DualEncoder, Pairs, load_pairs, load_records
from repair_hf.analysis.charts import INK, MUTED, ROLES, chart
from repair_hf.analysis.charts import save as save_figure
from repair_hf.analysis.example_grid import cosines, full_grids, right_answers
from repair_hf.analysis.pictures import contact_sheet, grid_figure
from repair_hf.analysis.record_sample import RecordSample, record_at
from repair_hf.cli.main import main as run

IMAGES = Path(__file__).parent / "images"
MODEL = "world/base"
SHOWN = 5  # images of a ranking
COLORS = 128  # of a picture
TRIED = 300  # grids to choose from
LEARNING_RATE = 3e-4


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
    after = DualEncoder.from_pretrained(tuned)
    grids = islice(full_grids(pairs, records), TRIED)
    grid = max(grids, key=lambda grid: gained(cosines(grid, encoder), cosines(grid, after)))
    save(grid_figure(grid, cosines(grid, encoder), cosines(grid, after)), IMAGES / "grid.png")


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


def save(figure: Any, path: Path) -> None:
    """Write a figure as a small PNG."""
    save_figure(figure, path)
    Image.open(path).convert("RGB").quantize(COLORS).save(path, optimize=True)


def gained(before: np.ndarray, after: np.ndarray) -> int:
    """Return how many more of a grid's six questions are answered right after training."""
    return sum(int(np.sum(right)) for right in right_answers(after)) - sum(
        int(np.sum(right)) for right in right_answers(before)
    )


def _picture(panel: Any, image: Any, edge: str) -> None:
    panel.imshow(np.asarray(image))
    panel.set(xticks=[], yticks=[])
    panel.grid(False)
    for spine in panel.spines.values():
        spine.set(visible=True, color=edge, linewidth=2)


def _cell(panel: Any, score: float, *, is_pair: bool) -> None:
    panel.axis("off")
    color = ROLES["gt" if is_pair else "fp"]
    panel.add_patch(Rectangle((0.06, 0.06), 0.88, 0.88, facecolor=color, alpha=0.18, edgecolor=color))
    word = "true pair" if is_pair else "hard negative"
    panel.text(0.5, 0.5, f"{word}\ncosine {score:.3f}", ha="center", va="center", fontsize=7, color=INK)
    panel.set(xlim=(0, 1), ylim=(0, 1))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
