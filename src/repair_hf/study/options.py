"""The options of `repair-hf study`, and the sizes of its toy world. Nothing here loads torch."""

from __future__ import annotations

import math
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

    world: Mapping[str, int] | None
    max_queries: int | None
    learning_rates: tuple[float, ...]
    epochs: tuple[float, ...]
    grid_weights: tuple[float, ...]
    batch_size: int


SIZES = {
    "tiny": Size({"train": 32, "validation": 16, "test": 24}, 16, (1e-4,), (0.2,), (1.0,), 16),
    "small": Size({"train": 1000, "validation": 1000, "test": 2000}, None, (3e-4, 1e-4), (2.0, 4.0), (1.0, 0.5), 128),
    "large": Size({"train": 10_000, "validation": 1000, "test": 2000}, None, (3e-4,), (2.0,), (1.0,), 128),
}
OWN_DATA = Size(None, None, (1e-5, 5e-6, 2e-6), (5.0,), (0.5, 1.0), 128)


@dataclass
class ListOptions:
    """Listing instead of running."""

    _argument_group_name = "methods"

    list: bool = opt(False, "Print the names of all methods, then stop.", main=True)


@dataclass
class StudyOptions(Bounded):
    """Which methods, and how they are trained and evaluated."""

    _argument_group_name = "study"

    output: str = opt("runs/study", "Folder of the study.", neutral=True, main=True)
    datasets: dict | None = opt(
        None,
        """Several datasets in one table, as JSON: name -> options that differ, such as '{"coco": {"pairs": """
        """"..."}}'.""",
    )
    methods: list[str] = opt([], "Names of methods. Default: all. Plain training is always added.", main=True)
    records: list[str] = opt(
        [],
        "Existing records, folders or Hub ids: compare plain training, `repair` and `repair-paper` at no "
        "further cost.",
        main=True,
    )
    near_misses: list[str] = opt(
        [], "Records of the test split, folders or Hub ids, as a second measure. Toy world: made by the study."
    )
    seeds: int = opt(3, "Training runs of each method.", least=1, main=True)
    size: Literal["tiny", "small", "large"] | None = opt(
        None, "Size of the toy world, if --pairs is not given; `tiny` takes seconds. Default: small.", main=True
    )
    model: str = opt(
        "world/base",
        "Retriever: Hub id or folder of a dual encoder, or a toy retriever such as world/base.",
        main=True,
    )
    swaps: dict | None = opt(
        None,
        """Other LLMs or image editors, as JSON: method -> options that differ, such as '{"gpt-4o": {"llm": """
        """"openai/gpt-4o"}}'.""",
    )
    spacy_model: str | None = opt(
        None, "spaCy model or folder, for the method negclip. Default: en_core_web_sm, or the toy world's parser."
    )
    max_queries: int | None = opt(None, "Most queries to mine in each direction. Default: all.", least=1)
    d_i2t: int = opt(5, "False positive captions to keep per image.", least=1)
    d_t2i: int = opt(1, "False positive images to keep per caption.", least=1)
    tune: bool = opt(
        False,
        "Choose learning rate, epochs and grid weight on the validation split; otherwise each that you name is a row.",
        main=True,
    )
    learning_rates: list[float] = opt([], "Peak learning rates. Default: the paper's, or by --size.", above=0)
    epochs: list[float] = opt([], "Numbers of passes over the training captions.", above=0, main=True)
    fills: list[str] = opt([], "Fills of `train` for RePair, each a row: edits, paper. Default: the method's.")
    losses: list[str] = opt(
        [], "Losses of `train` for what methods add, each a row: batch, grid, both. Default: the method's."
    )
    grid_weights: list[float] = opt([], "Weights of the grid loss (lambda).", least=0)
    budgets: list[str] = opt(
        [],
        "Parts of a method's data, each a row: all, samples=N, calls=N, or usd=N@A+B (dollars per call and image).",
    )
    batch_size: int | None = opt(None, "Pairs per batch. Default: 128, less in the tiny toy world.", least=1)
    training: dict | None = opt(
        None, """More options of `repair-hf train` for all methods, as JSON, such as '{"fp16": true}'."""
    )
    test_split: str = opt("test", "Split for the reported results.", main=True)
    validation_split: str = opt("validation", "Split that --tune evaluates on.", main=True)
    paper: Literal["flickr30k", "coco30k"] | None = opt(
        None, "Add columns with the RePair paper's results on this dataset."
    )
    keep_models: bool = opt(False, "Keep the weights of each reported training run, in `cells`.")
    results: str | None = opt(
        None, "File of finished training runs, to which new ones are added. Default: OUTPUT/results.parquet."
    )
    table: bool = opt(False, "Write the tables from --results alone, without training.")
    dry_run: bool = opt(False, "Print each method's requests and their cost, then stop.", neutral=True, main=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.datasets is not None and not self.datasets:
            raise UserError("`datasets` is empty; name datasets and their options, or leave it out.")
        for name, known in (("fills", ("edits", "paper")), ("losses", ("batch", "grid", "both"))):
            if unknown := set(getattr(self, name)) - set(known):
                raise UserError(f"`{name}` takes {', '.join(known)}, got {min(unknown)!r}.")
        for budget in self.budgets:
            parse_budget(budget)


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


def parse_budget(budget: str) -> tuple[float, tuple[float, float, float]]:
    """Return the amount of a budget, and how much of it a sample, an LLM call and an image take.

    Example:
        >>> parse_budget("usd=5@0.0005+0.04")
        (5.0, (0, 0.0005, 0.04))
    """
    match = re.fullmatch(r"all|(samples|calls)=([\d.]+)|usd=([\d.]+)@([\d.]+)\+([\d.]+)", budget)
    if match is None:
        raise UserError(
            f"`budgets` has {budget!r}; give all, samples=N, calls=N, or usd=N@A+B, such as usd=5@0.0005+0."
        )
    kind, count, dollars, per_call, per_image = match.groups()
    if dollars:
        return float(dollars), (0, float(per_call), float(per_image))
    return (float(count), (1, 0, 0) if kind == "samples" else (0, 1, 1)) if kind else (math.inf, (0, 0, 0))
