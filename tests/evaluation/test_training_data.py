"""What models were trained on, by the folders of real stages."""

import pytest

from repair_hf.cli.main import main
from repair_hf.evaluation.training_data import check_unseen, find_trainings, plain_before
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import load_records
from repair_hf.runtime.options import UserError
from repair_hf.runtime.stage import Stage


@pytest.fixture
def trained(pairs_folder, tmp_path):
    def write(name: str, split: str, model: str = "a/base", **options):
        """Write the folder of a training, without weights."""
        stage = Stage(
            "train",
            tmp_path / name,
            inputs={"model": model, "split": split, **options},
            items=load_pairs(pairs_folder, split=split).items,
        )
        stage.run(lambda folder: {"steps": 1})
        return str(tmp_path / name)

    return write


@pytest.fixture
def near_misses(illustrated, pairs_folder, tmp_path):
    """Records about the split `test`, and their folder as `synthesize` leaves it."""
    pairs = load_pairs(pairs_folder, split="test")
    Stage("synthesize", tmp_path / "near-misses", items=pairs.items).run(lambda folder: {})
    ids = {*pairs.images["image_id"], *pairs.captions["caption_id"]}
    name = pairs.images["image_id"][0]
    row = illustrated[1][0] | {"q_id": f"{name}#0", "gt_id": name, "fp_id": name}
    assert {row["q_id"], name} <= ids
    return load_records(illustrated[1]).from_list([row], features=illustrated[1].features), tmp_path / "near-misses"


def test_a_model_trained_on_another_split_is_certain_and_an_unknown_one_is_not(trained, near_misses):
    records, folder = near_misses
    models = {"base": "a/base", "plain": trained("plain", "train"), "memory": object()}
    assert check_unseen(records, [str(folder)], models) == {"base": False, "plain": True, "memory": False}
    (folder / "items.parquet").unlink()  # as records on the Hub
    assert check_unseen(records, [str(folder)], models)["plain"] is False


def test_a_model_that_saw_them_is_an_error_also_at_second_hand(trained, near_misses):
    records, folder = near_misses
    seen, clean = trained("seen", "all"), trained("clean", "train")
    models = [
        seen,
        f"{seen}/checkpoint-7",
        trained("second", "train", model=seen),
        trained("by-records", "train", records=str(folder)),
        trained("by-their-split", "train", records=[clean, seen]),
    ]
    for model in models:
        with pytest.raises(UserError, match="model was trained on images or captions of these records"):
            check_unseen(records, [str(folder)], {"model": model})


def test_repair_is_compared_with_the_models_before_it_without_records(trained):
    plain, longer = trained("plain", "train"), trained("longer", "train", loss="none", records="r")
    repaired, again = trained("repaired", "train", records="r"), trained("again", "train", records=["r", "s"])
    models = dict(base="a/base", early=repaired, plain=plain, longer=longer, repaired=repaired, again=again)
    assert plain_before(models) == {"early": [], "repaired": ["plain", "longer"], "again": ["plain", "longer"]}
    assert [folder.name for folder in find_trainings(f"{plain}/checkpoint-7")] == ["plain"]


def test_the_command_refuses_records_that_a_model_was_trained_on(
    trained, pairs_folder, illustrated_folder, tmp_path, capsys
):
    seen = trained("seen", "train", records=str(illustrated_folder))
    words = f"--pairs {pairs_folder} --near-misses {illustrated_folder} --output {tmp_path / 'out'}".split()
    assert main(["evaluate", seen, *words]) == 2
    assert "`near_misses`" in capsys.readouterr().err and not (tmp_path / "out").exists()
