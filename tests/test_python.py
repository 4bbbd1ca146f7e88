"""The Python functions as people expect them: the folders of the commands, data in memory, and wrong types."""

from __future__ import annotations

import inspect
import io
import json
import shutil
from pathlib import Path

import PIL.Image
import pyarrow as pa
import pytest
import yaml
from datasets import Dataset, DatasetDict, Features, Image, Value, load_dataset, load_from_disk

import repair_hf
from repair_hf import (
    DualEncoder,
    Pairs,
    RepairConfig,
    RepairTrainer,
    analyze,
    evaluate,
    export_triplets,
    load_pairs,
    load_records,
    mine,
    show,
    synthesize,
    train,
)
from repair_hf.cli.main import COMMANDS, main
from repair_hf.cli.subcommands import load_command
from repair_hf.encoder.shipped import locate
from repair_hf.runtime.locks import one_writer
from repair_hf.runtime.options import UserError, neutral_names
from repair_hf.toyworld.corpus import build_world

BASE = "world/base"
MADE = {"llm": "world/oracle", "editor": "world", "candidates": 1}
FEW_STEPS = {"max_steps": 2, "per_device_train_batch_size": 4, "use_cpu": True}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    return build_world(tmp_path_factory.mktemp("python") / "world", splits={"train": 8, "validation": 6, "test": 4})


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_mine_writes_the_folder_of_its_command_and_reads_it_again(world, tmp_path, monkeypatch):
    pairs = load_pairs(world)
    failures = mine(BASE, pairs, output=tmp_path / "a", d_i2t=2)
    assert main(["mine", "--pairs", str(world), "--model", BASE, "--d-i2t", "2", "--output", str(tmp_path / "b")]) == 0
    files = [{path.relative_to(place).name for path in stamps(place)} for place in (tmp_path / "a", tmp_path / "b")]
    assert files[0] == files[1] and "items.parquet" in files[0]
    configs = [yaml.safe_load((tmp_path / name / "config.yaml").read_text()) for name in "ab"]
    assert configs[0] == configs[1] and configs[0]["pairs"] == str(world)
    before = stamps(tmp_path)
    assert mine(BASE, pairs, output=tmp_path / "a", d_i2t=2).to_list() == failures.to_list()
    assert stamps(tmp_path) == before
    with pytest.raises(UserError, match="finished result with other options: d_i2t"):
        mine(BASE, pairs, output=tmp_path / "a", d_i2t=1)
    with one_writer(tmp_path / "c"), pytest.raises(UserError, match="in use by another run"):
        mine(BASE, pairs, output=tmp_path / "c")
    monkeypatch.chdir(tmp_path)
    for model in (BASE, str(locate(BASE)), DualEncoder.from_pretrained(BASE).model):  # an id, a folder, a loaded model
        assert mine(model, pairs, d_i2t=2).to_list() == failures.to_list()
    assert stamps(tmp_path) == before and {"q_id", "gt_id", "fp_id"} <= set(failures.column_names)


@pytest.fixture(scope="module")
def tuned(world, tmp_path_factory) -> Path:
    """A folder with failures, their records, and a retriever that was trained on them."""
    folder, pairs = tmp_path_factory.mktemp("tuned"), load_pairs(world)
    mine(BASE, pairs, output=folder / "failures", d_i2t=2, max_queries=8)
    synthesize(folder / "failures", pairs, BASE, output=folder / "records", **MADE)
    train(BASE, pairs, folder / "records", RepairConfig(**FEW_STEPS), output=folder / "tuned")
    return folder


