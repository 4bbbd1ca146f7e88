"""The options of `repair-hf study`, and the sizes of its toy world. Nothing here loads torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from repair_hf.runtime.options import Bounded, PairsOptions, UserError, opt
from repair_hf.synthesis.models import ORACLE
from repair_hf.synthesis.options import EditorOptions, LLMOptions


@dataclass(frozen=True)
class Size:
    """A toy world with its hyperparameters, or the hyperparameters of a pretrained CLIP without a world."""

    world: Mapping[str, int] | None = None
    kept: int = 0  # pictures of the base's own domain, and most items of a contrast set
    max_queries: int | None = None
    learning_rates: tuple[float, ...] = (1e-5,)
    epochs: tuple[float, ...] = (5.0,)
    batch_size: int = 128


ORDERS = ("worst", "near-ties", "least", "one-an-image", "failed", "right")  # see `orders.PLACES`
SPLITS = {"validation": 1000, "test": 2000}
SIZES = {
    "tiny": Size({"train": 32, "validation": 16, "test": 24}, 8, 16, (1e-4,), (0.2,), 16),
    "small": Size({"train": 1000, **SPLITS}, 1000, None, (3e-4, 1e-4), (2.0, 4.0)),
    "large": Size({"train": 10_000, **SPLITS}, 1000, 3000, (3e-3, 1e-3), (4.0, 8.0, 16.0)),
}


@dataclass
class StudyOptions(Bounded):
    """Which methods, and how they are trained and evaluated."""

    _argument_group_name = "study"

    output: str = opt("runs/study", "Folder of the study.", neutral=True, main=True)
    methods: list[str] = opt(
        [],
        "Names of methods. Default: all. Plain training is always added.",
        neutral=True,
        main=True,
    )
    records: list[str] = opt(
        [], "Existing records, folders or Hub ids: compare plain training with what trains on them.", main=True
    )
    contrast: str | None = opt(
        None, "Contrast set of the test split, a folder or Hub id. Toy world: made by the study."
    )
    seeds: int = opt(3, "Training runs of each method.", least=1, neutral=True, main=True)
    size: Literal["tiny", "small", "large"] | None = opt(
        None, "Size of the toy world, if --pairs is not given; `tiny` takes seconds. Default: small.", main=True
    )
    model: str = opt("world/base", "Retriever: Hub id, folder, or a toy retriever such as world/base.", main=True)
    spacy_model: str | None = opt(
        None, "spaCy model or folder, for the method negclip. Default: en_core_web_sm, or the toy world's parser."
    )
    max_queries: int | None = opt(None, "Most queries to mine in each direction. Default: by --size.", least=1)
    learning_rates: list[float] = opt(
        [], "Peak learning rates; of several the best on validation.", above=0, neutral=True, main=True
    )
    epochs: list[float] = opt(
        [], "Passes over the training captions; of several the best on validation.", above=0, neutral=True, main=True
    )
    budgets: dict | None = opt(
        None,
        """Parts of methods' data, as JSON: '{"samples=3500": ["coco-cf"]}'. Also calls=N, share=0.25, worst=0.25.""",
        neutral=True,
    )
    batch_size: int | None = opt(None, "Pairs per batch. Default: 128, less in the tiny toy world.", least=1)
    training: dict | None = opt(
        None, """More options of `repair-hf train` for all methods, as JSON, such as '{"fp16": true}'."""
    )
    test_split: str = opt("test", "Split for the reported results.", main=True)
    validation_split: str = opt("validation", "Split that learning rate and epochs are chosen on.", main=True)
    paper: Literal["flickr30k", "coco", "coco30k"] | None = opt(
        None, "Add columns with the RePair paper's results on this dataset.", neutral=True
    )
    aro: list[str] = opt(
        [], "Add a table of ARO: folders of `repair-hf evaluate` on the study's `cells/*`.", neutral=True
    )
    keep_models: bool = opt(False, "Keep the weights of each reported training run, in `cells`.", neutral=True)
    table: list[str] = opt(
        [], "Write the tables of these `results.parquet` of finished studies, and train nothing.", neutral=True
    )
    dry_run: bool = opt(False, "Print what each method asks at most, then stop.", neutral=True, main=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for budget, names in (self.budgets or {}).items():
            if parse_budget(budget) and not isinstance(names, list):
                raise UserError(f"`budgets` {budget} has {names!r}; give a list of methods.")


@dataclass
class StudyPairsOptions(PairsOptions):
    """Which images and captions are trained on."""

    pairs: str | None = opt(
        None, "Images and captions, as for `repair-hf train`. Default: a toy world of --size.", main=True
    )  # type: ignore[assignment]


@dataclass
class StudyLLMOptions(LLMOptions):
    """The LLM of all methods. Ceilings apply to the whole study."""

    llm: str = opt(ORACLE, "LLM of all methods, as for `repair-hf synthesize`.", main=True)


@dataclass
class StudyEditorOptions(EditorOptions):
    """The image editor of all methods."""

    editor: str = opt("world", "Image editor of all methods, as for `repair-hf synthesize`.", main=True)


def parse_budget(budget: str) -> tuple[str, float]:
    """Return what a budget counts, and how many samples, how many calls, or which share of the data.

    Calls are of LLM and editor. A share may be named by the order in which records are taken, one of `ORDERS`.

    Example:
        >>> parse_budget("calls=20000")
        ('calls', 20000.0)
        >>> parse_budget("worst=0.25")
        ('worst', 0.25)
    """
    match = re.fullmatch(r"(samples|calls)=(\d+)|([a-z-]+)=(0\.\d+)", budget)
    if match is None or not {match[3]} <= {None, "share", *ORDERS}:
        raise UserError(
            f"`budgets` has {budget!r}; give samples=N, calls=N or share=0.25, or an order as in worst=0.25: "
            f"{', '.join(ORDERS)}."
        )
    return match[1] or match[3], float(match[2] or match[4])
