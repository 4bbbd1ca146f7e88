"""The card of records: what they are, what became of the failures, what made them, what it cost, and what is wrong with them.

In:  records and dropped failures, and the folder of the synthesis that made them.
Out: Markdown with its header, and the pictures that it shows.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from huggingface_hub import DatasetCard, DatasetCardData

from repair_hf.analysis.costs import PAID_HEADS, paid_rows
from repair_hf.analysis.errors import error_shares, typed
from repair_hf.analysis.people.findings import sentences_for_card
from repair_hf.analysis.run_data import read_labels
from repair_hf.hub.markdown import code, fenced, table, without_folders
from repair_hf.hub.rendering import TAGS, Stage, render, two_columns
from repair_hf.llm.cost import Usage
from repair_hf.llm.journal import bills, read_entries
from repair_hf.llm.prompts import NAMES, prompt_digest
from repair_hf.records.columns import DIRECTIONS, DROPPED_COLUMNS, MODALITIES, REASONS, RECORD_COLUMNS, SOURCES
from repair_hf.records.dataset import summarize

SAMPLES = 3
PICTURE = 256  # pixels of a sample picture's longest side
ROLES = {"q": "query", "gt": "ground truth", "fp": "false positive", "edit": "edit"}
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
FAULTS = {  # options that make a toy provider worse than it is
    "verdict_noise": "audit verdicts flipped at a rate of",
    "malformed_rate": "answers of no form at a rate of",
    "drift": "unasked changes by the image editor at a rate of",
    "artifacts": "traces of editing in every edited image, of strength",
}


@dataclass(frozen=True)
class RecordsCard:
    """The card's text, and its pictures by their path in the repository."""

    text: str
    pictures: dict[str, bytes]


def dataset_card(
    folder: str | Path, data: str | Path, repo: str, records: Dataset, dropped: Dataset, *, license: str | None = None
) -> RecordsCard:
    """Write the card of records.

    Args:
        folder: Of the synthesis, with what it tells about itself.
        data: What `save_records` wrote and is pushed: the same folder, or one without source images.
        repo: Id of the dataset.
        records: Those of `data`.
        dropped: Those of `data`.
        license: Identifier of the Hub.
    """
    stage = Stage.of(folder)
    samples, pictures = _samples(records)
    values = {
        "title": repo.split("/")[-1],
        "repo": repo,
        "n_records": len(records),
        "n_dropped": len(dropped),
        "is_toy": any(
            str(name).startswith("world") for column in ("llm", "editor") for name in records.unique(column)
        ),
        "has_source_images": any(records.data.column(f"{role}_image").null_count < len(records) for role in SOURCES),
        "samples": samples,
        "outcomes": _outcomes(records, dropped),
        "error_types": _error_types(records, stage.folder),
        "similarities": _similarities(records),
        "made_by": _made_by(records),
        "answered_by": _answered_by(stage.folder),
        "cost": _cost(stage.summary),
        "prompts": _prompts(records),
        "pairs": _pairs(stage),
        "licence": license,
        "faults": _faults(stage.options),
        "people": sentences_for_card(stage.folder),
        "columns": two_columns("meaning", {code(name): told for name, (_, told) in RECORD_COLUMNS.items()}),
        "dropped_columns": two_columns(
            "meaning", {code(name): DROPPED_COLUMNS[name][1] for name in ("reason", "detail")}
        ),
    }
    return RecordsCard(
        render("dataset_card", _header(stage, Path(data), repo, len(records), license), values | stage.told()),
        pictures,
    )


def _header(stage: Stage, data: Path, repo: str, count: int, license: str | None) -> DatasetCardData:
    source = next(iter(stage.hub_ids("pairs")), None)
    return DatasetCardData(
        license=license,
        pretty_name=repo.split("/")[-1],
        task_categories=["image-to-text", "text-to-image"],
        annotations_creators=["machine-generated"],
        size_categories=[next((name for limit, name in SIZES if count < limit), "n>1M")],
        source_datasets=[source] if source else None,
        tags=[*TAGS, "counterfactual"],
        configs=DatasetCard.load(data / "README.md").data.configs,
    )


def _samples(records: Dataset) -> tuple[list[dict[str, str]], dict[str, bytes]]:
    """A few records, of both directions by turns; which, their ids decide."""
    ids, directions = records["record_id"][:], records["direction"][:]
    order = sorted(range(len(ids)), key=ids.__getitem__)
    by_direction = [_padded([place for place in order if directions[place] == way]) for way in DIRECTIONS]
    turns = [place for both in zip(*by_direction, strict=True) for place in both if place is not None]
    samples, pictures = [], {}
    for number, place in enumerate(turns[:SAMPLES], start=1):
        row, cells = records[place], []
        for role, kind in MODALITIES[row["direction"]].items():
            value, name = row[f"{role}_{kind}"], f"samples/{number}-{role}.png"
            if kind == "text":
                cells.append(code(value))
            elif value is None:
                cells.append("*left out*")
            else:
                pictures[name] = _picture(value)
                cells.append(f"![{ROLES[role]}]({name})")
        samples.append(_told(row) | {"table": table(tuple(ROLES.values()), [cells], labels=4)})
    return samples, pictures


def _padded(places: list[int]) -> list[int | None]:
    return [*places, *[None] * SAMPLES][:SAMPLES]


