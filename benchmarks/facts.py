"""What RePair's paper reports about its data, measured in the toy world and printed beside.

No retriever is repaired: the world is drawn, failures are mined, and audited and edited by the LLM and the editor that
err; plain fine-tuning is measured on the validation split. If the script is killed, the same command resumes.

python benchmarks/facts.py --output runs/facts
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Image

from repair_hf.analysis.run_data import RunData, gather, recorded_pairs
from repair_hf.cli.subcommands import print_table
from repair_hf.evaluation.evaluate import evaluate
from repair_hf.mining.mine import mine
from repair_hf.pairs.dataset import load_pairs
from repair_hf.pairs.images import open_image
from repair_hf.records.columns import DIRECTIONS
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.locks import one_writer
from repair_hf.runtime.options import Bounded, opt
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.synthesis.synthesize import synthesize
from repair_hf.toyworld.captions import parse as parse_caption
from repair_hf.toyworld.corpus import SEED, SPLITS, build_world, draw_scenes
from repair_hf.toyworld.renderer import read_scene
from repair_hf.toyworld.scenes import ERROR_TYPES, Scene, differences, facts_of, holds, satisfy
from repair_hf.toyworld.variations import unchanged
from repair_hf.training.config import RepairConfig
from repair_hf.training.finetune import train

# COCO30K with CLIP ViT-B/32; shares and R@1 in %. Without a figure of their own for COCO30K, those over both datasets.
PAPER: dict[str, float] = {
    "base R@1, I2T": 50.0,
    "base R@1, T2I": 30.0,
    "plain fine-tuning R@1, I2T": 60.5,
    "plain fine-tuning R@1, T2I": 44.2,
    "failures that pass the audit, I2T": 32.0,
    "failures that pass the audit, T2I": 41.0,
    "rejects for a wrong annotation, I2T": 27.9,
    "rejects for a wrong annotation, T2I": 25.9,
    "failures with an object error, I2T": 44.0,
    "failures with a hallucination, I2T": 36.9,
    "failures with an action error, I2T": 34.1,
    "failures with an attribute error, I2T": 33.7,
    "failures with a count error, I2T": 18.8,
    "failures with a relation error, I2T": 12.1,
    "audit against people, precision": 90.2,
    "audit against people, recall": 83.9,
    "edits that are valid hard contrasts, I2T": 95.5,
    "edits that are valid hard contrasts, T2I": 89.5,
    "edited images for each training image": 2.0,
    "edited captions for each training image": 1.6,
}
NEAR = 0.2  # "within a fifth"


TEXTS = ("fp_text", "edit_text")
REJECTED = ("gt_invalid", "fp_too_similar")  # criteria 1 and 2


@dataclass
class FactsOptions(Bounded):
    """What is measured. The defaults are the study's."""

    _argument_group_name = "facts"

    output: str = opt("runs/facts", "Folder of the world, the records, two plain trainings, and `facts.json`.")
    train: int = opt(2000, "Training pictures.", least=1)
    validation: int = opt(1000, "Validation pictures; R@1 is theirs.", least=1)
    max_queries: int | None = opt(None, "Most queries to mine in each direction; all by default.", least=1)
    epochs: float = opt(4.0, "Epochs of plain fine-tuning; a second training takes twice as many.", above=0)
    learning_rate: float = opt(3e-4, "Peak learning rate of plain fine-tuning.", above=0)
    batch_size: int = opt(128, "Pairs in a batch.", least=1)


