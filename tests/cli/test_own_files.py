"""Damaged files of our own and another model than the inputs' are one line, from the run and from its dry run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.shipped import BASE
from tests.hostile.damage import rewrite

LLM = "--llm world/oracle --editor world --any-model"
TRAIN = "train --pairs {pairs} --split all --model {clip} --output {out} --use-cpu --per-device-train-batch-size 4"
SYNTHESIZE = "synthesize --pairs {pairs} --split all --model {clip} --failures {mined} --output {out} " + LLM
MINE = "mine --pairs {pairs} --split all --model {clip} --output {mined}"
EVALUATE = "evaluate {clip} --pairs {pairs} --split all --output {evaluated} --resamples 9"
SHOW, ANALYZE = "show {records} --output {out}/sheet.html", "analyze {records} --output {out}"


@pytest.fixture(scope="module")
def whole(pairs_folder, clip_folder, illustrated_folder, tmp_path_factory) -> Path:
    """The folders of a mining, an evaluation and a synthesis."""
    folder = tmp_path_factory.mktemp("whole")
    names = {"pairs": pairs_folder, "clip": clip_folder, "mined": folder / "mined", "evaluated": folder / "evaluated"}
    for words in (MINE, EVALUATE):
        assert main(words.format(**names).split()) == 0
    shutil.copytree(illustrated_folder, folder / "records")
    return folder


@pytest.fixture
def names(whole, pairs_folder, clip_folder, tmp_path) -> dict[str, Path]:
    """Copies of these folders, by name."""
    copies = {path.name: shutil.copytree(path, tmp_path / path.name) for path in whole.iterdir()}
    return {"pairs": pairs_folder, "clip": clip_folder, "out": tmp_path / "out", **copies}


def complaint(words: str, names: dict[str, Path], capsys) -> str:
    """Return the one line with which a command, and its dry run if it has one, ends."""
    said = set()
    is_staged = words.split()[0] not in ("show", "analyze")
    for dry in ("", " --dry-run") if is_staged else ("",):
        capsys.readouterr()
        assert main((words + dry).format(**names).split()) == 2, words
        said |= {line for line in capsys.readouterr().err.splitlines() if line.startswith("repair-hf ")}
    assert len(said) == 1 and not names["out"].exists()
    return said.pop().partition(": error: ")[2]


def column(name: str, value=None):
    def change(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        if value is None:
            return table.remove_column(place)
        return table.set_column(place, name, pa.array([value] * len(table)))

    return change


ADVICE = "Delete this file, and run the command that made its folder again"
AGAIN = "Delete its folder, and make it again with `repair-hf mine`"


@pytest.mark.parametrize(
    ("words", "file", "damage", "wanted"),
    [
        (MINE, "mined/summary.json", b'{"directions"', ADVICE),
        (MINE, "mined/summary.json", b"{}", "it lacks ['directions', 'positives_by_equal_text']"),
        (MINE, "mined/config.yaml", b"a: [1", ADVICE),
        (MINE, "mined/config.yaml", b"\xff\xfe\x00", ADVICE),
        (EVALUATE, "evaluated/summary.json", b"[]", "expected keys and values, got a list"),
        (SYNTHESIZE, "mined/failures.parquet", b"PAR1" * 9, AGAIN),
        (SYNTHESIZE, "mined/failures.parquet", b"", AGAIN),
        (SYNTHESIZE, "mined/failures.parquet", column("fp_score"), "Failures lack ['fp_score']; they have"),
        (SYNTHESIZE, "mined/failures.parquet", column("q", "x"), "Failures have a column of another type"),
        (SYNTHESIZE, "mined/failures.parquet", column("q", -1), "were mined from other pairs"),
        (SYNTHESIZE, "mined/failures.parquet", column("direction", "t3i"), "got {'t3i'}, or an empty cell"),
        (SYNTHESIZE.replace(" --any-model", ""), "mined/config.yaml", b"{", AGAIN),
        (SHOW, "records/records", b"PAR1" * 9, "is damaged"),
        (f"{TRAIN} --records {{records}}", "records/records", column("fp_id"), "Records lack the columns ['fp_id']"),
        (ANALYZE, "records/dropped", column("reason"), "Dropped failures lack the columns ['reason']"),
    ],
)
def test_a_damaged_file_is_one_line(words, file, damage, wanted, names, capsys):
    path = names["out"].parent / file
    path = next(path.glob("*.parquet")) if path.is_dir() else path
    if callable(damage):
        rewrite(path, damage)
    else:
        path.write_bytes(damage)
    said = complaint(words, names, capsys)
    assert wanted in said and (callable(damage) or f"{path} is damaged" in said)


def test_cached_vectors_of_another_size_are_one_line(names, capsys):
    summary = names["mined"] / "summary.json"
    file = Path(json.loads(summary.read_text())["vectors"][0])
    summary.unlink()  # mined again, from the vectors
    for content in (b"\x93NUMPY", np.zeros((3, 3))):
        file.write_bytes(content) if isinstance(content, bytes) else np.save(file, content)
        assert main(MINE.format(**names).split()) == 2
        said = capsys.readouterr().err
        assert f"{file} is damaged (" in said and "Delete it, and run the same command again." in said
    file.unlink()
    assert main(MINE.format(**names).split()) == 0


@pytest.fixture
def made_with_base(names) -> None:
    """The failures and records as if `world/base` had made them."""
    digest = DualEncoder.from_pretrained(BASE, device="cpu").digest
    config = names["mined"] / "config.yaml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("model")]
    config.write_text("\n".join([*lines, "model: world/base", f"model_digest: {digest}"]))
    path = next((names["records"] / "records").glob("*.parquet"))
    rewrite(path, column("retriever", f"base@{digest}"))


@pytest.mark.usefixtures("made_with_base")
@pytest.mark.parametrize("words", [SYNTHESIZE.replace(" --any-model", ""), f"{TRAIN} --records {{records}}"])
def test_another_model_than_the_inputs_is_refused_unless_asked_for(words, names, capsys):
    said = complaint(words, names, capsys)
    assert (
        "were made with " in said and f"--model is {names['clip'].name}@" in said and "--any-model to continue" in said
    )
    for more in ("--any-model", "--model world/base"):
        assert main(f"{words} --dry-run {more}".format(**names).split()) == 0, capsys.readouterr().err


def test_the_same_weights_elsewhere_are_the_same_model(names):
    names["clip"] = shutil.copytree(names["clip"], names["out"].parent / "moved")
    assert main(f"{SYNTHESIZE.replace(' --any-model', '')} --dry-run".format(**names).split()) == 0