def _told(row: dict[str, Any]) -> dict[str, str]:
    kind = "a caption retrieved images" if row["direction"] == "t2i" else "an image retrieved captions"
    return {
        "direction": row["direction"],
        "told": f"({kind}); record {code(row['record_id'])}",
        "places": f"rank {_number(row['fp_rank'])}, cosine {_number(row['fp_score'])}; the best annotated answer: rank "
        f"{_number(row['gt_rank'])}, cosine {_number(row['gt_score'])}",
        "fp_reason": code(row["fp_reason"]),
        "instruction": code(row["edit_instruction"]),
    }


def _number(value: float | None) -> str:
    return "not on record" if value is None else f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"


def _picture(image: Any) -> bytes:
    """A small PNG without what else the file may tell, such as where a photograph was taken."""
    small = image.convert("RGB")
    small.thumbnail((PICTURE, PICTURE))
    small.info = {}
    buffer = io.BytesIO()
    small.save(buffer, "PNG")
    return buffer.getvalue()


def _outcomes(records: Dataset, dropped: Dataset) -> str:
    found = summarize(records, dropped)
    mined = [found[way]["mined"] for way in DIRECTIONS]
    counts = {"kept": ("became records", [found[way]["kept"] for way in DIRECTIONS])}
    counts |= {
        code(reason): (meaning, [found[way]["dropped"].get(reason, 0) for way in DIRECTIONS])
        for reason, meaning in REASONS.items()
    }
    rows = [("mined", "false positives that were audited", *mined)]
    for name, (meaning, of_ways) in counts.items():
        if any(of_ways) or name == "kept":
            rows.append((name, meaning, *map(_share, of_ways, mined)))
    return table(("", "", *DIRECTIONS), rows, labels=2)


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})" if total else f"{count:,}"


def _error_types(records: Dataset, folder: Path) -> str:
    """The share of each kind of error by direction, in a first line the records of which kinds are known."""
    columns = ["direction", "record_id", "q_id", "edit_similarity", "error_types"]
    kept = records.select_columns(columns).with_format("arrow")[:].to_pandas()
    known = typed(kept, read_labels([folder]))
    if known.empty:
        return ""
    counts, totals = (frame["direction"].value_counts() for frame in (known, kept))
    first = ("known of", *(f"{counts.get(way, 0):,} of {totals.get(way, 0):,}" for way in DIRECTIONS))
    shares = error_shares(known).itertuples(index=False)
    rows = [(kind, *(None if np.isnan(share) else f"{share:.1%}" for share in of_ways)) for kind, *of_ways in shares]
    return table(("error", *DIRECTIONS), [first, *rows])


def _similarities(records: Dataset) -> str:
    directions, values = np.array(records["direction"]), np.array(records["edit_similarity"], float)
    rows = []
    for way in DIRECTIONS:
        of_way = values[directions == way]
        if not len(of_way):
            continue
        if np.isnan(of_way).any():
            rows.append((way, len(of_way), *["not on record"] * 5))
            continue
        rows.append((way, len(of_way), *map(float, np.quantile(of_way, (0, 0.25, 0.5, 0.75))), float(of_way.mean())))
    return table(("", "records", "least", "25%", "median", "75%", "mean"), rows)


def _made_by(records: Dataset) -> str:
    named = {
        "retriever": "retriever that failed",
        "llm": "language model",
        "editor": "image editor",
        "prompt_digest": "prompts",
    }
    rows = []
    for column, what in {**named, "seed": "seed", "round": "round"}.items():
        for value, count in Counter(records[column]).most_common():
            shown = code(without_folders(value)) if value is not None else "not on record"
            rows.append((what, shown, count))
    return table(("", "", "records"), rows, labels=2)


def _answered_by(folder: Path) -> str:
    """The model that answered, in the provider's words: an id such as gpt-4o stands for another one next year."""
    found = Counter((entry.model, entry.answered_by) for entry in read_entries(bills(folder)) if not entry.is_lost)
    if not found:
        return "Which version of the models answered is not on record."
    told = "; ".join(
        f"{code(asked)} was answered by {code(by)} {count:,} times" for (asked, by), count in found.most_common()
    )
    return f"As the providers name them: {told}. The retriever is named with a digest of its weights."


def _cost(summary: dict[str, Any]) -> str:
    if "paid" not in summary:
        return ""
    paid = {}
    for use in summary["paid"]:
        numbers = {name: value for name, value in use.items() if name not in ("stage", "direction")}
        paid[use["stage"], use["direction"]] = Usage(**numbers)
    return table(PAID_HEADS, paid_rows(paid), labels=2)


def _prompts(records: Dataset) -> list[tuple[str, str]]:
    """The wording, if it is this version's that the records were made with."""
    if set(records.unique("prompt_digest")) != {prompt_digest()}:
        return []
    folder = files("repair_hf.llm") / "templates"
    return [(name, fenced((folder / f"{name}.md").read_text(encoding="utf-8"), "text")) for name in NAMES]


def _pairs(stage: Stage) -> str:
    if not stage.options:
        return "not on record."
    split, fingerprint = stage.options.get("split"), stage.options.get("pairs_fingerprint")
    return f"{stage.name_of('pairs')}, split {code(split)}, fingerprint {code(fingerprint)}."


def _faults(options: dict[str, Any]) -> str:
    return ", ".join(f"{told} {options[name]}" for name, told in FAULTS.items() if options.get(name))
