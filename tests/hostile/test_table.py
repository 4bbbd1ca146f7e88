"""Each hostile input for each reader, and each command that reads it once: left out, or an error of one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import pytest

from repair_hf.cli.main import COMMANDS, main
from tests.encoder.test_loading import BROKEN, weights
from tests.hostile import inputs, own_files

PAIRS, LLM = "--pairs {pairs} --split all", "--llm world/oracle --editor world --any-model"
STAGES = {
    "mine": f"mine {PAIRS} --model {{clip}} --output {{out}} --dry-run",
    "evaluate": f"evaluate {{clip}} {PAIRS} --output {{out}} --dry-run",
    "train": f"train {PAIRS} --model {{clip}} --output {{out}} --use-cpu --dry-run --per-device-train-batch-size 2",
    "synthesize": f"synthesize {PAIRS} --model {{clip}} --failures {{mined}} --output {{out}} --dry-run {LLM}",
}
READ_PAIRS = STAGES | {"show": "show {records} --pairs {pairs} --output {out}/sheet.html"}
COCO = "{pairs}/coco.json --image-folder {pairs}"
READ_COCO = {name: STAGES[name].replace("{pairs}", COCO) for name in ("mine", "train")}
READ_RECORDS = {
    "train": STAGES["train"] + " --records {records}",
    "show": "show {records} --output {out}/sheet.html",
    "analyze": "analyze {records} --output {out}",
    "figure": "figure case {records} --output {out}/case.svg",
    "push": "push records {records} --repo me/x --dry-run",
}
READ_MODEL = STAGES | {
    "export": "export {clip} --output {out}",
    "figure": "figure margin {records} --before {clip} --after {clip} --output {out}/margin.svg",
}
RESUME = STAGES["train"].replace("{out}", "{trained}") + " --max-steps 2 --save-strategy steps --save-steps 1"
FROM = STAGES["train"] + " --resume-from-checkpoint {trained}/checkpoint-2"
PUSH_MODEL = {"push": "push model {trained} --repo me/x --dry-run"}
READ_JUDGED = {"analyze": "analyze {judged} --output {out}"}
MADE_BEFORE = {"mine": STAGES["mine"].replace("{out}", "{mined}"), "train": RESUME}
MINED_BEFORE = {"synthesize": STAGES["synthesize"].replace("--any-model", "")}
# commands of two words, or without options
MANY = ("world", "figure", "annotate", "export", "push")
WITH_RECIPE = {name: name for name in COMMANDS if name not in MANY}
WITH_RECIPE |= {"world build": "world build", "figure grid": "figure grid", "push records": "push records"}


def rows(kind: str, commands: dict[str, str], damages: dict, code: int, readers: tuple[str, ...] = ()) -> list:
    """All damages for each command of `readers`, by default the first one, and one for the others: they read alike."""
    readers, first = readers or (next(iter(commands)),), next(iter(damages))
    return [
        pytest.param(kind, name, damage, words, code, wanted, id=f"{command}: {kind}: {name}")
        for name, (damage, wanted) in damages.items()
        for command, words in commands.items()
        if command in readers or name == first
    ]


ALL_BRACKETS = {"100,000 brackets": (inputs.DEEP, "nested more than 100 deep")}
BROKEN_MODELS = {f"{place}": (damage, "{clip}") for place, (damage, _) in enumerate(BROKEN)}
BROKEN_TRAINED = {f"{place}": (damage, "{trained}") for place, (damage, _) in enumerate(BROKEN)}
ANOTHER_MODEL = weights(lambda tensors: tensors["logit_scale"].add_(1))
TABLE = [
    *rows("pairs", {name: STAGES[name] for name in ("mine", "evaluate", "train")}, inputs.LINES, 0),
    *rows("pairs", READ_PAIRS, inputs.FILES, 2),
    *rows("coco", READ_COCO, inputs.COCO_ROWS, 0),
    *rows("coco", READ_COCO, inputs.COCO_FILES, 2),
    *rows("records", {name: READ_RECORDS[name] for name in ("show", "push")}, inputs.SOURCE_IMAGES, 2),
    *rows("records", READ_RECORDS, inputs.EDITS | inputs.RECORDS, 2, ("train", "push")),
    *rows("clip", READ_MODEL, BROKEN_MODELS, 2),
    *rows("clip", MADE_BEFORE, {"another model": (ANOTHER_MODEL, "model_digest (")}, 2),
    *rows("clip", MINED_BEFORE, {"another model": (ANOTHER_MODEL, "were made with")}, 2),
    *rows("records", {"push": READ_RECORDS["push"]}, own_files.SUMMARIES | own_files.COSTS, 2),
    *rows("trained", {"train": RESUME}, own_files.checkpoints("incomplete or damaged"), 0),
    *rows("trained", {"train from": FROM}, own_files.checkpoints("not a whole checkpoint"), 2),
    *rows("trained", PUSH_MODEL, BROKEN_TRAINED | own_files.SUMMARIES, 2),
    *rows("judged", READ_JUDGED, own_files.ANSWERS, 0),
    *rows("judged", READ_JUDGED, own_files.ITEMS, 2),
    *rows("judged", {"annotate": "annotate qc {judged} --dry-run"}, own_files.ITEMS | own_files.TASKS, 2),
    *rows("recipe", {"mine": "mine --config {recipe}"}, ALL_BRACKETS, 2),
    *rows("recipe", {name: f"{words} --config {{recipe}}" for name, words in WITH_RECIPE.items()},
          inputs.RECIPES, 2),
]  # fmt: skip


@pytest.fixture(scope="module")
def good(pairs_folder, clip_folder, illustrated_folder, tmp_path_factory) -> dict[str, Path]:
    """Folders that every command takes."""
    mined = tmp_path_factory.mktemp("mined")
    assert main(f"mine --pairs {pairs_folder} --split all --model {clip_folder} --output {mined}".split()) == 0
    folders = {"pairs": pairs_folder, "clip": clip_folder, "records": illustrated_folder, "mined": mined}
    folders |= {name: tmp_path_factory.mktemp("whole") / name for name in ("trained", "judged")}
    assert main(RESUME.replace(" --dry-run", "").format(**folders).split()) == 0
    shutil.copytree(illustrated_folder, folders["judged"])
    own_files.judged(folders["judged"])
    return folders


@pytest.fixture(scope="module")
def damaged(good, tmp_path_factory) -> Iterator[Callable[..., dict[str, Path]]]:
    """Gives the good folders with one damaged copy among them, which the commands share."""
    made: dict[tuple[str, str], Path] = {}

    def make(kind: str, name: str, damage) -> dict[str, Path]:
        place = "pairs" if kind == "coco" else kind
        if (kind, name) not in made:
            made[kind, name] = folder = tmp_path_factory.mktemp("damaged") / place
            shutil.copy(good["pairs"] / "red_circle.png", folder.parent / "secret.png")
            if kind == "recipe":
                folder.mkdir() if damage is None else folder.write_bytes(damage)
            else:
                shutil.copytree(good[place], folder)
                damage(folder)
        return good | {place: made[kind, name]}

    yield make
    inputs.LISTENER.setblocking(False)
    with pytest.raises(BlockingIOError):  # else somebody has asked
        inputs.LISTENER.accept()


@pytest.mark.parametrize(("kind", "name", "damage", "words", "code", "wanted"), TABLE)
def test_it_is_left_out_or_an_error_of_one_line(
    kind, name, damage, words, code, wanted, damaged, tmp_path, tmp_path_factory, monkeypatch, capsys, caplog
):
    folders = damaged(kind, name, damage) | {"out": tmp_path / "out"}
    monkeypatch.chdir(tmp_path)
    # a cache of its own: in another, the whole file of this name may lie, which would be loaded instead
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
    capsys.readouterr()
    assert main([word.format(**folders) for word in words.split()]) == code, capsys.readouterr().err
    printed = capsys.readouterr().err
    errors = [line for line in printed.splitlines() if not line.startswith(("WARNING ", "INFO "))]
    assert wanted.format(**folders) in printed + caplog.text
    assert "Traceback" not in printed
    assert len(errors) == (code != 0) and all(len(line) < 1200 for line in errors), errors
    assert code == 0 or not list(tmp_path.iterdir())
