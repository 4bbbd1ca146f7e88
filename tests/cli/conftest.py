"""Records with all their pictures."""

from pathlib import Path

import pytest
from datasets import Dataset

from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.records.dataset import DROPPED_FEATURES, save_records


@pytest.fixture(scope="session")
def illustrated(pairs_folder, repaired) -> tuple[Pairs, Dataset]:
    """Pairs, and records of theirs with all pictures."""
    pairs = load_pairs(pairs_folder, split="all")
    images = {row["image_id"]: row["image"] for row in pairs.images}
    rows = []
    for row in repaired:
        roles = ("gt", "fp") if row["direction"] == "t2i" else ("q",)
        rows.append(row | {f"{role}_image": images[row[f"{role}_id"]] for role in roles} | {"edit_similarity": 0.9})
    return pairs, Dataset.from_list(rows, features=repaired.features)


@pytest.fixture(scope="session")
def illustrated_folder(illustrated, tmp_path_factory) -> Path:
    """A folder of these records and of one dropped failure."""
    folder = tmp_path_factory.mktemp("illustrated")
    failure = dict(direction="t2i", q_text="a", gt_id="red_circle.png", fp_id="red_square.png", reason="gt_invalid")
    dropped = Dataset.from_list([dict.fromkeys(DROPPED_FEATURES) | failure], features=DROPPED_FEATURES)
    save_records(folder, illustrated[1], dropped)
    return folder
