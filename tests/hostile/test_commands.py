"""Each command, once for each kind of damaged input or file of ours that it reads: left out, or a one-line error."""

from __future__ import annotations

import shutil
from pathlib import Path

import datasets
import pytest
from safetensors.torch import load_file, save_file

from repair_hf.cli.main import COMMANDS, main
from tests.hostile.damage import DEEP, cells, coco, column, line, whole

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
MINE, TRAIN, EVALUATE = STAGES["mine"].replace("{out}", "{mined}"), STAGES["train"], STAGES["evaluate"]
SYNTHESIZE, CHECKED = STAGES["synthesize"], STAGES["synthesize"].replace("--any-model", "")
_, SHOW, ANALYZE, *_, PUSH_RECORDS = READ_RECORDS
AGAIN = "is damaged … Delete its folder, and make it again with `repair-hf mine`"
REMAKE = "is damaged … Delete this file, and run the command that made its folder again"
FAILURES = "failures.parquet"
# Commands, of which the default run takes the first; the damaged folder, and how; the exit code; words that are said.
TABLE = [
    ([STAGES[name] for name in ("mine", "evaluate", "train")], "pairs", line(DEEP), 0, "rows in another format"),
    ([*STAGES.values(), "show {records} --pairs {pairs} --output {out}/sheet.html"], "pairs", EMPTY, 2, "usable row"),
    ([STAGES["mine"].replace("{pairs}", COCO)], "pairs", coco(["a"]), 0, "rows in another format"),
    ([STAGES["train"].replace("{pairs}", COCO)], "pairs", whole("coco.json", b"[]"), 2, "has no usable row"),
    (READ_RECORDS, "records", address("edit_image"), 2, "1 images of `edit_image` cannot be used"),
    (READ_RECORDS[1:], "records", address("gt_image"), 2, "1 images of `gt_image` cannot be used"),
    (READ_MODEL, "clip", NO_WEIGHTS, 2, "{clip}"),
    ([PUSH_MODEL], "trained", NO_WEIGHTS, 2, "{trained}"),
    ([MINE, RESUME], "clip", other_weights, 2, "model_digest ("),
    ([CHECKED], "clip", other_weights, 2, "were made with"),
    ([PUSH_RECORDS], "records", CUT, 2, "is damaged"),
    ([PUSH_RECORDS], "records", whole("summary.json", b'{"paid": 1}'), 2, "is damaged"),
    ([PUSH_MODEL], "trained", CUT, 2, "is damaged"),
    ([RESUME], "trained", unfinished, 0, "Left aside, as incomplete"),
    ([TRAIN + " --resume-from-checkpoint {trained}/checkpoint-2"], "trained", unfinished, 2, "not a whole"),
    ([MINE], "mined", whole("summary.json", b'{"directions"'), 2, f"{{mined}}/summary.json {REMAKE}"),
    ([MINE], "mined", whole("summary.json", b"{}"), 2, "it lacks ['directions', 'positives_by_equal_text']"),
    ([MINE], "mined", whole("config.yaml", b"a: [1"), 2, f"{{mined}}/config.yaml {REMAKE}"),
    ([MINE], "mined", whole("config.yaml", b"\xff\xfe\x00"), 2, f"{{mined}}/config.yaml {REMAKE}"),
    ([CHECKED], "mined", whole("config.yaml", b"{"), 2, f"{{mined}}/config.yaml {AGAIN}"),
    ([SYNTHESIZE], "mined", whole(FAILURES, b"PAR1" * 9), 2, f"{{mined}}/failures.parquet {AGAIN}"),
    ([SYNTHESIZE], "mined", whole(FAILURES, b""), 2, f"{{mined}}/failures.parquet {AGAIN}"),
    ([SYNTHESIZE], "mined", column(FAILURES, "fp_score"), 2, "Failures lack ['fp_score']; they have"),
    ([SYNTHESIZE], "mined", column(FAILURES, "q", "x"), 2, "Failures have a column of another type"),
    ([SYNTHESIZE], "mined", column(FAILURES, "q", -1), 2, "were mined from other pairs"),
    ([SYNTHESIZE], "mined", column(FAILURES, "direction", "t3i"), 2, "got {{'t3i'}}, or an empty cell"),
    ([EVALUATE.replace("{out}", "{evaluated}") + " --resamples 9"], "evaluated", whole("summary.json", b"[]"), 2,
     "expected keys and values, got a list"),
    ([SHOW], "records", whole("records", b"PAR1" * 9), 2, "is damaged"),
    ([TRAIN + " --records {records}"], "records", column("records", "fp_id"), 2, "Records lack the columns ['fp_id']"),
    ([ANALYZE], "records", column("dropped", "reason"), 2, "Dropped failures lack the columns ['reason']"),
    ([f"{words} --config {{recipe}}" for words in WITH_RECIPE], "recipe", lambda file: file.write_bytes(b"- 1"), 2,
     "expected keys and values"),
]  # fmt: skip


@pytest.fixture(scope="module")
def good(pairs_folder, clip_folder, illustrated_folder, tmp_path_factory) -> dict[str, Path]:
    """Folders that every command takes."""
    made, folders = tmp_path_factory.mktemp("whole"), {"pairs": pairs_folder, "clip": clip_folder}
    folders |= {"records": illustrated_folder} | {name: made / name for name in ("mined", "trained", "evaluated")}
    for words in (MINE, RESUME, EVALUATE.replace("{out}", "{evaluated}") + " --resamples 9"):
        assert main(words.replace(" --dry-run", "").format(**folders).split()) == 0
    return folders


@pytest.mark.parametrize(
    ("words", "kind", "spoil", "code", "wanted"),
    [
        pytest.param(words, *row, marks=[pytest.mark.slow] * (words != commands[0]))
        for commands, *row in TABLE
        for words in commands
    ],
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
    refused_by_both = code and kind != "trained" and words.partition(" ")[0] in STAGES  # the run and its dry run
    for typed in (words, words.replace(" --dry-run", "")) if refused_by_both else (words,):
        capsys.readouterr()
        assert main([word.format(**folders) for word in typed.split()]) == code, capsys.readouterr().err
        printed = capsys.readouterr().err
        errors = [line for line in printed.splitlines() if not line.startswith(("WARNING ", "INFO "))]
        assert all(part in printed + caplog.text for part in wanted.format(**folders).split(" … ")), printed
        assert "Traceback" not in printed
        assert len(errors) == (code != 0) and all(len(line) < 1200 for line in errors), errors
        assert code == 0 or not list(tmp_path.iterdir())
