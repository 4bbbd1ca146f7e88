"""What the report of a trial adds: what the whole data would take, and what to look at first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE
from repair_hf.llm.ledger_file import read_calls
from repair_hf.mining.failures import load_failures
from repair_hf.records.columns import DIRECTIONS, REASONS
from repair_hf.records.dataset import load_dropped, load_kept
from repair_hf.runtime.own_files import read_json
from repair_hf.study.setting import Setting
from repair_hf.study.spending import products_in
from repair_hf.synthesis.candidates import FOLDER

SHOWN = 3  # failures and edits of each direction
COUNTS = {
    "LLM answers": "llm_calls",
    "tokens in": "prompt_tokens",
    "tokens out": "completion_tokens",
    "dollars": "dollars",
    "edited and drawn images": "images",
    "GB of images": "gigabytes",
    "hours of making data": "hours",
}


def trial_findings(setting: Setting) -> list[Finding | None]:
    """Return what a trial adds to the report: nothing if the pairs are not a draw of others."""
    return [] if setting.pairs.whole is None else [whole_data(setting), look_first(setting)]


def whole_data(setting: Setting) -> Finding:
    """Scale what each product and all trainings took to the whole split."""
    pairs, whole = setting.pairs, setting.pairs.whole
    assert whole is not None, "the pairs are a draw"
    here = len(pairs.images), len(pairs.captions)
    most = setting.mine["max_queries"] or here[1]
    times = {
        "i2t": whole[0] / min(here[0], most),
        "t2i": whole[1] / min(here[1], most),
        "captions": whole[1] / here[1],
    }
    found = [
        {"product": path.name, **each}
        for path in sorted(products_in(setting.output / "products"))
        if (path / "summary.json").is_file()
        for each in _product(path, read_json(path / "summary.json"), times)
    ]
    data = pd.DataFrame(found, columns=["product", "where", *COUNTS.values()])
    sums = data.groupby("where")[list(COUNTS.values())].sum(min_count=1)
    rows = {"images": [f"{count[0]:,}" for count in (here, whole)]}
    rows["captions"] = [f"{count[1]:,}" for count in (here, whole)]
    rows |= _kept(setting.output / "products" / "repair-records" / "summary.json", times)
    rows |= {head: [_number(sums[name].get(where)) for where in ("here", "whole")] for head, name in COUNTS.items()}
    cells = [read_json(path) for path in sorted((setting.output / "cells").glob("*/summary.json"))]
    trained = (
        sum({cell["training"]["seconds"] for cell in cells if cell["training"]}) / 3600
    )  # twins have equal seconds
    rows["hours of training"] = [f"{trained:,.2f}", f"{trained * times['captions']:,.2f}"]
    note = (
        "The same methods, seeds and hyperparameters on the whole split, scaled from what was measured here: by the "
        "number of failures or captions. Hours are those of this machine, by one process. False positives from few "
        "images are easier: expect fewer kept failures on the whole split."
    )
    table = pd.DataFrame([[name, *cells] for name, cells in rows.items()], columns=["what", "here", "whole split"])
    return Finding("whole", "What the whole data would take", note, table, data=data)


def look_first(setting: Setting) -> Finding | None:
    """List the failures, edits and drops of RePair to look at first."""
    failures, records = (setting.output / "products" / f"repair-{kind}" for kind in ("failures", "records"))
    if not (records / "summary.json").is_file():
        return None
    rows = _failures(failures) + _edits(records)
    dropped = load_dropped(records).to_pandas()
    for reason, some in sorted(dropped.groupby("reason"), key=lambda each: -len(each[1])):
        first = some.iloc[0]
        rows.append((f"{len(some):,} drops: {reason}", first["q_id"], first["fp_id"], REASONS[reason]))
    note = f"`repair-hf show {failures}` draws failures, and `repair-hf show {records}` edits. "
    if len(dropped):
        note += f"`repair-hf show {records} --dropped {dropped['reason'].mode()[0]}` draws drops. "
    note += f"`repair-hf analyze {records}` writes a report of all."
    table = pd.DataFrame(rows, columns=["what", "query", "false positive", "why"])
    return Finding("look_first", "What to look at first", note, table)


def _product(folder: Path, summary: Mapping[str, Any], times: Mapping[str, float]) -> list[dict[str, Any]]:
    """What a product took, and what it would take on the whole split; nothing for mined failures and retrievers."""
    if "images" not in summary:
        return []
    is_repair = "directions" in summary
    made = summary["images"]["made"] if is_repair else summary["images"]
    sizes = [path.stat().st_size for path in (folder.parents[1] / FOLDER).rglob("*.png")]  # those of all products
    size = made * sum(sizes) / max(len(sizes), 1) / 1e9
    found = []
    for where in ("here", "whole"):
        of_images = 1.0 if where == "here" else times["t2i" if is_repair else "captions"]
        counts = dict.fromkeys(COUNTS.values(), 0.0) | {"images": made * of_images, "gigabytes": size * of_images}
        for call in filter(_is_own, read_calls(folder)):
            scale = 1.0 if where == "here" else times[call["direction"] if is_repair else "captions"]
            counts["llm_calls"] += scale * call["calls"]
            counts["prompt_tokens"] += scale * call["prompt_tokens"]
            counts["completion_tokens"] += scale * call["completion_tokens"]
            counts["dollars"] += scale * (call["worst"] if call["dollars"] is None else call["dollars"])
        found.append(counts)
    done = [counts["llm_calls"] + counts["images"] for counts in found]
    hours = summary.get("seconds", 0.0) / 3600
    found[0]["hours"], found[1]["hours"] = hours, hours * (done[1] / done[0] if done[0] else 1.0)
    return [{"where": where, **counts} for where, counts in zip(("here", "whole"), found, strict=True)]


def _is_own(call: Mapping[str, Any]) -> bool:
    return not call["inherited"] and call["state"] != "submitted"


def _kept(summary: Path, times: Mapping[str, float]) -> dict[str, list[str]]:
    """How many of RePair's failures became records."""
    if not summary.is_file():
        return {}
    found = read_json(summary)["directions"]
    return {
        f"{side.upper()} failures kept": [
            f"{scale * found[side]['kept']:,.0f} of {scale * found[side]['mined']:,.0f}"
            for scale in (1.0, times[side])
        ]
        for side in DIRECTIONS
        if side in found
    }


