"""What a user made is never overwritten, and an unfinished folder is never taken for a finished one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from repaired_world import STAGES as OF_THE_WORLD
from repaired_world import copy_linked

from repair_hf.cli.main import COMMANDS, main
from repair_hf.cli.subcommands import load_command
from repair_hf.encoder.models import load_model
from repair_hf.encoder.shipped import locate
from repair_hf.runtime.options import fields_of

PAIRS, TOY = "--pairs {made}/world --split train", "--llm world/oracle --editor world"
STAGES = {name: words.replace("{folder}", "{made}") for name, words in OF_THE_WORLD.items()}
STAGES |= {  # a folder's name, and the command that makes it
    "blend": "export blend {made}/repaired --base world/base --weight 0.5",
    "triplets": "export triplets --records {made}/records",
    "composed": "export composed --records {made}/records",
    "report": "analyze {made}/records",
}
SLOW = {  # what these write, which takes them longer
    "demo --size tiny": ["table.md", "metrics.json"],
    "study --size tiny": ["study.md", "study.json", "results.parquet"],
}


def run(words: str, made: Path) -> int:
    """Run a command in the folder of all stages, so that a copy of it has the same options."""
    with chdir(made):
        return main(words.format(made=".").split())


@pytest.fixture(scope="module")
def made(repaired_world, tmp_path_factory) -> Path:
    """A folder of each stage: a copy of those of the world, and what is made of them. Only read it."""
    folder = copy_linked(repaired_world, tmp_path_factory.mktemp("made") / "made")
    for name in ("blend", "triplets", "composed", "report"):
        assert run(f"{STAGES[name]} --output {{made}}/{name}", folder) == 0, name
    return folder


def content(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(words: str, made: Path, capsys) -> str:
    """Return the one line with which a command ends."""
    capsys.readouterr()
    assert run(words, made) == 2, words
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("repair-hf")]
    return line


# What is left to the slow tests is written as by the stage that is named beside it.
ALIKE = {"repaired": "plain", "composed": "triplets"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in [*STAGES, *SLOW]]
)
def test_no_command_overwrites_a_file_that_it_did_not_make(name, made, tmp_path, capsys):
    names = SLOW.get(name) or [path for path in content(made / name) if path.name != "versions.json"]
    for path in (tmp_path / each for each in names if not str(each).startswith(".")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    before = content(tmp_path)
    assert len(before) > 1
    assert f"{tmp_path} holds " in refused(f"{STAGES.get(name, name)} --output {tmp_path}", made, capsys)
    assert content(tmp_path) == before


PAGES = tuple(f"{words} {{records}}" for words in ("show", "annotate qc --size 1", "annotate edits --size 1"))


@pytest.mark.parametrize("words", [*PAGES[:2], pytest.param(PAGES[2], marks=pytest.mark.slow)])
def test_a_page_is_overwritten_and_another_file_is_not(words, illustrated_folder, pairs_folder, tmp_path, capsys):
    page = tmp_path / "sheet.html"
    typed = f"{words.format(records=illustrated_folder)} --pairs {pairs_folder} --output {page}"
    for _ in range(2):
        assert run(typed, tmp_path) == 0
    page.write_text("<html>mine</html>")
    assert "is not overwritten" in refused(typed, tmp_path, capsys)
    assert page.read_text() == "<html>mine</html>"


def commands() -> Iterator[tuple[str, tuple[type, ...]]]:
    """Yield the words and the options of each command."""
    for name, module in ((name, load_command(name)) for name in COMMANDS):
        if "ACTIONS" in vars(module):
            yield from ((f"{name} {action}", options) for action, (options, _) in module.ACTIONS.items())
        else:
            yield name, module.OPTIONS


def test_these_are_all_commands_that_write_to_an_output():
    writers = {words for words, options in commands() if "output" in sum(map(fields_of, options), [])}
    tested = [*STAGES.values(), *SLOW, *PAGES]
    assert writers == {word for word in writers if any(words.startswith(word) for words in tested)}


def test_a_base_and_records_are_not_overwritten_by_their_export(made, tmp_path, capsys):
    base = shutil.copytree(locate("world/base"), tmp_path / "base")
    before = content(base)
    assert "no mark of `repair-hf export blend`" in refused(
        f"export blend {{made}}/repaired --base {base} --weight 0.5 --output {base}", made, capsys
    )
    records = "export triplets --records {made}/records --output {made}/records"
    assert "belongs to `synthesize`" in refused(records, made, capsys)
    assert content(base) == before


def test_what_is_loaded_is_what_was_trained(repaired_world, tmp_path):
    """Adapters of a stopped run do not stay beside the weights of another one; files of the user do."""
    pytest.importorskip("peft")
    folder, words = tmp_path / "train", OF_THE_WORLD["plain"].format(folder=repaired_world)
    assert main([*words.split(), "--output", str(folder), "--lora-rank", "4"]) == 0
    (folder / "summary.json").unlink()
    (folder / "notes.txt").write_text("mine")
    assert main([*words.split(), "--output", str(folder)]) == 0
    loaded, alone = (load_model(place).state_dict() for place in (folder, repaired_world / "plain"))
    assert all(torch.equal(loaded[name], weights) for name, weights in alone.items())
    names = {path.name for path in folder.iterdir()}
    assert not {name for name in names if name.startswith("adapter")} and "notes.txt" in names


DOORS = (
    f"evaluate {{made}}/repaired {PAIRS}",
    f"evaluate world/base {{made}}/repaired --blends 0.5 {PAIRS} --also {{made}}/world",
    "export blend {made}/repaired --base world/base --weight 0.5",
    "export blend world/base --base {made}/repaired --weight 0.5",
    f"train {PAIRS} --model {{made}}/repaired --use-cpu --per-device-train-batch-size 4",
    f"mine {PAIRS} --model {{made}}/repaired",
    f"synthesize {PAIRS} --model {{made}}/repaired --failures {{made}}/failures {TOY}",
    "push model {made}/repaired --repo me/x --dry-run",
    f"evaluate world/base {PAIRS} --contrast {{made}}/contrast",
    f"train {PAIRS} --model world/base --records {{made}}/records --use-cpu --per-device-train-batch-size 4",
    "show {made}/records",
    "analyze {made}/records",
    "annotate edits {made}/records",
    "export triplets --records {made}/records",
    "push records {made}/records --repo me/x --dry-run",
    f"synthesize {PAIRS} --model world/base --failures {{made}}/failures {TOY}",
    "show {made}/failures",
    "analyze {made}/failures",
    f"mine {PAIRS} --model world/base",
)


@pytest.mark.parametrize("words", DOORS)
def test_an_unfinished_folder_is_an_error_of_one_line(words, made, tmp_path, capsys):
    copies = tmp_path / "made"
    shutil.copytree(made, copies, copy_function=shutil.os.link)
    named = [name for name in ("repaired", "contrast", "records", "failures", "world") if f"{{made}}/{name}" in words]
    (copies / named[0] / "summary.json").unlink()
    words += "" if words.startswith("push") else f" --output {tmp_path / 'out.html'}"
    assert f" {named[0]} is unfinished: `repair-hf " in refused(words, copies, capsys)
    assert not (tmp_path / "out.html" / "summary.json").exists()


def test_a_refused_command_leaves_a_finished_folder_as_it_was(made, repaired_world, tmp_path, capsys):
    """Here the second model is unfinished, the ledger is damaged, or an option is another."""
    for name in ("repaired", "records", "failures"):
        shutil.copytree(made / name, tmp_path / name)
    compare = f"evaluate world/base {tmp_path}/repaired --pairs {{made}}/world --split test --resamples 2"
    assert run(f"{compare} --output {tmp_path}/compare", made) == 0
    (tmp_path / "repaired" / "summary.json").unlink()
    (tmp_path / "records" / "ledger.sqlite").write_bytes(b"no database" * 999)
    before = content(tmp_path)
    synthesize, mine = (OF_THE_WORLD[name].format(folder=repaired_world) for name in ("records", "failures"))
    for name, words, wanted in (
        ("compare", compare, "is unfinished"),
        ("records", f"{synthesize} --check-edits 999", "ledger"),
        ("failures", f"{mine} --d-i2t 2", "with other options"),
    ):
        assert wanted in refused(f"{words} --output {tmp_path / name}", made, capsys)
    assert content(tmp_path) == before
