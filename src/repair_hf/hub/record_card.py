"""The card of records: what they are, how to load them, samples, counts, models, cost, license."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from datasets import Dataset
from huggingface_hub import DatasetCard, DatasetCardData

from repair_hf.analysis.checked import checked_in, describe_checked
from repair_hf.analysis.costs import calls_of, describe_paid
from repair_hf.analysis.people.agreement import sentences_for_card
from repair_hf.analysis.record_sample import ROLE_NAMES
from repair_hf.analysis.tables import SIDES, markdown
from repair_hf.hub.rendering import TAGS, StageFolder, code, render, without_folders
from repair_hf.llm.cost import usage_of
from repair_hf.pairs.images import in_rgb
from repair_hf.records.columns import DIRECTIONS, MODALITIES, REASONS, SOURCES
from repair_hf.records.dataset import summarize
from repair_hf.records.images import record_at
from repair_hf.runtime.stage import open_in

SAMPLES = 3
IMAGE_SIDE = 256  # pixels of a sample image's longest side
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
MADE_BY = {"retriever": "retriever that failed", "llm": "LLM", "editor": "image editor", "prompt_digest": "prompts"}


def dataset_card(
    folder: str | Path,
    data: str | Path,
    repo: str,
    records: Dataset,
    dropped: Dataset,
    *,
    license: str | None = None,
    judgements: Sequence[str | Path] = (),
) -> tuple[str, dict[str, bytes]]:
    """Write the card of the records in `data`: the `folder` of the synthesis, or one without source images.

    Returns:
        Its text, and its images by their path in the repository.
    """
    stage, title = StageFolder.of(folder), repo.split("/")[-1]
    samples, pictures = _samples(records)
    made_by = {name for column in ("llm", "editor") for name in records.unique(column)}
    header = DatasetCardData(
        license=license,
        pretty_name=title,
        task_categories=["image-to-text", "text-to-image"],
        annotations_creators=["machine-generated"],
        size_categories=[next((name for limit, name in SIZES if len(records) < limit), "n>1M")],
        source_datasets=stage.hub_ids("pairs")[:1] or None,
        tags=[*TAGS, "counterfactual"],
        configs=DatasetCard.load(Path(data) / "README.md").data.configs,
    )
    values = {
        "title": title,
        "repo": repo,
        "n_records": len(records),
        "n_dropped": len(dropped),
        "n_open": open_in(stage.folder),
        "is_toy": any(str(name).startswith("world") for name in made_by),
        "has_source_images": any(records.data.column(f"{role}_image").null_count < len(records) for role in SOURCES),
        "samples": samples,
        "counts": _counts(records, dropped),
        "made_by": _made_by(records, stage.folder),
        "cost": _cost(stage.summary),
        "checked": describe_checked(checked_in([stage.folder])),
        "pairs": stage.pairs(),
        "license": license,
        "people": sentences_for_card(stage.folder, judgements),
    }
    return render("dataset_card", header, values), pictures


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
        described = {name: code(row[name]) for name in ("record_id", "fp_reason", "edit_instruction")}
        described["direction"] = SIDES[row["direction"]]
        described["ranks"] = f"{row['fp_rank']}, ground truth {row['gt_rank']}"
        samples.append(described | {"table": markdown(tuple(ROLE_NAMES.values()), [cells], labels=4)})
    return samples, pictures


def _picture(image: Any) -> bytes:
    """Return a small PNG without metadata, such as the place of a photograph."""
    small = in_rgb(image)
    small.thumbnail((IMAGE_SIDE, IMAGE_SIDE))
    small.info = {}
    buffer = io.BytesIO()
    small.save(buffer, "PNG")
    return buffer.getvalue()


def _counts(records: Dataset, dropped: Dataset) -> str:
    """Write how many failures of each direction became records, and why the others were dropped."""
    found = summarize(records, dropped)
    rows: list[tuple[Any, ...]] = [
        ("failures", *(found[way]["mined"] for way in DIRECTIONS)),
        ("became records", *(found[way]["kept"] for way in DIRECTIONS)),
    ]
    for reason, meaning in REASONS.items():
        counts = [found[way]["dropped"].get(reason, 0) for way in DIRECTIONS]
        if any(counts):
            rows.append((f"dropped as {code(reason)}: {meaning}", *counts))
    return markdown(("", *(SIDES[way] for way in DIRECTIONS)), rows)


def _made_by(records: Dataset, folder: Path) -> str:
    """Write the models and prompts, and the versions that answered: an id such as gpt-4o changes its meaning."""
    rows = [
        (what, "unknown" if value is None else code(without_folders(value)), f"{count:,} records")
        for column, what in MADE_BY.items()
        for value, count in Counter(records[column]).most_common()
    ]
    answered = Counter(call["answered_by"] for call in calls_of(folder) if call["state"] == "answered")
    rows += [("version that answered", code(by), f"{count:,} answers") for by, count in answered.most_common()]
    return markdown(("", "", "made"), rows, labels=2)


def _cost(summary: dict[str, Any]) -> str:
    """Describe what was paid, from the summary of a synthesis."""
    paid = usage_of(summary.get("paid", ()))
    return f"Paid: {describe_paid(paid)}" if paid else "What it cost is unknown."
