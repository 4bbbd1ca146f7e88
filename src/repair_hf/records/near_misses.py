"""Export records as a test of their own, in the columns of Winoground or SugarCrepe.

| columns of | a row |
|---|---|
| `winoground` | `image_0` with its `caption_0`, `image_1` with its `caption_1` |
| `sugarcrepe` | `image`, its `caption`, and a `negative_caption` |

A record gives a row for the ground truth and one for the edit. The query and this match are the first pair. The second
is the false positive with its own caption or image in the pairs; a record without one gives rows only where the
columns need none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, Features, Image, Value

from repair_hf.pairs.dataset import Pairs
from repair_hf.records.cards import write_card
from repair_hf.records.dataset import Place
from repair_hf.records.triplets import Counterparts, export, undecoded_records, write_rows
from repair_hf.runtime.options import UserError

Columns = Literal["winoground", "sugarcrepe"]

_TEXT, _IMAGE = Value("string"), Image()
_NAMES = {"id": _TEXT, "kind": _TEXT, "image_id": _TEXT}
FEATURES = {
    "winoground": Features(_NAMES, image_0=_IMAGE, image_1=_IMAGE, caption_0=_TEXT, caption_1=_TEXT),
    "sugarcrepe": Features(_NAMES, image=_IMAGE, caption=_TEXT, negative_caption=_TEXT),
}


def export_near_misses(
    records: Place | Sequence[Place],
    pairs: Pairs,
    output: str | Path,
    *,
    columns: Columns = "winoground",
    revision: str | None = None,
) -> dict[str, int]:
    """Write records as a test in the columns of another, as `repair-hf export near-misses` does.

    Args:
        records: Folders, Hub ids or datasets, as for `load_records`; of a split that no model is trained on.
        pairs: The pairs that they were made from.
        output: Folder to write; a finished one is left as it is. `load_dataset(output, split="test")` reads it.
        columns: `winoground` or `sugarcrepe`.
        revision: Tag, branch or commit of records on the Hub.

    Returns:
        The number of rows of each kind, such as `i2t_truth`.

    Raises:
        UserError: If no record gives a row, an image cannot be read, or the folder holds something else.

    Example:
        >>> export_near_misses("runs/near-misses", load_pairs("data/mine", split="test"), "runs/regression-test")
    """
    if columns not in FEATURES:
        raise UserError(f"`columns` takes {' or '.join(FEATURES)}, got {columns!r}.")
    write = partial(_write, columns=columns)
    choices: Any = {"revision": revision, "columns": columns}
    return export("near-misses", write, records, pairs, output, **choices)


def near_miss_rows(records: Dataset, counterpart_of: Counterparts) -> Iterator[dict[str, Any]]:
    """Yield the rows of both forms, with the columns of both; images are cells of bytes or a path.

    The second pair lacks what the pairs do not hold.
    """
    for record, (q, gt, fp, edit) in undecoded_records(records):
        direction, other = record["direction"], counterpart_of(record)
        for measure, match in (("truth", gt), ("edit", edit)):
            image, caption = (match, q) if direction == "t2i" else (q, match)
            image_1, negative = (fp, other) if direction == "t2i" else (other, fp)
            yield {
                "id": f"{record['record_id']}/{measure}",
                "kind": f"{direction}_{measure}",
                "image_id": record["gt_id" if direction == "t2i" else "q_id"],
                "image": image,
                "image_0": image,
                "image_1": image_1,
                "caption": caption,
                "caption_0": caption,
                "caption_1": negative,
                "negative_caption": negative,
            }


def _write(records: Dataset, pairs: Pairs, folder: Path, *, columns: str) -> dict[str, int]:
    counts: Counter[str] = Counter()

    def rows() -> Iterator[dict[str, Any]]:
        for row in near_miss_rows(records, Counterparts(pairs)):
            wanted = {name: row[name] for name in FEATURES[columns]}
            if None not in wanted.values():
                counts[row["kind"]] += 1
                yield wanted

    pattern, count = write_rows(folder / "data", rows(), FEATURES[columns])
    if not count:
        raise UserError("No record names a false positive of these pairs. Give the pairs that the records are from.")
    found = dict(sorted(counts.items()))
    write_card(folder, "near_misses", pattern=pattern, columns=columns, counts=found, split=pairs.source.split)
    return found