def facts(options: FactsOptions) -> None:
    """Measure, compare with the paper, and write `facts.json`."""
    folder, model, erring = Path(options.output), "world/base", "world/erring"
    sizes = {"train": options.train, "validation": options.validation, "test": 1}
    world = build_world(folder / "world", splits=sizes, domain="target")
    pairs, validation = (load_pairs(world, split=split) for split in ("train", "validation"))
    mine(model, pairs, output=folder / "failures", max_queries=options.max_queries)
    records = folder / "records"
    synthesize(folder / "failures", pairs, model, llm=erring, editor=erring, output=records)
    r1 = {"base": _validate(folder, validation, "base", model)}
    for name, epochs in (("plain", options.epochs), ("plain, twice the epochs", 2 * options.epochs)):
        trained = folder / "train" / f"epochs{epochs:g}"
        config = RepairConfig(
            str(trained),
            loss="none",
            num_train_epochs=epochs,
            learning_rate=options.learning_rate,
            per_device_train_batch_size=options.batch_size,
        )
        train(model, pairs, config=config)
        r1[name] = _validate(folder, validation, trained.name, str(trained))
    judged = measure(records)
    _report(_collect(judged, r1, options.train), r1, _overlap(judged["scenes"]), folder)


def _validate(folder: Path, pairs: Any, name: str, model: str) -> dict[str, float]:
    (metrics,) = evaluate(model, pairs, output=folder / "evaluate" / name).values()
    return {side: 100 * metrics[f"{side}_R@1"] for side in ("i2t", "t2i")}


def _collect(counted: dict[str, Any], r1: dict[str, dict[str, float]], n_train: int) -> dict[str, float | None]:
    """Return the measured values in the order of `PAPER`."""
    sides = [counted[side] for side in ("i2t", "t2i")]
    kinds = ("Object", "Hallucination", "Action", "Attribute", "Count", "Relation")
    shares = [
        *(side[name] for name in ("passed", "criterion_1") for side in sides),
        *(counted["error_kinds"][kind] for kind in kinds),
        *(counted["audit"][name] for name in ("precision", "recall")),
        *(side["valid"] for side in sides),
    ]
    values: list[float | None] = [r1[name][side] for name in ("base", "plain") for side in ("i2t", "t2i")]
    values += [None if share is None else 100 * share for share in shares]
    values += [counted[direction]["edits"] / n_train for direction in ("t2i", "i2t")]
    return dict(zip(PAPER, values, strict=True))


def _overlap(drawn: dict[str, list[Scene]]) -> dict[str, dict[str, float]]:
    """Return the shares (in %) of pictures that show a scene of the test split, and of test splits drawn anew."""
    test, *anew = (set(draw_scenes("test", SPLITS["test"], seed=SEED + k, domain="target")) for k in range(13))
    return {
        name: {
            "test": 100 * np.mean([scene in test for scene in scenes]),
            "drawn anew": float(np.mean(shares := [100 * np.mean([s in split for s in scenes]) for split in anew])),
            "deviation": float(np.std(shares, ddof=1)),
        }
        for name, scenes in drawn.items()
        if scenes
    }


def _report(
    measured: dict[str, float | None],
    r1: dict[str, dict[str, float]],
    overlap: dict[str, dict[str, float]],
    folder: Path,
) -> None:
    rows = []
    for name, value in measured.items():
        near = value is not None and abs(value - PAPER[name]) <= NEAR * PAPER[name]
        rows.append([name, f"{PAPER[name]:.1f}", "–" if value is None else f"{value:.1f}", "yes" if near else "no"])
    print_table(["COCO30K and the toy world, in %", "paper", "here", "within a fifth"], rows)
    longer = {side: r1["plain, twice the epochs"][side] - r1["plain"][side] for side in ("i2t", "t2i")}
    print(f"twice the epochs add {longer['i2t']:+.1f} points of I2T R@1 and {longer['t2i']:+.1f} of T2I R@1")
    rows = [
        [name, f"{shares['test']:.1f}", f"{shares['drawn anew']:.1f} ± {shares['deviation']:.1f}"]
        for name, shares in overlap.items()
    ]
    print_table(["pictures with a scene of the test split, in %", "test split", "12 splits drawn anew"], rows)
    found = {name: {"paper": PAPER[name], "here": value} for name, value in measured.items()}
    write_atomically(
        folder / "facts.json",
        json.dumps(found | {"twice the epochs add": longer, "overlap": overlap}, indent=2) + "\n",
    )
    print(f"-> {folder / 'facts.json'}")


