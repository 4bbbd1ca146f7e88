"""What people judge in the paper, judged by the scenes of a toy world: audits, edits, kinds of errors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Image

from repair_hf.analysis.run_data import RunData, gather
from repair_hf.pairs.images import open_image
from repair_hf.records.columns import DIRECTIONS
from repair_hf.toyworld.captions import parse
from repair_hf.toyworld.mistakes import facts_of, unchanged
from repair_hf.toyworld.renderer import read_scene
from repair_hf.toyworld.scenes import ERROR_TYPES, Scene, differences, holds, satisfy
from repair_hf.toyworld.truth import scenes_of

TEXTS = ("fp_text", "edit_text")
REJECTED = ("gt_invalid", "fp_too_similar")  # criteria 1 and 2


def measure(run: str | Path) -> dict[str, Any]:
    """Count what the paper reports about its data, by the scenes, in the records of a toy world.

    Args:
        run: Folder of records, with the pairs on record and in place; or a run's folder.

    Returns:
        Shares from 0 to 1, None where there is nothing to count. Of audits, over both directions: `precision`,
        `recall`. By direction: `passed` and `deserved` of the audited failures, `criterion_1` of the rejects; of the
        retained edits `fp_wrong`, `matches`, `minimal`, and `valid`, which are those that match their query although
        the false positive did not. `error_kinds`: I2T failures that pass the audit, by kind; a failure may have
        several.

    Raises:
        UserError: If there are no records, or the pairs are not of the toy world.
    """
    data = gather(run)
    pairs = data.pairs()
    scenes = dict(zip(pairs.images["image_id"][:], scenes_of(pairs), strict=True))
    audited = _audited(data, scenes)
    edits = _edits(data, scenes)
    found: dict[str, Any] = {"audit": _agreement(audited)}
    for direction in DIRECTIONS:
        failures = audited[audited["direction"] == direction]
        rejected = failures[~failures["passed"]]
        found[direction] = {
            "failures": len(failures),
            "passed": _share(failures["passed"]),
            "deserved": _share(failures["good"]),
            "criterion_1": _share(rejected["reason"] == REJECTED[0]),
        }
        of_edits = edits[edits["direction"] == direction]
        found[direction] |= {"edits": len(of_edits)}
        found[direction] |= {name: _share(of_edits[name]) for name in ("fp_wrong", "matches", "minimal", "valid")}
    wrong = audited[(audited["direction"] == "i2t") & audited["passed"] & (audited["kinds"].str.len() > 0)]
    counts = Counter(kind for kinds in wrong["kinds"] for kind in kinds)
    found["error_kinds"] = {kind: counts[kind] / len(wrong) if len(wrong) else None for kind in ERROR_TYPES}
    return found


def _audited(data: RunData, scenes: dict[str, Scene]) -> pd.DataFrame:
    """Return the failures with a verdict: `passed` by it, `good` by the scenes, `kinds` of what is wrong."""
    columns = ["direction", "q_id", "gt_id", "fp_id", "q_text", "gt_text", "fp_text", "gt_reason"]
    dropped = data.dropped[[*columns, "reason"]]
    failures = pd.concat([data.kept[columns].assign(reason=None), dropped], ignore_index=True)
    failures = failures[failures["gt_reason"].notna()]
    wrong = [_wrong(row, scenes) for row in failures.to_dict("records")]
    return failures.assign(
        passed=~failures["reason"].isin(REJECTED),
        good=np.array([not gt and bool(fp) for gt, fp in wrong], bool),
        kinds=[sorted({gap.kind for gap in fp}) for _, fp in wrong],
    )


def _wrong(row: dict[str, Any], scenes: dict[str, Scene]) -> list[Any]:
    """Return the differences of query and ground truth, and those of query and false positive."""
    if row["direction"] == "t2i":
        return [differences(parse(row["q_text"]), scenes[row[f"{role}_id"]]) for role in ("gt", "fp")]
    return [differences(parse(row[f"{role}_text"]), scenes[row["q_id"]]) for role in ("gt", "fp")]


def _edits(data: RunData, scenes: dict[str, Scene]) -> pd.DataFrame:
    """Judge each retained edit."""
    pictures = data.records.select_columns(["edit_image"]).cast_column("edit_image", Image(decode=False))
    rows = [
        _judged(row, scenes, picture["edit_image"])
        for row, picture in zip(data.kept.to_dict("records"), pictures, strict=True)
    ]
    return pd.DataFrame(rows, columns=["direction", "fp_wrong", "matches", "minimal", "valid"])


def _judged(row: dict[str, Any], scenes: dict[str, Scene], picture: dict[str, Any] | None) -> dict[str, Any]:
    """Judge an edit. It is minimal if what was right before is right or unchanged after it."""
    if row["direction"] == "t2i":
        assert picture is not None, "a T2I record has an edited image"
        query, before = parse(row["q_text"]), scenes[row["fp_id"]]
        with open_image(picture["bytes"] or picture["path"]) as opened:
            after = read_scene(opened)
        is_wrong, matches = not holds(query, before), holds(query, after)
        stays, facts = unchanged(before, satisfy(query, before)), facts_of(after)
        is_minimal = all(facts.get(slot) == value for slot, value in facts_of(before).items() if slot in stays)
    else:
        shown = scenes[row["q_id"]]
        wrong = [{(gap.target, gap.name) for gap in differences(parse(row[name]), shown)} for name in TEXTS]
        is_wrong, matches, is_minimal = bool(wrong[0]), not wrong[1], wrong[1] <= wrong[0]
    judged = {"fp_wrong": is_wrong, "matches": matches, "minimal": is_minimal, "valid": is_wrong and matches}
    return {"direction": row["direction"]} | judged


def _agreement(audited: pd.DataFrame) -> dict[str, float | None]:
    return {
        "precision": _share(audited["good"][audited["passed"]]),
        "recall": _share(audited["passed"][audited["good"]]),
    }


def _share(is_so: pd.Series) -> float | None:
    return float(is_so.mean()) if len(is_so) else None
