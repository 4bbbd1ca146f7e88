"""`repair-hf mine` from the command line: rows, names, table; not done twice; captions that are cut are counted."""

import json
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset
from PIL import Image

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.pairs.dataset import load_pairs


@pytest.fixture
def flags(pairs_folder, clip_folder, tmp_path) -> list[str]:
    return f"mine --pairs {pairs_folder} --split all --model {clip_folder} --output {tmp_path / 'out'}".split()


def rows(folder) -> list[dict]:
    return Dataset.from_parquet(str(folder / "failures.parquet"), cache_dir=str(folder / "cache")).to_list()


def test_names_every_item_says_what_comes_next_and_mines_once(flags, pairs_folder, tmp_path, capsys):
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
    file = tmp_path / "out" / "failures.parquet"
    before = file.stat().st_mtime_ns
    assert main([*flags, "--batch-size", "7"]) == 0  # nothing is mined again
    assert capsys.readouterr().out == printed.replace(" --failures", " --batch-size 7 --failures")
    assert file.stat().st_mtime_ns == before


def test_a_finished_result_of_other_pairs_stays(flags, pairs_folder, tmp_path, capsys):
    data = tmp_path / "data"
    shutil.copytree(pairs_folder, data)
    flags[flags.index("--pairs") + 1] = str(data)
    assert main(flags) == 0
    lines = (data / "captions.jsonl").read_text().splitlines()
    (data / "captions.jsonl").write_text("\n".join(lines[1:]))
    assert main(flags) == 2
    assert "finished result with other options: pairs_fingerprint" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["mine", "evaluate"])
def test_a_dry_run_writes_nothing(command, flags, tmp_path, capsys):
    assert main([command, *flags[1:], "--dry-run"]) == 0
    assert "12 images and 24 captions" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_images_of_equal_pixels_are_no_false_positives_of_each_other_and_are_counted(
    flags, pairs_folder, tmp_path, capsys
):
    data = shutil.copytree(pairs_folder, tmp_path / "data")
    PIL.Image.open(data / "red_circle.png").save(data / "again.png", compress_level=0)
    with (data / "captions.jsonl").open("a") as lines:
        lines.write(json.dumps({"image": "again.png", "captions": ["a round thing, seen twice"]}))
    flags[flags.index("--pairs") + 1] = str(data)
    assert main([*flags, "--k-mine", "50", "--d-i2t", "50", "--d-t2i", "50"]) == 0
    said = "excluded: 3 pairs of an image and a caption of an image alike (2 by equal pixels)"
    assert said in capsys.readouterr().out
    mined = [{row["q_id"].partition("#")[0], row["fp_id"].partition("#")[0]} for row in rows(tmp_path / "out")]
    assert {"again.png", "red_circle.png"} not in mined and {"again.png", "blue_circle.png"} in mined