def _failures(folder: Path) -> list[tuple[str, str, str, str]]:
    """Failures by the largest lead of the false positive."""
    table = load_failures(folder).to_pandas()
    table["lead"] = table["fp_score"] - table["gt_score"]
    worst = table.sort_values("lead", ascending=False, kind="stable").groupby("direction").head(SHOWN)
    why = "the false positive's cosine is higher by"
    return [
        (f"{row.direction.upper()} failure", row.q_id, row.fp_id, f"{why} {row.lead:.2f}")
        for row in worst.itertuples()
    ]


def _edits(folder: Path) -> list[tuple[str, str, str, str]]:
    """Edits that are least like the false positive that they were made from."""
    names = ["direction", "q_id", "fp_id", "candidate", "candidate_similarities"]
    rows = load_kept(folder, decode=False).select_columns(names).to_list()
    likeness = [(row["candidate_similarities"][row["candidate"]], row) for row in rows]
    found = []
    for side in DIRECTIONS:
        of_side = sorted((each for each in likeness if each[1]["direction"] == side), key=lambda each: each[0])
        for similarity, row in of_side[:SHOWN]:
            why = f"the edit is least like it: a cosine of {similarity:.2f}"
            found.append((f"{side.upper()} edit", row["q_id"], row["fp_id"], why))
    return found


def _number(value: float | None) -> str:
    return NONE if value is None or pd.isna(value) else f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
