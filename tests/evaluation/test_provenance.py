"""What stands with every number: data, weights and code; and what models were trained on."""

import pytest

from repair_hf.encoder.blend import find_trainings
from repair_hf.evaluation.provenance import check_unseen, describe, plain_before, provenance
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import PairsOptions, UserError
from repair_hf.runtime.stage import Stage


@pytest.fixture
def trained(pairs_folder, tmp_path):
    def write(name: str, split: str, model: str = "a/base", steps: int = 1, **options):
        """Write the folder of a training, without weights."""
        stage = Stage(
            "train",
            tmp_path / name,
            inputs={"model": model, "split": split, **options},
            items=load_pairs(pairs_folder, split=split).items,
        )
        stage.run(lambda folder: {"steps": steps})
        return str(tmp_path / name)

    return write


@pytest.fixture
def contrast(pairs_folder, tmp_path):
    """The images of a contrast set of the split `test`, and its folder as `contrast` leaves it."""
    pairs = load_pairs(pairs_folder, split="test")
    Stage("contrast", tmp_path / "contrast", items=pairs.items).run(lambda folder: {})
    return set(pairs.images["image_id"][:1]), tmp_path / "contrast"


def test_a_model_trained_on_another_split_is_certain_and_an_unknown_one_is_not(trained, contrast):
    images, folder = contrast
    models = {"base": "a/base", "plain": trained("plain", "train"), "memory": object()}
    assert check_unseen(images, str(folder), models) == {"base": False, "plain": True, "memory": False}
    (folder / "items.parquet").unlink()  # as a set on the Hub
    assert check_unseen(images, str(folder), models)["plain"] is False


def test_a_model_that_saw_them_is_an_error_also_at_second_hand(trained, contrast):
    images, folder = contrast
    seen, clean = trained("seen", "all"), trained("clean", "train")
    models = [
        seen,
        f"{seen}/checkpoint-7",
        trained("second", "train", model=seen),
        trained("by-records", "train", records=str(folder)),
        trained("by-their-split", "train", records=[clean, seen]),
    ]
    for model in models:
        with pytest.raises(UserError, match="model was trained on pictures of this set"):
            check_unseen(images, str(folder), {"model": model})


def test_repair_is_compared_with_the_models_before_it_without_records(trained):
    plain, off = trained("plain", "train"), trained("off", "train", loss="none", records="r")
    others = {"longer": trained("longer", "train", steps=2), "from-plain": trained("from-plain", "train", model=plain)}
    repaired, again = trained("repaired", "train", records="r"), trained("again", "train", records=["r", "s"])
    models = dict(base="a/base", early=repaired, plain=plain, off=off, **others, repaired=repaired, again=again)
    assert plain_before(models) == {"early": [], "repaired": ["plain", "off"], "again": ["plain", "off"]}
    of_plain = trained("of-plain", "train", model=plain, records="r")  # its parent is no baseline
    assert plain_before({"plain": plain, "repaired": of_plain}) == {"repaired": []}
    assert [folder.name for folder in find_trainings(f"{plain}/checkpoint-7")] == ["plain"]


def test_rounds_are_compared_with_as_many_trainings_in_a_row_without_records(trained):
    plain, repaired = trained("plain", "train"), trained("repaired", "train", records="r")
    later = {
        "plain-2": trained("plain-2", "train", model=plain, steps=3),
        "plain-1-of-2": trained("plain-1-of-2", "train", model=repaired, steps=3),
        "longer": trained("longer", "train", model=plain, steps=4),
        "once": trained("once", "train", steps=4),
        "repaired-2": trained("repaired-2", "train", model=repaired, steps=3, records=["r", "s"]),
    }
    found = plain_before({"plain": plain, "repaired": repaired, **later})
    assert found == {"repaired": ["plain"], "repaired-2": ["plain-2", "plain-1-of-2"]}


@pytest.mark.parametrize(
    "options, split",
    [
        ({"benchmark": "coco", "split": "validation"}, "val"),
        ({"benchmark": "coco", "split": "train", "with_restval": True}, "train+restval"),
        ({"benchmark": None, "split": "validation"}, "validation"),
    ],
)
def test_a_split_has_the_benchmarks_own_name(pairs_folder, options, split):
    pairs = load_pairs(pairs_folder, split="all")
    made = provenance(PairsOptions(pairs="x", **options), pairs, "me/clip", "0123abcd")
    assert (made["split"], made["benchmark"]) == (split, options["benchmark"])
    assert made["pairs_fingerprint"] == pairs.fingerprint
    start = f"coco, split {split}," if options["benchmark"] else f"x (not a standard benchmark), split {split},"
    assert describe({"a": made}).startswith(start) and "a: weights 0123abcd" in describe({"a": made})
