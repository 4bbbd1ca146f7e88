"""The result of each query as `ranks.parquet`, so that two models can be compared query by query later.

One row per query, first the captions (`t2i`), then the images (`i2t`), each in the order of the pairs:

| column | meaning |
|---|---|
| `model` | the short name of the model |
| `direction` | `t2i` (a caption looks for its image) or `i2t` |
| `q_id` | the caption or image of the query |
| `gt_id`, `gt_score`, `gt_rank` | its best-ranked annotated answer: id, cosine, rank from 1 (pessimistic in ties) |
| `fp_id`, `fp_score` | the best-ranked wrong answer; null if every candidate is right |

The first candidate is `gt_id` if `gt_rank` is 1, else `fp_id`. `gt_score - fp_score` is the query's margin.
Confidence intervals resample by image: `gt_id` of a caption, `q_id` of an image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.mining.queries import Ranking
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.files import read_table
from repair_hf.runtime.options import UserError

FILE = "ranks.parquet"
COLUMNS = "model direction q_id gt_id gt_score gt_rank fp_id fp_score".split()


def rank_table(rankings: Mapping[str, Ranking], pairs: Pairs, model: str) -> pa.Table:
    """Make the table of a model's ranks from both directions, with a wrong answer per query if there is one."""
    ids = {"image": pairs.images["image_id"][:], "caption": pairs.captions["caption_id"][:]}
    ids = {kind: np.array(names, object) for kind, names in ids.items()}
    parts = []
    for direction, query, candidate in (("t2i", "caption", "image"), ("i2t", "image", "caption")):
        ranking, queries, candidates = rankings[direction], ids[query], ids[candidate]
        has_fp = ranking.fp[:, 0] >= 0
        fp_id = np.where(has_fp, candidates[ranking.fp[:, 0]], None)
        columns = {
            "model": pa.array([model] * len(queries)),
            "direction": pa.array([direction] * len(queries)),
            "q_id": pa.array(queries, pa.string()),
            "gt_id": pa.array(candidates[ranking.gt], pa.string()),
            "gt_score": ranking.gt_score,
            "gt_rank": ranking.gt_rank,
            "fp_id": pa.array(fp_id, pa.string()),
            "fp_score": pa.array(ranking.fp_score[:, 0], mask=~has_fp),
        }
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def save_table(table: pa.Table, path: Path) -> None:
    """Write a table, atomically."""
    draft = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, draft)
    draft.replace(path)


def load_table(path: Path, which: str, needs: Iterable[str]) -> pa.Table:
    """Read a table with the columns `needs`; a missing file is an error that says which folder to give."""
    if not path.is_file():
        raise UserError(f"{path.parent} holds no {path.name}; give the folder {which}.")
    return read_table(path, needs=needs)


def load_ranks(folder: str | Path, file: str = FILE) -> pa.Table:
    """Read the ranks of a model from the folder of its evaluation.

    Raises:
        UserError: If the file is missing.
    """
    return load_table(Path(folder) / file, "that `repair-hf evaluate` wrote for one model", COLUMNS)


def ranks_by_direction(table: pa.Table) -> dict[str, np.ndarray]:
    """Return the rank of each query's best answer by direction, in the order of the pairs."""
    direction, rank = (table[name].to_numpy() for name in ("direction", "gt_rank"))
    return {name: rank[direction == name] for name in DIRECTIONS}