def test_from_failures_to_a_retriever(tuned, world, tmp_path):
    """What was paid and trained is not paid and trained again."""
    pairs = load_pairs(world)
    few = {"output": tmp_path / "few", "ledger": str(tuned / "records" / "ledger.sqlite"), "limit": 1}
    assert len(synthesize(tuned / "failures", pairs, BASE, **few, **MADE)) <= 2
    assert all(use["calls"] == 0 for use in json.loads((tmp_path / "few" / "summary.json").read_text())["llm"])
    before = stamps(tuned / "tuned")
    summary = train(BASE, pairs, tuned / "records", RepairConfig(**FEW_STEPS), output=tuned / "tuned")
    assert summary == json.loads((tuned / "tuned" / "summary.json").read_text())
    assert summary["steps"] == 2 and summary["fill"]["edits_t2i"] > 0
    assert stamps(tuned / "tuned") == before


@pytest.mark.slow  # each of these functions also runs as the example of its docstring, in test_docstrings.py
def test_from_a_retriever_to_a_report(tuned, world, tmp_path):
    pairs, test, records = load_pairs(world), load_pairs(world, split="test"), tuned / "records"
    metrics = evaluate([BASE, tuned / "tuned"], test, output=tmp_path / "compare", resamples=9)
    assert metrics == json.loads((tmp_path / "compare" / "metrics.json").read_text())
    assert list(metrics) == ["base", "tuned"] and (tmp_path / "compare" / "differences.json").is_file()
    alone = evaluate(BASE, test, resamples=9)["base"]
    assert alone["t2i_R@1"] == metrics["base"]["t2i_R@1"] and alone["intervals"] == metrics["base"]["intervals"]
    sample = show(records, tmp_path / "sheet.html", n=4)
    assert len(sample.rows) == 4 and (tmp_path / "sheet.html").is_file()
    findings = analyze(records, tmp_path / "report")
    assert (tmp_path / "report" / "report.html").is_file() and {"funnel", "costs"} <= {each.name for each in findings}
    assert sum(export_triplets(records, pairs, tmp_path / "triplets").values()) > 0
    assert len(load_records(records)) == len(synthesize(tuned / "failures", pairs, BASE, output=records, **MADE))


def test_options_that_do_not_affect_the_result_say_so_where_they_are_declared():
    modules = [load_command(name) for name in COMMANDS]
    groups = [getattr(module, "OPTIONS", ()) for module in modules]
    groups += [types for module in modules for types, _ in vars(module).get("ACTIONS", {}).values()]
    neutral = set().union(*(neutral_names(kind) for types in groups for kind in types))
    assert {"output", "concurrency", "max_calls", "max_usd", "report_to", "chunk_size"} <= neutral
    assert not {"seed", "k_mine", "learning_rate", "candidates", "llm", "model", "split"} & neutral


def test_a_dataset_in_memory_is_read_like_its_folder(world, records_folder, tmp_path):
    """The pictures of the world as `imagefolder` reads them, with a metadata.jsonl in each split."""
    lines = {"train": [], "validation": []}
    for row in map(json.loads, (world / "captions.jsonl").read_text().splitlines()):
        if row["split"] in lines:
            place = tmp_path / row["split"] / Path(row["image"]).name
            place.parent.mkdir(exist_ok=True)
            shutil.copyfile(world / "images" / place.name, place)
            lines[row["split"]].append(json.dumps({"file_name": place.name, "captions": row["captions"]}))
    for split, rows in lines.items():
        (tmp_path / split / "metadata.jsonl").write_text("\n".join(rows))
    ds = load_dataset("imagefolder", data_dir=str(tmp_path))

    def content(pairs):
        images = [image.tobytes() for image in pairs.images["image"]]
        return list(zip(pairs.captions["caption"], [images[place] for place in pairs.caption_image], strict=True))

    for split in lines:
        expected = content(load_pairs(world, split=split))
        assert content(load_pairs(ds, split=split, caption_column="captions")) == expected
        assert content(Pairs.from_dataset(ds, caption="captions", split=split)) == expected
        assert content(Pairs.from_dataset(ds[split].with_format("numpy"), caption="captions")) == expected
    assert len(Pairs.from_dataset(ds, caption="captions").images) == 14
    marked = ds["train"].add_column("split", ["train"] * 3 + ["test"] * 5)
    assert len(load_pairs(marked, split="test", caption_column="captions").images) == 5
    records = load_records(records_folder)
    for data in (records, DatasetDict({"train": records})):
        assert load_records(data).to_list() == records.to_list()


