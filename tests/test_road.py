"""The road from the data to the paper's tables: every command of the pages, as a dry run on data of the right size."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from datasets import Dataset
from desk import blocks, lines
from huggingface_hub.constants import HF_HUB_CACHE
from ledgers import pay
from recipe_data import Photographs, cache_models, karpathy, make_records

from repair_hf.cli.main import main
from repair_hf.evaluation import aro, sugarcrepe
from repair_hf.mining.false_positives import FEATURES, with_ids
from repair_hf.pairs.benchmarks import SIZES
from repair_hf.pairs.dataset import load_pairs
from repair_hf.toyworld.parsing import build_parser

ROOT = Path(__file__).parents[1]
OTHERS = {*"git cd python python3 pip . export mkdir mv curl unzip tar".split()}  # that set the road up


def benchmarks(photographs: Photographs) -> None:
    """SugarCrepe, ARO and Winoground, of their published numbers of cases."""
    box = {f"bbox_{side}": 4 for side in aro.SIDES}
    texts = {"true_caption": "a is b", "false_caption": "b is a", "image_path": "1.jpg"} | box
    photographs.put(Path("data/aro/images/1.jpg"))
    for name, count in aro.PUBLISHED.items():
        group = ["red", "blue"] if name == "vg_attribution" else "eating"
        Path("data/aro", aro.FILES[name]).write_text(json.dumps([texts | {aro.KIND[name]: group}] * count))
    for number in range(5000):
        photographs.put(Path(f"data/sugarcrepe/val2017/{number:012}.jpg"))
    row = {"filename": f"{1:012}.jpg", "caption": "a cat", "negative_caption": "a dog"}
    for name, count in sugarcrepe.SUGARCREPE.items():
        Path(f"data/sugarcrepe/{name}.json").write_text(json.dumps([row] * count))
    rows = [{"image_0": f"a{k}", "image_1": f"b{k}", "caption_0": "a b", "caption_1": "b a"} for k in range(400)]
    Path("data/winoground/images").mkdir(parents=True)
    for row in rows:
        for name in (row["image_0"], row["image_1"]):
            photographs.put(Path(f"data/winoground/images/{name}.png"))
    Path("data/winoground/examples.jsonl").write_text("\n".join(map(json.dumps, rows)))


def earlier_results(clip: Path) -> None:
    """What commands of the road leave for later ones."""
    pairs = load_pairs("data/coco/dataset_coco.json", image_folder="data/coco", benchmark="coco30k")
    rows = [{"direction": "i2t", "q": q, "gt": 5 * q, "fp": 5 * q + 5} for q in range(5)]
    rows += [{"direction": "t2i", "q": 5 * q, "gt": q, "fp": q + 1} for q in range(5)]
    known = {"gt_score": 0.4, "fp_score": 0.5, "gt_rank": 2, "fp_rank": 1}
    failures = with_ids(Dataset.from_list([row | known for row in rows], features=FEATURES), pairs)
    Path("runs/coco30k/failures").mkdir(parents=True)
    failures.to_parquet("runs/coco30k/failures/failures.parquet")
    for folder in ("runs/coco30k", "runs/flickr30k", "runs/coco30k-study/cells/repair--seed0"):
        shutil.copytree(clip, Path(folder) / "retriever" if "study" not in folder else Path(folder))
    for records in ("runs/coco30k/records", "runs/coco30k-study/pairs/repair"):
        make_records(pairs, Path(records))
    pay(Path(records), "key")


def commands(page: str) -> list[tuple[str, ...]]:
    """The words of each command of a page that begins with `repair-hf`, or launches it, without `--dry-run`."""
    found = []
    for block in blocks((ROOT / page).read_text()):
        for line in lines(block.text) if block.language == "bash" else ():
            for part in line.split(" && "):
                words = shlex.split(re.sub(r"^[A-Z_]+=\S+ ", "", part))
                if words[0] == "accelerate":
                    words = ["repair-hf", *words[words.index("repair_hf") + 1 :]]
                assert words[0] in OTHERS | {"repair-hf"}, part
                if words[0] == "repair-hf":
                    found.append(tuple(name for word in words[1:] if word != "--dry-run" for name in expanded(word)))
    return found


def expanded(word: str) -> list[str]:
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


@pytest.fixture(scope="module")
def road(clip_folder, tmp_path_factory):
    """All data of the road, and its models as if they had been downloaded."""
    photographs = Photographs(here := tmp_path_factory.mktemp("road"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setattr("spacy.load", lambda *_, **__: build_parser())
        patch.setattr("repair_hf.evaluation.words.load_tokenizer", lambda: str.split)
        for provider in ("GEMINI", "OPENAI"):
            patch.setenv(f"{provider}_API_KEY", "none")
        for name in ("coco", "flickr30k"):
            Path(f"data/{name}").mkdir(parents=True)
            sizes = {split: size.images for split, size in SIZES[name].items()}
            if whole := sizes.pop("train+restval", 0):
                sizes["restval"] = whole - sizes["train"]
            images = Path(f"data/{name}", "flickr30k-images" if name == "flickr30k" else "")
            karpathy(Path(f"data/{name}/dataset_{name}.json"), images, sizes, photographs, is_coco=name == "coco")
        benchmarks(photographs)
        folders = cache_models(clip_folder, Path(HF_HUB_CACHE))
        earlier_results(clip_folder)
        yield
        for folder in folders:
            shutil.rmtree(folder)


@pytest.mark.slow  # 160,000 pictures, read again by each command
@pytest.mark.parametrize(
    "page, says",
    [
        (
            "docs/reproduce.md",
            ("29,000 images, 145,000 captions", "500 images, 500 captions")
            + ("113,287 images, 566,435 captions", "5,000 images and 25,010 captions"),
        ),
        (
            "recipes/aro/README.md",
            (
                "vg_relation: 23,937 cases",
                "vg_attribution: 28,748 cases",
                "coco_order: 25,010",
                "flickr30k_order: 5,000",
            ),
        ),
    ],
)
def test_every_command_of_the_road_is_rehearsed_on_data_of_the_right_size(page, says, road, capsys):
    said = []
    for words in dict.fromkeys(commands(page)):
        assert main([*words, "--dry-run"]) == 0, (words, capsys.readouterr().err)
        said.append(capsys.readouterr().out)
        assert "$" in said[-1] or words[0] not in ("study", "synthesize")
    for text in says:
        assert text in "\n".join(said), text
