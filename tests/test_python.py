"""The Python functions as people expect them: data in memory, and wrong types."""

from __future__ import annotations

import inspect
import io
import json

import PIL.Image
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict, Features, Image, Value, load_dataset, load_from_disk

import repair_hf
from repair_hf import DualEncoder, Pairs, RepairConfig, RepairTrainer, load_pairs, load_records, mine, synthesize
from repair_hf.encoder.shipped import BASE
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.corpus import build_world


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder `photos` as `imagefolder` reads it: the toy world's pictures with a metadata.jsonl in each split."""
    home = tmp_path_factory.mktemp("script")
    world = build_world(home / "world", splits={"train": 8, "validation": 6, "test": 1})
    lines = {"train": [], "validation": []}
    for row in map(json.loads, (world / "captions.jsonl").read_text().splitlines()):
        if row["split"] in lines:
            name = row["image"].removeprefix("images/")
            place = home / "photos" / row["split"] / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes((world / "images" / name).read_bytes())
            lines[row["split"]].append(json.dumps({"file_name": name, "captions": row["captions"]}))
    for split, rows in lines.items():
        (home / "photos" / split / "metadata.jsonl").write_text("\n".join(rows))
    return home


@pytest.mark.parametrize("what", ["model", "id"])
def test_mines_with_a_model_or_an_id(what, photos):
    from transformers import CLIPModel

    pairs = load_pairs(photos / "world")
    expected = mine(str(BASE), pairs).to_list()
    assert {"q_id", "gt_id", "fp_id"} <= set(expected[0])
    assert mine(CLIPModel.from_pretrained(BASE) if what == "model" else "world/base", pairs).to_list() == expected


def test_a_dataset_in_memory_is_read_like_its_folder(photos, records_folder):
    ds = load_dataset("imagefolder", data_dir=str(photos / "photos"))

    def content(pairs):
        images = [image.tobytes() for image in pairs.images["image"]]
        return list(zip(pairs.captions["caption"], [images[place] for place in pairs.caption_image], strict=True))

    for split in ("train", "validation"):
        expected = content(load_pairs(photos / "world", split=split))
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
        "`records` must be a Dataset": lambda: RepairTrainer(model, config, pairs, None, processor, records="out"),
        "The records lack .*they have .*image": lambda: RepairTrainer(
            model, config, pairs, None, processor, records=data
        ),
        "`path_or_repo` must be a folder": lambda: load_records(model),
        "`path_or_repo` must be the annotated folder": lambda: load_records(data, audited=True),
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
