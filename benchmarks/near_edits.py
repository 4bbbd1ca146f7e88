"""Does it matter how near an edit is to its source, or whose error it repairs? Trained in the toy world.

    python benchmarks/near_edits.py --study runs/study

It reads what `repair-hf study --config recipes/study/toy.yaml --methods repair wo-failure` leaves in its folder: edits
of failures (`repair`), and edits of random wrong answers (`wo-failure`). It trains on the nearest and on the farthest
half of the first (by the base's cosine of edit and false positive, in each direction), and on as many of the second,
with the edits in the batch or in grids. Eight rows with three seeds take ten minutes on one core.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean

import numpy as np
from common import print_table
from datasets import Dataset, concatenate_datasets

from repair_hf import RepairConfig, evaluate, load_pairs, load_records, train
from repair_hf.toyworld.renderer import read_scene
from repair_hf.toyworld.scenes import facts_of

BASE = "world/base"
MEASURES = ("i2t_R@1", "t2i_R@1", "near_misses_i2t_truth", "near_misses_t2i_truth")
SETTINGS = {"num_train_epochs": 2, "learning_rate": 3e-4, "per_device_train_batch_size": 128, "report_to": "none"}


def main() -> None:
    """Print how near the edits of each set are, and what a training on them gains."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--study", type=Path, default=Path("runs/study"), help="folder of the study")
    asked.add_argument("--seeds", type=int, default=3, help="trainings of each row")
    wanted = asked.parse_args()
    data = wanted.study / "small"
    pairs, test = (load_pairs(data / "world", split=split) for split in ("train", "test"))
    shown = {row["image_id"]: facts_of(read_scene(row["image"])) for row in pairs.images}
    sets = halves(load_records(data / "repair"), load_records(data / "wo-failure"))
    rows = []
    for name, records in sets.items():
        near, facts = mean(records["edit_similarity"]), mean(changed_facts(records, shown))
        for loss in ("batch", "grid"):
            found = []
            for seed in range(wanted.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    config = RepairConfig(folder, seed=seed, loss=loss, **SETTINGS)
                    train(BASE, pairs, records, config)
                    near_misses = [str(data / "near-misses-test" / "records")]
                    metrics = evaluate([folder], test, near_misses=near_misses, resamples=100)
                    found.append(next(iter(metrics.values())))
            values = [f"{100 * mean(one[measure] for one in found):.1f}" for measure in MEASURES]
            rows.append([name, loss, f"{len(records):,}", f"{near:.2f}", f"{facts:.1f}", *values])
    print_table(["edits of", "loss", "edits", "cosine", "facts", *MEASURES], rows)


def halves(failures: Dataset, wrong_answers: Dataset) -> dict[str, Dataset]:
    """Return the nearest and the farthest half of the edits of failures, and as many of random wrong answers."""
    found = {}
    for name, records in (("failures", failures), ("random wrong answers", wrong_answers)):
        near, far = [], []
        for way in ("i2t", "t2i"):
            size = sum(each == way for each in failures["direction"]) // 2
            rows = np.flatnonzero(np.array(records["direction"]) == way)
            rows = rows[np.argsort(np.array(records["edit_similarity"])[rows], kind="stable")]
            far.append(records.select(rows[:size]))
            near.append(records.select(rows[-size:]))
        found |= {f"{name}, nearest": concatenate_datasets(near), f"{name}, farthest": concatenate_datasets(far)}
    return found


def changed_facts(records: Dataset, shown: dict[str, dict]) -> list[int]:
    """Count the facts in which each edited image differs from the picture that it was made from."""
    counts = []
    for row in records.filter(lambda way: way == "t2i", input_columns="direction"):
        before, after = shown[row["fp_id"]], facts_of(read_scene(row["edit_image"]))
        counts.append(sum(before.get(slot) != after.get(slot) for slot in before.keys() | after.keys()))
    return counts


if __name__ == "__main__":
    main()