def test_images_of_a_dataset_stay_on_disk(tmp_path):
    picture = io.BytesIO()
    PIL.Image.effect_noise((512, 512), 99).convert("RGB").save(picture, "PNG")
    image = {"bytes": picture.getvalue(), "path": None}
    columns = Features({"image": Image(), "caption": Value("string")})
    Dataset.from_dict({"image": [image] * 40, "caption": ["a cow"] * 40}, features=columns).save_to_disk(tmp_path)
    data, before = load_from_disk(str(tmp_path)), pa.total_allocated_bytes()
    pairs = Pairs.from_dataset(data)
    assert len(pairs.captions) == 40 and pa.total_allocated_bytes() - before < 5 * len(picture.getvalue())


def wrong_types(pairs, model, processor):
    data = Dataset.from_dict({"image": [0]})
    config = RepairConfig("x", use_cpu=True)
    kind = type(model)
    return {
        "`source` must be a folder, a Hub id, a Dataset": lambda: load_pairs(model),
        "got the class CLIPModel, not an instance": lambda: load_pairs(kind),
        "`data` must be a Dataset or a DatasetDict; .* got the text 'photos'": lambda: Pairs.from_dataset("photos"),
        "`preprocessor` must be the model's processor": lambda: DualEncoder(model, type(processor)),
        "`model` must be a CLIPModel.*takes an id": lambda: DualEncoder("openai/clip", processor),
        "`id_or_folder` must be a Hub id or a folder": lambda: DualEncoder.from_pretrained(model),
        "`model` must be a CLIPModel.*class CLIPModel": lambda: mine(kind, pairs),
        "`pairs` must be Pairs, .*type Dataset": lambda: mine(model, data),
        "`processor` is needed": lambda: mine(model, pairs),
        "`failures` must be what `mine`": lambda: synthesize(pairs, pairs, model, llm="a/b", editor="a/b", output="x"),
        "has no option .'lllm'": lambda: synthesize(data, pairs, model, llm="", editor="", output="", lllm=1),
        "`args` must be a RepairConfig": lambda: RepairTrainer(model, "out", pairs),
        "`train_dataset` must be Pairs.*text 'photos'": lambda: RepairTrainer(model, config, "photos"),
        "`eval_dataset` must be Pairs": lambda: RepairTrainer(model, config, pairs, data),
        "`records` must be a Dataset": lambda: RepairTrainer(model, config, pairs, None, processor, records=7),
        "The records lack .*they have .*image": lambda: RepairTrainer(
            model, config, pairs, None, processor, records=data
        ),
        "`path_or_repo` must be a folder": lambda: load_records(model),
        "`d_i2t` must lie between 0 and `k_mine` .100., got 200": lambda: mine(model, data, d_i2t=200),
        "has the splits .'a', 'b'.; give one": lambda: load_records(DatasetDict({"a": data, "b": data})),
    }


def test_a_wrong_type_gets_one_sentence_that_names_the_right_one(pairs_folder, clip, clip_processor):
    clip.name_or_path = ""
    cases = wrong_types(load_pairs(pairs_folder, split="all"), clip, clip_processor)
    for message, call in cases.items():
        with pytest.raises(UserError, match=message) as raised:
            call()
        assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("name", [name for name in repair_hf.__all__ if not name.startswith("_")])
def test_every_public_name_is_typed_and_documented(name):
    value = getattr(repair_hf, name)
    assert inspect.getdoc(value)
    call = value.__init__ if inspect.isclass(value) else value
    if "repair_hf" in call.__module__:
        parameters = [each for each in inspect.signature(call).parameters.values() if each.name != "self"]
        assert all(each.annotation is not each.empty for each in parameters), name
