"""Each command, once for each kind of damaged input that it reads: left out, or an error of one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import datasets
import pytest
from safetensors.torch import load_file, save_file

from repair_hf.cli.main import COMMANDS, main
from tests.hostile.damage import DEEP, cells, coco, line, whole

PAIRS, LLM = "--pairs {pairs} --split all", "--llm world/oracle --editor world --any-model"
STAGES = {
    "mine": f"mine {PAIRS} --model {{clip}} --output {{out}} --dry-run",
    "evaluate": f"evaluate {{clip}} {PAIRS} --output {{out}} --dry-run",
    "train": f"train {PAIRS} --model {{clip}} --output {{out}} --use-cpu --dry-run --per-device-train-batch-size 2",
    "synthesize": f"synthesize {PAIRS} --model {{clip}} --failures {{mined}} --output {{out}} --dry-run {LLM}",
}
COCO = "{pairs}/coco.json --image-folder {pairs}"
READ_RECORDS = (
    STAGES["train"] + " --records {records}",
    "show {records} --output {out}/sheet.html",
    "analyze {records} --output {out}",
    "annotate edits {records} --output {out}/sheet.html",
    "push records {records} --repo me/x --no-embed-source-images --dry-run",
    "push records {records} --repo me/x --dry-run",
)
READ_MODEL = (
    *STAGES.values(),
    "export blend {clip} --base world/base --weight 0.5 --output {out}",
)
RESUME = STAGES["train"].replace("{out}", "{trained}") + " --max-steps 2 --save-strategy steps --save-steps 1"
PUSH_MODEL = "push model {trained} --repo me/x --dry-run"
# commands of two words, or without options
MANY = ("world", "annotate", "export", "push")
WITH_RECIPE = [*(name for name in COMMANDS if name not in MANY), "world build", "push records"]


def unfinished(folder: Path) -> None:
    """Damage the newest checkpoint of a training that has not finished."""
    (folder / "summary.json").unlink()
    (folder / "checkpoint-2" / "trainer_state.json").write_bytes(DEEP)


def other_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["logit_scale"].add_(1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def address(column: str):
    return cells(column, [{"bytes": None, "path": "http://127.0.0.1:9/x.png"}])


EMPTY, CUT = whole("captions.jsonl", b""), whole("summary.json", b'{"steps')
NO_WEIGHTS = whole("model.safetensors", b"")
TABLE = [  # commands, the folder that is damaged and how, the exit code, and words of what is said
    ([STAGES[name] for name in ("mine", "evaluate", "train")], "pairs", line(DEEP), 0, "rows in another format"),
    ([*STAGES.values(), "show {records} --pairs {pairs} --output {out}/sheet.html"], "pairs", EMPTY, 2, "usable row"),
    ([STAGES["mine"].replace("{pairs}", COCO)], "pairs", coco(["a"]), 0, "rows in another format"),
    ([STAGES["train"].replace("{pairs}", COCO)], "pairs", whole("coco.json", b"[]"), 2, "has no usable row"),
    (READ_RECORDS, "records", address("edit_image"), 2, "1 images of `edit_image` cannot be used"),
    (READ_RECORDS[1:], "records", address("gt_image"), 2, "1 images of `gt_image` cannot be used"),
    (READ_MODEL, "clip", NO_WEIGHTS, 2, "{clip}"),
    ([PUSH_MODEL], "trained", NO_WEIGHTS, 2, "{trained}"),
    ([STAGES["mine"].replace("{out}", "{mined}"), RESUME], "clip", other_weights, 2, "model_digest ("),
    ([STAGES["synthesize"].replace("--any-model", "")], "clip", other_weights, 2, "were made with"),
    ([READ_RECORDS[-1]], "records", CUT, 2, "is damaged"),
    ([READ_RECORDS[-1]], "records", whole("summary.json", b'{"paid": 1}'), 2, "is damaged"),
    ([PUSH_MODEL], "trained", CUT, 2, "is damaged"),
    ([RESUME], "trained", unfinished, 0, "Left aside, as incomplete"),
    ([STAGES["train"] + " --resume-from-checkpoint {trained}/checkpoint-2"], "trained", unfinished, 2, "not a whole"),
    ([f"{words} --config {{recipe}}" for words in WITH_RECIPE], "recipe", lambda file: file.write_bytes(b"- 1"), 2,
     "expected keys and values"),
]  # fmt: skip


@pytest.fixture(scope="module")
def good(pairs_folder, clip_folder, illustrated_folder, tmp_path_factory) -> dict[str, Path]:
    """Folders that every command takes."""
    mined = tmp_path_factory.mktemp("mined")
    assert main(f"mine --pairs {pairs_folder} --split all --model {clip_folder} --output {mined}".split()) == 0
    folders = {"pairs": pairs_folder, "clip": clip_folder, "records": illustrated_folder, "mined": mined}
    folders["trained"] = tmp_path_factory.mktemp("whole") / "trained"
    assert main(RESUME.replace(" --dry-run", "").format(**folders).split()) == 0
    return folders


@pytest.mark.parametrize(
    ("words", "kind", "spoil", "code", "wanted"), [(words, *row) for commands, *row in TABLE for words in commands]
)
def test_it_is_left_out_or_an_error_of_one_line(
    words, kind, spoil, code, wanted, good, tmp_path, tmp_path_factory, monkeypatch, capsys, caplog
):
    folder = tmp_path_factory.mktemp("damaged") / kind
    if kind != "recipe":
        shutil.copytree(good[kind], folder)
    spoil(folder)
    folders = good | {kind: folder, "out": tmp_path / "out"}
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
