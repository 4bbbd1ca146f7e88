"""`mine --wrong`: a user's own failures, by text, id or path, ranked as mining ranks those that it finds."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from made_pairs import make_pairs

from repair_hf.cli.main import main
from repair_hf.mining.failures import load_failures
from repair_hf.mining.false_positives import find_false_positives
from repair_hf.mining.mine import mine
from repair_hf.mining.wrong import find_wrong
from repair_hf.pairs.dataset import load_pairs
from repair_hf.pairs.truth import truth_of
from repair_hf.runtime.options import UserError


@pytest.fixture(scope="module")
def pairs(pairs_folder):
    return load_pairs(pairs_folder, split="all")


@pytest.fixture(scope="module")
def mined(pairs, clip_folder):
    return mine(clip_folder, pairs, d_i2t=3, d_t2i=3)


def write(file, rows) -> str:
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([("query", "wrong"), *rows])
    return str(file)


def test_own_failures_are_the_rows_that_mining_has_for_them(pairs, pairs_folder, clip_folder, mined, tmp_path):
    captions = dict(zip(pairs.captions["caption_id"][:], pairs.captions["caption"][:], strict=True))
    rows = []
    for place, row in enumerate(mined.to_list()):
        names = {"id": (row["q_id"], row["fp_id"])}
        names["text"] = tuple(captions.get(name, name) for name in names["id"])
        names["path"] = tuple(name if name in captions else str(pairs_folder / name) for name in names["id"])
        rows.append(names[("id", "text", "path")[place % 3]])
    own = mine(clip_folder, pairs, wrong=write(tmp_path / "own.csv", rows))
    assert own.to_list() == mined.to_list()
    last = [row for row in rows if row[0] in (mined[0]["q_id"], captions.get(mined[0]["q_id"]))][-1:]
    alone = mine(clip_folder, pairs, wrong=write(tmp_path / "last.csv", last))
    expected = mined.filter(lambda row: row["q"] == mined[0]["q"] and row["direction"] == mined[0]["direction"])
    assert alone.to_list() == [expected[len(expected) - 1]] and alone[0]["fp_rank"] > 1


def test_rows_that_name_nothing_and_known_matches_are_left_out_and_counted(
    pairs, pairs_folder, clip_folder, tmp_path, caplog, capsys
):
    image, caption = pairs.images["image_id"][0], pairs.captions["caption"][0]
    other = pairs.images["image_id"][5]
    rows = [(caption, image), (caption.upper(), other), (image, other), ("no such caption", other), (caption, "x.png")]
    rows += [(caption, other), ("", other)]
    file = write(tmp_path / "own.csv", rows)
    words = f"mine --pairs {pairs_folder} --split all --model {clip_folder} --wrong {file} --output {tmp_path / 'out'}"
    assert main(words.split()) == 0
    assert "7 rows of your own: 4 name nothing in the pairs, and 1 are known matches" in capsys.readouterr().out
    assert f"line 4 ('{image}', '{other}'); line 5 ('no such caption', '{other}')" in caplog.text
    (row,) = load_failures(tmp_path / "out").to_list()
    assert (row["direction"], row["q_id"], row["gt_id"], row["fp_id"]) == ("t2i", f"{image}#0", image, other)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["wrong"] == {"rows": 7, "unknown": 4, "known_matches": 1}
    write(tmp_path / "own.csv", rows[:1])
    with pytest.raises(UserError, match="of 1 rows 0 name nothing in the pairs, and 1 are known"):
        mine(clip_folder, pairs, wrong=file)
    with pytest.raises(UserError, match="leave out `max_queries`"):
        mine(clip_folder, pairs, wrong=file, max_queries=3)
    (tmp_path / "own.csv").write_text("query,answer\na,b\n")
    with pytest.raises(UserError, match=r"lacks the columns \['wrong'\]"):
        mine(clip_folder, pairs, wrong=file)


def test_equal_scores_rank_as_in_mining(pairs, clip_folder, tmp_path):
    """All images and captions are one vector: every wrong answer ranks before every right one."""
    positives, _ = truth_of(pairs)
    images, texts = (np.eye(1, 4, dtype=np.float32).repeat(count, 0) for count in (len(pairs.images), len(pairs)))
    expected, _ = find_false_positives(images, texts, positives, k_mine=9, d_i2t=2, d_t2i=2)
    captions, names = pairs.captions["caption_id"][:], pairs.images["image_id"][:]
    rows = [
        (captions[row["q"]], names[row["fp"]]) if row["direction"] == "t2i" else (names[row["q"]], captions[row["fp"]])
        for row in expected.to_list()
    ]
    found, _ = find_wrong(write(tmp_path / "own.csv", rows), pairs, images, texts, positives)
    assert found.to_list() == expected.to_list()


def test_a_text_names_the_first_caption_of_that_wording(tmp_path):
    pairs = make_pairs(captions=[f"caption {k % 9}" for k in range(12)])
    images, texts = (np.eye(count, 12, dtype=np.float32) for count in (6, 12))
    positives, _ = truth_of(pairs)
    found, _ = find_wrong(write(tmp_path / "own.csv", [("Caption 1.", "i3")]), pairs, images, texts, positives)
    assert found["q"][:] == [1]