def measure(run: str | Path) -> dict[str, Any]:
    """Judge a run's audits, edits and kinds of errors by the scenes of its toy world, as people do in the paper.

    Args:
        run: Folder of records, with the pairs on record and in place; or a run's folder.

    Returns:
        Shares from 0 to 1, None where there is nothing to count. Of audits, over both directions: `precision`,
        `recall`. By direction: `passed` and `deserved` of the audited failures, `criterion_1` of the rejects; of the
        retained edits `fp_wrong`, `matches`, `minimal`, and `valid`, which are those that match their query although
        the false positive did not. `error_kinds`: I2T failures that pass the audit, by kind; a failure may have
        several. `scenes`: those of the training pictures and of the edited ones.

    Raises:
        UserError: If there are no records, or the pairs are not of the toy world.
    """
    data = gather(run)
    pairs = recorded_pairs(run)
    scenes = {row["image_id"]: read_scene(row["image"]) for row in pairs.images}
    audited = _audited(data, scenes)
    edits = _edits(data, scenes)
    found: dict[str, Any] = {"audit": _agreement(audited)}
    found["scenes"] = {"training": list(scenes.values()), "edits": list(edits["after"].dropna())}
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
        return [differences(parse_caption(row["q_text"]), scenes[row[f"{role}_id"]]) for role in ("gt", "fp")]
    return [differences(parse_caption(row[f"{role}_text"]), scenes[row["q_id"]]) for role in ("gt", "fp")]


def _edits(data: RunData, scenes: dict[str, Scene]) -> pd.DataFrame:
    """Judge each retained edit."""
    pictures = data.records.select_columns(["edit_image"]).cast_column("edit_image", Image(decode=False))
    rows = [
        _judged(row, scenes, picture["edit_image"])
        for row, picture in zip(data.kept.to_dict("records"), pictures, strict=True)
    ]
    return pd.DataFrame(rows, columns=["direction", "after", "fp_wrong", "matches", "minimal", "valid"])


def _judged(row: dict[str, Any], scenes: dict[str, Scene], picture: dict[str, Any] | None) -> dict[str, Any]:
    """Judge an edit. It is minimal if what was right before is right or unchanged after it."""
    if row["direction"] == "t2i":
        assert picture is not None, "a T2I record has an edited image"
        query, before = parse_caption(row["q_text"]), scenes[row["fp_id"]]
        with open_image(picture["bytes"] or picture["path"]) as opened:
            after = read_scene(opened)
        is_wrong, matches = not holds(query, before), holds(query, after)
        stays, facts = unchanged(before, satisfy(query, before)), facts_of(after)
        is_minimal = all(facts.get(slot) == value for slot, value in facts_of(before).items() if slot in stays)
    else:
        after, shown = None, scenes[row["q_id"]]
        wrong = [{(gap.target, gap.name) for gap in differences(parse_caption(row[name]), shown)} for name in TEXTS]
        is_wrong, matches, is_minimal = bool(wrong[0]), not wrong[1], wrong[1] <= wrong[0]
    judged = {"fp_wrong": is_wrong, "matches": matches, "minimal": is_minimal, "valid": is_wrong and matches}
    return {"direction": row["direction"], "after": after} | judged


def _agreement(audited: pd.DataFrame) -> dict[str, float | None]:
    return {
        "precision": _share(audited["good"][audited["passed"]]),
        "recall": _share(audited["passed"][audited["good"]]),
    }


def _share(is_so: pd.Series) -> float | None:
    return float(is_so.mean()) if len(is_so) else None


if __name__ == "__main__":
    (wanted,) = parse((FactsOptions,), sys.argv[1:], "facts.py")
    with one_writer(wanted.output):
        facts(wanted)
