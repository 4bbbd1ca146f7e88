"""`repair-hf world build`: draw the toy world, a folder of pictures with captions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from repair_hf.cli.subcommands import suggest, unused
from repair_hf.runtime.options import SEEDS, Bounded, opt
from repair_hf.toyworld.corpus import SEED, SPLITS, build_world

EPILOG = """examples:
  repair-hf world build --output runs/world
  repair-hf world build --train 10000 --output runs/large"""


@dataclass
class BuildOptions(Bounded):
    _argument_group_name = "world"

    output: str = opt("runs/world", "Folder of the world.")
    domain: Literal["plain", "web", "target"] = opt(
        "target",
        "`target`: for the demo and the study. `web`: what `world/base` is pretrained on. `plain`: without faults.",
    )
    train: int = opt(SPLITS["train"], "Training pictures; five captions each.", least=1)
    validation: int = opt(SPLITS["validation"], "Validation pictures.", least=1)
    test: int = opt(SPLITS["test"], "Test pictures.", least=1)
    seed: int = opt(SEED, "Seed of scenes and captions.", least=0, most=SEEDS - 1)


def build(options: BuildOptions) -> None:
    """Draw the world's pictures and write their captions. The test split does not depend on the other sizes."""
    splits = {name: getattr(options, name) for name in SPLITS}
    folder = build_world(options.output, splits=splits, seed=options.seed, domain=options.domain)
    print("world   " + ", ".join(f"{count:,} {name}" for name, count in splits.items()) + f" pictures   -> {folder}")
    suggest("mine", "--pairs", str(folder), "--model", "world/base", "--output", unused("runs/failures"))


ACTIONS = {"build": ((BuildOptions,), build)}
