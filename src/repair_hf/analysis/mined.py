"""What `repair-hf mine` found: failures to look at, and the counts that say whether a repair is worth its price."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from repair_hf.analysis.record_sample import RecordSample, draw_places
from repair_hf.analysis.report import Finding
from repair_hf.analysis.run_data import PairsPlace, recorded_pairs, synthesis_folders
from repair_hf.analysis.tables import SIDES, percent
from repair_hf.mining.failures import FILE, REMEDY, load_failures, miner_of
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.wording import bare_caption
from repair_hf.records.columns import DIRECTIONS, MODALITIES, SOURCES
from repair_hf.runtime.files import intact, read_json
from repair_hf.runtime.options import UserError

FAR = 100  # false positives ahead: the annotation may be wrong
WEAK = 0.9  # of queries: a retriever that ranks fewer ground truths within `FAR` says nothing about annotations
TIE = 0.01  # of cosine: both answers may be right
NEAR = 0.95  # cosine of two images that show nearly the same


@dataclass(frozen=True)
class Mined:
    """Mined failures with their pairs."""

    folder: Path
    table: pd.DataFrame  # with `margin`, the cosine of the false positive minus that of the ground truth, and `ahead`
    pairs: Pairs


def is_mined(place: str | Path) -> bool:
    """Whether a place is a folder of `repair-hf mine`, and not that of a run with records."""
    return (Path(place) / FILE).is_file() and not synthesis_folders(Path(place))


def load_mined(place: str | Path, pairs: PairsPlace = None) -> Mined:
    """Load a folder of `repair-hf mine`; `pairs` are those of its options by default, or say where they are now.

    Raises:
        UserError: If its pairs are not on record, not where they were, or others.
    """
    folder, table = Path(place), load_failures(place).with_format("arrow")[:].to_pandas()
    table = table.assign(margin=table["fp_score"] - table["gt_score"], ahead=table["fp_rank"] < table["gt_rank"])
    mined = Mined(folder, table, recorded_pairs(folder, pairs))
    _check_pairs(mined)
    return mined


def sample_failures(mined: Mined, *, n: int, direction: str | None = None) -> RecordSample:
    """Take failures whose false positive outranks the ground truth; others too only if there is none.

    In each direction these are the ones of the largest margin, and the largest comes first.

    Raises:
        UserError: If there is nothing to draw.
    """
    table = mined.table
    is_wanted = table["ahead"].to_numpy() | (not table["ahead"].any())
    drawn, counts = draw_places(table["direction"].tolist(), is_wanted, n=n, direction=direction, seed=0)
    if not drawn:
        raise UserError(f"Nothing to draw: {mined.folder} holds no failure of {direction or 'any direction'}.")
    retriever = miner_of(mined.folder)
    share = table["direction"].iloc[drawn].value_counts()  # of each direction, as many as were drawn
    ordered = table[is_wanted].sort_values(["direction", "margin"], ascending=False, kind="stable")  # t2i first
    largest = [own.head(share.get(direction, 0)) for direction, own in ordered.groupby("direction", sort=False)]
    rows = [_row(row, mined.pairs) | {"retriever": retriever} for row in pd.concat(largest).to_dict("records")]
    return RecordSample(rows, counts, "mined", n_mined=len(table))


def questions(mined: Mined) -> Finding:
    """Count what speaks against a repair: wrong annotations, answers that fit as well, and duplicates."""
    table, cosine = mined.table, _image_cosines(mined)
    texts = [bare_caption(text) for text in mined.pairs.captions["caption"][:]]
    images_of_text = pd.Series(mined.pairs.caption_image).groupby(texts).nunique()
    captions = table["q"].where(table["direction"] == "t2i", table["fp"])  # of each failure
    is_shared = images_of_text[[texts[place] for place in captions]].to_numpy() > 1
    share_within = (table.drop_duplicates(["direction", "q"])["gt_rank"] <= FAR).mean()
    checks = {
        f"Are both right? The two cosines differ by less than {TIE:g}": (table["margin"] < TIE).to_numpy(),
        "Equal captions? Other images have the very caption": is_shared,
    }
    note = (
        "Counted among the failures whose false positive outranks the ground truth. A large share means that the data "
        "should be mended first: the audit drops such failures, and you pay for it."
    )
    if share_within >= WEAK:
        is_far = (table["gt_rank"] > FAR).to_numpy()
        checks = {f"Wrong annotations? {FAR} or more answers rank before the ground truth": is_far} | checks
    else:
        note += (
            f" Annotations cannot be judged by this retriever: it ranks the ground truth of only {share_within:.0%} "
            f"of the mined queries within {FAR}."
        )
    if cosine is None:
        note += " Images were not compared: their vectors are no longer stored."
    else:
        checks[f"Copies? The right and the wrong image have a cosine of {NEAR:g} or more"] = cosine >= NEAR
    counts = pd.DataFrame({"question": list(checks)})
    cells = counts.copy()
    for direction in DIRECTIONS:
        is_counted = (table["ahead"] & (table["direction"] == direction)).to_numpy()
        total, hits = int(is_counted.sum()), [int((is_counted & is_hit).sum()) for is_hit in checks.values()]
        counts[direction] = hits
        counts[f"{direction}, of"] = total
        cells[f"{SIDES[direction]}, of {total:,}"] = [f"{count:,} ({percent(count, total)})" for count in hits]
    return Finding("questions", "Is a repair worth it?", note, cells, data=counts)


def _image_cosines(mined: Mined) -> np.ndarray | None:
    """Return the cosine of the right image and the wrong one of each failure, (n,); None without stored vectors."""
    summary = mined.folder / "summary.json"
    files = read_json(summary, remedy=REMEDY).get("vectors") if summary.is_file() else None
    if not files or not Path(files[0]).is_file():
        return None
    with intact(Path(files[0]), REMEDY):
        vectors = np.load(files[0], mmap_mode="r")  # (N, D), unit
    if len(vectors) != len(mined.pairs.images):
        return None
    table, owner = mined.table, mined.pairs.caption_image
    is_t2i = (table["direction"] == "t2i").to_numpy()
    q, gt, fp = (table[role].to_numpy() for role in SOURCES)
    right = np.where(is_t2i, gt, q)
    wrong = np.where(is_t2i, fp, owner[np.where(is_t2i, 0, fp)])
    return np.einsum("nd,nd->n", vectors[right], vectors[wrong])


def _check_pairs(mined: Mined) -> None:
    ids = {"image": mined.pairs.images["image_id"][:], "text": mined.pairs.captions["caption_id"][:]}
    for row in mined.table.head(FAR).to_dict("records"):
        for role in SOURCES:
            known, place = ids[MODALITIES[row["direction"]][role]], row[role]
            if place >= len(known) or row.get(f"{role}_id", known[place]) != known[place]:
                raise UserError(f"{mined.folder} was mined from other pairs. Give its own --pairs and --split.")


def _row(row: dict[str, Any], pairs: Pairs) -> dict[str, Any]:
    """Return a failure in the columns of a record, with its margin and without an edit."""
    for role in SOURCES:
        if MODALITIES[row["direction"]][role] == "text":
            row[f"{role}_text"] = pairs.captions[row[role]]["caption"]
        else:
            row[f"{role}_image"] = pairs.images[row[role]]["image"]
    return row
