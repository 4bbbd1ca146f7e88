"""`repair-hf mine` from the command line: rows, names, table; it is not done twice, and refuses mistakes."""

from __future__ import annotations

import json
import shutil

import pytest
from datasets import Dataset

from repair_hf.cli.main import main
from repair_hf.pairs.dataset import load_pairs


@pytest.fixture
def flags(pairs_folder, clip_folder, tmp_path) -> list[str]:
    return f"mine --pairs {pairs_folder} --split all --model {clip_folder} --output {tmp_path / 'out'}".split()


def rows(folder) -> list[dict]:
    return Dataset.from_parquet(str(folder / "failures.parquet"), cache_dir=str(folder / "cache")).to_list()


def test_names_every_item_and_says_what_comes_next(flags, pairs_folder, tmp_path, capsys):
    assert main(flags) == 0
    printed, found, pairs = capsys.readouterr().out, rows(tmp_path / "out"), load_pairs(pairs_folder, split="all")
    ids = {"image": pairs.images["image_id"][:], "caption": pairs.captions["caption_id"][:]}
    assert [row["direction"] for row in found] == ["t2i"] * 24 + ["i2t"] * 60
    for row in found:
        query, answer = ("caption", "image") if row["direction"] == "t2i" else ("image", "caption")
        names = (ids[query][row["q"]], ids[answer][row["gt"]], ids[answer][row["fp"]])
        assert (row["q_id"], row["gt_id"], row["fp_id"]) == names
        image, caption = (row["gt_id"], row["q_id"]) if query == "caption" else (row["q_id"], row["gt_id"])
        assert caption.startswith(image)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["directions"]["t2i"]["queries"] == 24
    assert summary["directions"]["i2t"]["false_positives"] == 60
    assert summary["positives_by_equal_text"] == 0
    assert f"next: repair-hf synthesize --pairs {pairs_folder} --split all --model" in printed
    assert f"--failures {tmp_path / 'out'}" in printed
    assert max(len(line) for line in printed.splitlines() if not line.startswith(("next", "->"))) <= 80


def test_the_same_command_again_mines_nothing(flags, tmp_path, capsys):
    assert main(flags) == 0
    first, file = capsys.readouterr().out, tmp_path / "out" / "failures.parquet"
    before = file.stat().st_mtime_ns
    assert main([*flags, "--batch-size", "7"]) == 0
    assert file.stat().st_mtime_ns == before
    assert capsys.readouterr().out == first


def test_a_finished_result_of_other_pairs_stays(flags, pairs_folder, tmp_path, capsys):
    data = tmp_path / "data"
    shutil.copytree(pairs_folder, data)
    flags[flags.index("--pairs") + 1] = str(data)
    assert main(flags) == 0
    lines = (data / "captions.jsonl").read_text().splitlines()
    (data / "captions.jsonl").write_text("\n".join(lines[1:]))
    assert main(flags) == 2
    assert "finished result of other options: pairs_fingerprint" in capsys.readouterr().err


def test_draws_queries(flags, tmp_path):
    assert main([*flags, "--max-queries", "5", "--d-i2t", "2"]) == 0
    found = rows(tmp_path / "out")
    assert [len({row["q"] for row in found if row["direction"] == way}) for way in ("t2i", "i2t")] == [5, 5]
    assert len(found) == 5 + 10


def test_false_positives_at_random_for_the_same_queries(flags, tmp_path):
    assert main(flags) == 0
    best = rows(tmp_path / "out")
    flags[flags.index("--output") + 1] = str(tmp_path / "random")
    assert main([*flags, "--false-positives", "random"]) == 0
    found = rows(tmp_path / "random")
    same = ("direction", "q_id", "gt_id", "gt_rank")
    assert [[row[name] for name in same] for row in found] == [[row[name] for name in same] for row in best]
    assert sum(row["fp_rank"] for row in found) > 1.5 * sum(row["fp_rank"] for row in best)
    summary = json.loads((tmp_path / "random" / "summary.json").read_text())
    assert summary["directions"]["i2t"]["false_positives"] == 60


def test_a_dry_run_writes_nothing(flags, tmp_path, capsys):
    assert main([*flags, "--dry-run"]) == 0
    assert "12 images and 24 captions" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--d-i2t", "101"], "`d_i2t` must lie between 0 and `k_mine` (100), got 101"),
        (["--d-i2t", "0", "--d-t2i", "0"], "`d_i2t` and `d_t2i` are both 0, and nothing would be mined"),
        (["--max-queries", "0"], "`max_queries` must be at least 1, got 0"),
        (["--search", "ivf", "--search-effort", "inf"], "`search_effort` must be above 0, got inf"),
        (["--model", "/nowhere"], "`/nowhere` is not a local folder, and cannot be loaded as a dual encoder"),
        (
            ["--model", "world/bse"],
            "`world/bse` is no folder, and the toy world's retrievers are world/base, world/base-12k, world/narrow",
        ),
        (["--split", "dev"], "has no image in split `dev`"),
        (
            ["--search-effort", "2"],
            "`search_effort` 2 needs an index, and `search` is exact; give `search` ivf or hnsw",
        ),
        (["--cache-folder", "x"], "`cache_folder` x is for the file of `cache_images`; give both, or neither"),
        (["--draft-jpegs"], "`draft_jpegs` is for the file of `cache_images`; give both, or neither"),
        (["--seed", "-1"], "`seed` must lie between 0 and 4294967295, got -1"),
    ],
)
def test_a_mistake_is_one_line(flags, words, message, tmp_path, capsys):
    assert main([*flags, *words]) == 2
    assert not (tmp_path / "out").exists()
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("repair-hf mine: error: ") and message in error


def test_one_image_has_no_wrong_answer(flags, pairs_folder, tmp_path, capsys):
    photographs = shutil.copytree(pairs_folder, tmp_path / "one")
    first = (photographs / "captions.jsonl").read_text().splitlines()[0]
    (photographs / "captions.jsonl").write_text(first)
    assert main([*flags, "--pairs", str(photographs)]) == 2
    assert "one` has one usable image in split `all`" in capsys.readouterr().err


def test_an_index_says_what_share_it_found(flags, tmp_path, capsys):
    assert main([*flags, "--search", "hnsw"]) == 0
    printed, summary = capsys.readouterr().out, json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["search"] == "hnsw" and summary["ranks"] == "lower bounds"
    assert summary["recall"] == {"i2t": 1.0, "t2i": 1.0}  # of so few it misses none
    assert "hnsw found 100.0% (i2t), 100.0% (t2i) of the true false positives; ranks are lower bounds" in printed
    assert [row["fp"] for row in rows(tmp_path / "out")] == exact_fps(flags, tmp_path)


def exact_fps(flags, tmp_path) -> list[int]:
    assert main([*flags[:-1], str(tmp_path / "exact")]) == 0
    summary = json.loads((tmp_path / "exact" / "summary.json").read_text())
    assert "recall" not in summary
    return [row["fp"] for row in rows(tmp_path / "exact")]
