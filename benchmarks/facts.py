"""What RePair's paper reports about its data, measured in the toy world and printed beside.

No retriever is repaired: the world is drawn, failures are mined, and audited and edited by the LLM and the editor that
err; plain fine-tuning is measured on the validation split. If the script is killed, the same command resumes.

python benchmarks/facts.py --output runs/facts
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from world_truth import measure

from repair_hf.cli.subcommands import print_table
from repair_hf.evaluation.evaluate import evaluate
from repair_hf.mining.mine import mine
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.locks import one_writer
from repair_hf.runtime.options import Bounded, opt
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.synthesis.synthesize import synthesize
from repair_hf.toyworld.corpus import build_world
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
    measured = _collect(measure(records), r1, options.train)
    _report(measured, r1, folder)


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


def _report(measured: dict[str, float | None], r1: dict[str, dict[str, float]], folder: Path) -> None:
    rows = []
    for name, value in measured.items():
        near = value is not None and abs(value - PAPER[name]) <= NEAR * PAPER[name]
        rows.append([name, f"{PAPER[name]:.1f}", "–" if value is None else f"{value:.1f}", "yes" if near else "no"])
    print_table(["COCO30K and the toy world, in %", "paper", "here", "within a fifth"], rows)
    longer = {side: r1["plain, twice the epochs"][side] - r1["plain"][side] for side in ("i2t", "t2i")}
    print(f"twice the epochs add {longer['i2t']:+.1f} points of I2T R@1 and {longer['t2i']:+.1f} of T2I R@1")
    found = {name: {"paper": PAPER[name], "here": value} for name, value in measured.items()}
    write_atomically(folder / "facts.json", json.dumps(found | {"twice the epochs add": longer}, indent=2) + "\n")
    print(f"-> {folder / 'facts.json'}")


if __name__ == "__main__":
    (wanted,) = parse((FactsOptions,), sys.argv[1:], "facts.py")
    with one_writer(wanted.output):
        facts(wanted)
