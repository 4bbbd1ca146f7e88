"""Read the order tests of ARO (Yuksekgonul et al., 2023): a caption against four shuffles of its own words.

`benchmarks/aro_order.py` writes the file, with the authors' shuffles. Each row is one case about an image of the
evaluated pairs: `caption_id`, `image_id`, `seed`, and `captions`, the true one first.

| key | meaning |
|---|---|
| `coco_order_P@1`, `flickr30k_order_P@1` | share of cases in which the true caption beats all shuffles |
| `order_P@1` | the same for other data |
| `..._P@1_ties_right` | the authors' metric: a tie counts as right |
| `..._P@1_seed_1`, ... | that of each of several seeds; the authors advise to average over five |
| `..._n_unchanged` | shuffles that left the caption unchanged: a model can then only reach a tie |
"""

from __future__ import annotations

from pathlib import Path

from repair_hf.evaluation.cases import Case, Cases, Metric, first_is_right
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.problems import quoted
from repair_hf.runtime.files import read_lines
from repair_hf.runtime.options import UserError

NEEDED = {"caption_id": str, "image_id": str, "seed": int, "captions": list}


def load_order(path: str | Path, pairs: Pairs, benchmark: str = "order") -> Cases:
    """Make the cases of a file that `benchmarks/aro_order.py` wrote for these pairs.

    `benchmark` is `coco_order` or `flickr30k_order` if the pairs are that benchmark's test split.

    Raises:
        UserError: If the file is missing, a row lacks something, or its image is not among the pairs.
    """
    if not Path(path).is_file():
        raise UserError(f"`compositional` order={path} does not exist. Write it by `python benchmarks/aro_order.py`.")
    image_row = {name: row for row, name in enumerate(pairs.images["image_id"][:])}
    cases = []
    for number, row in read_lines(Path(path)):
        if not isinstance(row, dict) or any(not isinstance(row.get(key), kind) for key, kind in NEEDED.items()):
            raise UserError(f"{path}, line {number} needs {', '.join(NEEDED)}, got {ascii(row)[:100]}.")
        if row["image_id"] not in image_row:
            raise UserError(
                f"{path}, line {number} is of image {quoted(str(row['image_id']))}, which the pairs lack. Write the "
                "file for the evaluated pairs, by `python benchmarks/aro_order.py`."
            )
        case_id, seed = f"{row['caption_id']}/{row['seed']}", str(row["seed"])
        picture = (image_row[row["image_id"]],)
        cases.append(Case(case_id, seed, picture, tuple(map(str, row["captions"])), row["image_id"]))
    if not cases or len({len(case.captions) for case in cases}) > 1 or len(cases[0].captions) < 2:
        raise UserError(f"{path} must hold cases of as many captions each, two or more.")
    unchanged = sum(case.captions[1:].count(case.captions[0]) for case in cases)
    seeds = list(dict.fromkeys(case.group for case in cases))
    by_seed = [Metric(f"P@1_seed_{seed}", "accuracy", (seed,)) for seed in seeds] if len(seeds) > 1 else []
    metrics = (Metric("P@1", "accuracy"), Metric("P@1_ties_right", "accuracy", ties_right=True), *by_seed)
    return Cases(benchmark, cases, None, first_is_right, metrics, {"n_unchanged": unchanged})
