"""`repair-hf figure`, and what its figures show."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from repair_hf.analysis.charts import DPI, save
from repair_hf.analysis.example_grid import full_grids
from repair_hf.analysis.pictures import case_figure, changed_pixels, margins
from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.records.dataset import load_records
from repair_hf.runtime.options import UserError


def figure(*words: object) -> int:
    return main(["figure", *map(str, words)])


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_a_case(illustrated_folder, illustrated, tmp_path, direction):
    picture, drawing = tmp_path / "case.png", tmp_path / "case.svg"
    assert figure("case", illustrated_folder, "--output", picture) == 0
    assert Image.open(picture).width == round(7 * DPI)  # both columns of a paper
    name = next(row["record_id"] for row in illustrated[1] if row["direction"] == direction)
    assert figure("case", illustrated_folder, "--record", name, "--output", drawing) == 0
    row = next(row for row in load_records(illustrated_folder) if row["record_id"] == name)
    letters = drawing.read_text()
    assert "<text" in letters and "<script" not in letters
    assert all(word in letters for word in row["q_text" if direction == "t2i" else "edit_text"].split())
    before = drawing.read_bytes()
    assert figure("case", illustrated_folder, "--record", name, "--output", drawing) == 0
    assert drawing.read_bytes() == before


def test_a_caption_of_signs_is_drawn_as_it_stands(illustrated, tmp_path):
    row = next(row for row in illustrated[1] if row["direction"] == "i2t")
    save(case_figure(row | {"edit_text": r"costs $5 or $x^2$ <b>x</b> \frac"}), tmp_path / "case.svg")
    letters = (tmp_path / "case.svg").read_text()
    assert "$x^2$" in letters and "&lt;b&gt;x&lt;/b&gt;" in letters


def test_changed_pixels():
    before, after = Image.new("RGB", (4, 3), "black"), Image.new("RGB", (4, 3), "black")
    after.putpixel((1, 2), (0, 255, 0))
    heat = changed_pixels(before, after)
    assert heat.shape == (3, 4) and heat[2, 1] == 1 and heat.sum() == 1


def test_a_grid(illustrated_folder, pairs_folder, clip_folder, tmp_path, illustrated):
    pairs, records = illustrated
    words = ["--pairs", pairs_folder, "--before", clip_folder, "--after", clip_folder]
    ways = [set(records.filter(lambda row, way=way: row["direction"] == way)["q_id"]) for way in ("t2i", "i2t")]
    anchor = next(name for name in pairs.captions["caption_id"] if name in ways[0] and name.split("#")[0] in ways[1])
    assert figure("grid", illustrated_folder, *words, "--anchor", anchor, "--output", tmp_path / "grid.png") == 0
    assert Image.open(tmp_path / "grid.png").width == round(7 * DPI)
    (grid,) = full_grids(pairs, records, anchor)
    assert grid.texts[0] == dict(zip(pairs.captions["caption_id"], pairs.captions["caption"], strict=True))[anchor]
    with pytest.raises(UserError, match="pairs have no caption 'nobody'; give a caption id such as"):
        next(full_grids(pairs, records, "nobody"))
    named = {name for row in records for name in (row["q_id"], row["fp_id"])}
    bare = next(name for name in pairs.captions["caption_id"] if name not in named)
    assert figure("grid", illustrated_folder, *words, "--anchor", bare, "--output", tmp_path / "bare.png") == 2


def test_margins_against_their_definition(illustrated, clip_folder):
    encoder, records = DualEncoder.from_pretrained(clip_folder), illustrated[1]
    found = margins(records, encoder).set_index("record_id")["margin"]
    for row in records:
        texts, images = encoder.embed_texts, encoder.embed_images
        if row["direction"] == "t2i":
            q, (fp, edit) = texts([row["q_text"]])[0], images([row["fp_image"], row["edit_image"]])
        else:
            q, (fp, edit) = images([row["q_image"]])[0], texts([row["fp_text"], row["edit_text"]])
        assert found[row["record_id"]] == pytest.approx(float(q @ edit - q @ fp), abs=1e-5)


def test_a_margin_figure_with_its_numbers(illustrated_folder, clip_folder, tmp_path):
    path, words = tmp_path / "margin.svg", ["--before", clip_folder, "--after", clip_folder, "--n", "6"]
    assert figure("margin", illustrated_folder, *words, "--output", path) == 0
    table = pd.read_csv(tmp_path / "margin.csv")
    assert len(table) == 6 and np.allclose(table["before"], table["after"]) and "<svg" in path.read_text()


def test_a_record_without_its_pictures(illustrated):
    row = next(row for row in illustrated[1] if row["direction"] == "t2i")
    with pytest.raises(UserError, match="lacks the image of fp; give --pairs"):
        case_figure(row | {"fp_image": None})