@pytest.mark.parametrize("more", [[], ["--max-queries", "11"]])
def test_captions_of_equal_wording_are_one_query(more, flags, pairs_folder, tmp_path):
    """They have the same positives and so the same false positives, which would be repaired and paid for twice."""
    data = shutil.copytree(pairs_folder, tmp_path / "data")
    lines = [json.loads(line) for line in (data / "captions.jsonl").read_text().splitlines()]
    lines[5]["captions"][1] = f" {lines[0]['captions'][0].upper()}."
    (data / "captions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert main([*flags, "--pairs", str(data), *more]) == 0
    asked = [row["q_id"] for row in rows(tmp_path / "out") if row["direction"] == "t2i"]
    captions = load_pairs(data, split="all").captions
    doubled = {captions["caption_id"][row] for row in (0, 11)}
    assert len(asked) == len({*asked}) == (11 if more else 23) and len(doubled & {*asked}) <= 1
    assert more or captions["caption_id"][0] in asked


def test_one_image_has_no_wrong_answer(flags, pairs_folder, tmp_path, capsys):
    photographs = shutil.copytree(pairs_folder, tmp_path / "one")
    first = (photographs / "captions.jsonl").read_text().splitlines()[0]
    (photographs / "captions.jsonl").write_text(first)
    assert main([*flags, "--pairs", str(photographs)]) == 2
    assert "one` has one usable image in split `all`" in capsys.readouterr().err


def test_an_index_says_what_share_it_found(flags, tmp_path, capsys):
    assert main([*flags, "--search", "ivf"]) == 0
    printed, summary = capsys.readouterr().out, json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["search"] == "ivf" and summary["ranks"] == "lower bounds"
    assert summary["recall"] == {"i2t": 1.0, "t2i": 1.0}  # of so few it misses none
    assert "ivf found 100.0% (I2T), 100.0% (T2I) of the false positives of an exact search. Ranks are lower" in printed
    assert main([*flags[:-1], str(tmp_path / "exact")]) == 0
    assert "recall" not in json.loads((tmp_path / "exact" / "summary.json").read_text())
    assert [row["fp"] for row in rows(tmp_path / "out")] == [row["fp"] for row in rows(tmp_path / "exact")]


def test_a_second_stage_on_the_same_data_embeds_nothing(pairs_folder, clip_folder, tmp_path, monkeypatch):
    """Whatever its folder: vectors have one cache, named by weights, processor and items."""
    words = ["--pairs", str(pairs_folder), "--split", "all", "--model", str(clip_folder)]
    assert main(["mine", *words, "--output", str(tmp_path / "mined")]) == 0
    embedded, plain = [], (DualEncoder._embed_images, DualEncoder._embed_texts)
    monkeypatch.setattr(DualEncoder, "_embed_images", lambda *data: embedded.append(data[1]) or plain[0](*data))
    monkeypatch.setattr(DualEncoder, "_embed_texts", lambda *data: embedded.extend(data[1]) or plain[1](*data))
    assert main(["mine", *words, "--d-i2t", "2", "--output", str(tmp_path / "again")]) == 0
    assert main(["evaluate", *words, "--resamples", "5", "--output", str(tmp_path / "evaluated")]) == 0
    assert set(embedded) == {"a"}  # whose vector tells the length


def test_cached_vectors_of_another_size_are_one_line(flags, tmp_path, capsys):
    assert main(flags) == 0
    summary = tmp_path / "out" / "summary.json"
    file = Path(json.loads(summary.read_text())["vectors"][0])
    summary.unlink()  # mined again, from the vectors
    for content in (b"\x93NUMPY", np.zeros((3, 3))):
        file.write_bytes(content) if isinstance(content, bytes) else np.save(file, content)
        assert main(flags) == 2
        complaint = capsys.readouterr().err
        assert f"{file} is damaged (" in complaint and "Delete it, and run the same command again." in complaint
    file.unlink()
    assert main(flags) == 0


@pytest.fixture(scope="module")
def long_pairs(tmp_path_factory):
    folder, lines = tmp_path_factory.mktemp("long"), []
    for number in range(12):
        Image.new("RGB", (40, 30), (20 * number, 0, 90)).save(folder / f"{number}.png")
        captions = [f"a {'red ' * (40 if number == 3 else 1)}circle, number {number}", f"circle {number}"]
        lines.append(json.dumps({"image": f"{number}.png", "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("mine --k-mine 5 --d-i2t 2", "captions_cut"),
        ("evaluate --resamples 5", "n_texts_cut"),
        ("train --max-steps 1 --per-device-train-batch-size 2 --use-cpu", "captions_cut"),
    ],
)
def test_captions_that_were_cut_are_counted(words, key, long_pairs, clip_folder, tmp_path, caplog):
    command = [*words.split(), "--model", str(clip_folder), "--pairs", str(long_pairs), "--split", "all"]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    assert "1 of 24 captions were truncated to 32 tokens, the most that the model reads" in caplog.text
    assert json.loads((tmp_path / "out" / "summary.json").read_text())[key] == 1
