"""The card of records: what they are, how to load them, samples, outcomes of the failures, models, cost, license."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from huggingface_hub import DatasetCard, DatasetCardData

from repair_hf.analysis.costs import PAID_HEADS, paid_rows
from repair_hf.analysis.errors import error_shares, typed
from repair_hf.analysis.people.findings import sentences_for_card
from repair_hf.analysis.record_sample import ROLE_NAMES
from repair_hf.analysis.run_data import read_labels
from repair_hf.analysis.tables import markdown
from repair_hf.hub.markdown import code, without_folders
from repair_hf.hub.rendering import TAGS, Stage, render
from repair_hf.llm.cost import Usage
from repair_hf.llm.ledger_file import read_calls
from repair_hf.records.columns import DIRECTIONS, MODALITIES, REASONS, SOURCES
from repair_hf.records.dataset import summarize
from repair_hf.records.images import record_at

SAMPLES = 3
IMAGE_SIDE = 256  # pixels of a sample image's longest side
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


@dataclass(frozen=True)
class RecordsCard:
    """The card's text, and its images by their path in the repository."""

    text: str
    pictures: dict[str, bytes]


def dataset_card(
    folder: str | Path, data: str | Path, repo: str, records: Dataset, dropped: Dataset, *, license: str | None = None
) -> RecordsCard:
    """Write the card of the records in `data`: the `folder` of the synthesis, or one without source images."""
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
        "made_by": _made_by(records),
        "answered_by": _answered_by(stage.folder),
        "cost": _cost(stage.summary),
        "pairs": stage.pairs(),
        "licence": license,
        "people": sentences_for_card(stage.folder),
    }
    header = _header(stage, Path(data), repo, len(records), license)
    return RecordsCard(render("dataset_card", header, values), pictures)


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
    """Choose a few records by their ids, from both directions in turn."""
    ids, directions = records["record_id"][:], records["direction"][:]
    order = sorted(range(len(ids)), key=ids.__getitem__)
    by_direction = [[place for place in order if directions[place] == way] for way in DIRECTIONS]
    turns = [place for turn in zip_longest(*by_direction) for place in turn if place is not None]
    samples, pictures = [], {}
    for number, place in enumerate(turns[:SAMPLES], start=1):
        row, cells = record_at(records, place), []
        for role, kind in MODALITIES[row["direction"]].items():
            value, name = row[f"{role}_{kind}"], f"samples/{number}-{role}.png"
            if kind == "text":
                cells.append(code(value))
            elif value is None:
                cells.append("*left out*")
            else:
                pictures[name] = _picture(value)
                cells.append(f"![{ROLE_NAMES[role]}]({name})")
        samples.append(_description(row) | {"table": markdown(tuple(ROLE_NAMES.values()), [cells], labels=4)})
    return samples, pictures


def _description(row: dict[str, Any]) -> dict[str, str]:
    kind = "a caption retrieved images" if row["direction"] == "t2i" else "an image retrieved captions"
    return {
        "direction": row["direction"],
        "kind": f"({kind}); record {code(row['record_id'])}",
        "ranks": f"rank {_number(row['fp_rank'])}, cosine {_number(row['fp_score'])}; best annotated positive: rank "
        f"{_number(row['gt_rank'])}, cosine {_number(row['gt_score'])}",
        "fp_reason": code(row["fp_reason"]),
        "instruction": code(row["edit_instruction"]),
    }


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"


def _picture(image: Any) -> bytes:
    """Return a small PNG without metadata, such as the place of a photograph."""
    small = image.convert("RGB")
    small.thumbnail((IMAGE_SIDE, IMAGE_SIDE))
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
    rows = [("mined", "audited false positives", *mined)]
    for name, (meaning, of_ways) in counts.items():
        if any(of_ways) or name == "kept":
            rows.append((name, meaning, *map(_share, of_ways, mined)))
    return markdown(("", "", *DIRECTIONS), rows, labels=2)


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})" if total else f"{count:,}"


def _error_types(records: Dataset, folder: Path) -> str:
    """Share of each error type by direction; the first row counts the records whose types are known."""
    columns = ["direction", "record_id", "error_types"]
    kept = records.select_columns(columns).with_format("arrow")[:].to_pandas()
    known = typed(kept, read_labels([folder]))
    if known.empty:
        return ""
    counts, totals = (frame["direction"].value_counts() for frame in (known, kept))
    first = ("known for", *(f"{counts.get(way, 0):,} of {totals.get(way, 0):,}" for way in DIRECTIONS))
    shares = error_shares(known).itertuples(index=False)
    rows = [(name, *(None if np.isnan(share) else f"{share:.1%}" for share in of_ways)) for name, *of_ways in shares]
    return markdown(("error type", *DIRECTIONS), [first, *rows])


def _made_by(records: Dataset) -> str:
    named = {"retriever": "retriever that failed", "llm": "LLM", "editor": "image editor", "prompt_digest": "prompts"}
    rows = []
    for column, what in (named | {"seed": "seed", "round": "round"}).items():
        for value, count in Counter(records[column]).most_common():
            shown = code(without_folders(value)) if value is not None else "unknown"
            rows.append((what, shown, count))
    return markdown(("", "", "records"), rows, labels=2)


def _answered_by(folder: Path) -> str:
    """The model versions that answered, as the provider reports them: an id such as gpt-4o changes its meaning."""
    found = Counter((call["model"], call["answered_by"]) for call in read_calls(folder) if call["state"] == "answered")
    if not found:
        return "The versions of the models that answered are unknown."
    answers = "; ".join(
        f"{code(asked)} was answered by {code(by)} {count:,} times" for (asked, by), count in found.most_common()
    )
    return f"As reported by the providers: {answers}. The name of the retriever includes a digest of its weights."


def _cost(summary: dict[str, Any]) -> str:
    if "paid" not in summary:
        return ""
    paid = {}
    for use in summary["paid"]:
        numbers = {name: value for name, value in use.items() if name not in ("stage", "direction")}
        paid[use["stage"], use["direction"]] = Usage(**numbers)
    return markdown(PAID_HEADS, paid_rows(paid), labels=2)
