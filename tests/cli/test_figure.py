"""`repair-hf figure`: a grid before and after training."""

import pytest
from PIL import Image

from repair_hf.analysis.charts import DPI
from repair_hf.analysis.example_grid import full_grid
from repair_hf.cli.main import main
from repair_hf.runtime.options import UserError


def test_a_grid(illustrated_folder, pairs_folder, clip_folder, tmp_path, illustrated):
    pairs, records = illustrated
    words = ["figure", illustrated_folder, "--pairs", pairs_folder, "--before", clip_folder, "--after", clip_folder]
    ways = [set(records.filter(lambda row, way=way: row["direction"] == way)["q_id"]) for way in ("t2i", "i2t")]
    anchor = next(name for name in pairs.captions["caption_id"] if name in ways[0] and name.split("#")[0] in ways[1])
    assert main([*map(str, words), "--anchor", anchor, "--output", str(tmp_path / "grid.png")]) == 0
    assert Image.open(tmp_path / "grid.png").width == round(7 * DPI)  # both columns of a paper
    grid = full_grid(pairs, records, anchor)
    assert grid.texts[0] == dict(zip(pairs.captions["caption_id"], pairs.captions["caption"], strict=True))[anchor]
    with pytest.raises(UserError, match="pairs have no caption 'nobody'; give a caption id such as"):
        full_grid(pairs, records, "nobody")
    named = {name for row in records for name in (row["q_id"], row["fp_id"])}
    bare = next(name for name in pairs.captions["caption_id"] if name not in named)
    with pytest.raises(UserError, match="lacks a record in one direction"):
        full_grid(pairs, records, bare)
