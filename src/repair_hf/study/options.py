"""The options of `repair-hf study`, and the sizes of its toy world. Nothing here loads torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from repair_hf.runtime.options import Bounded, PairsOptions, UserError, opt
from repair_hf.synthesis.models import ORACLE
from repair_hf.synthesis.options import EditorOptions, LLMOptions


@dataclass(frozen=True)
class Size:
    """A toy world with its hyperparameters, or the hyperparameters of a pretrained CLIP without a world."""

    world: dict[str, int] | None
    max_queries: int | None
    learning_rates: tuple[float, ...]
    epochs: tuple[float, ...]
    grid_weights: tuple[float, ...]
    batch_size: int


SIZES = {
    "tiny": Size({"train": 32, "validation": 16, "test": 24}, 16, (1e-4,), (0.2,), (1.0,), 16),
    "small": Size({"train": 500, "validation": 300, "test": 300}, None, (1e-4, 3e-4), (1.5,), (1.0,), 64),
    "full": Size({"train": 2000, "validation": 1000, "test": 2000}, None, (3e-4, 1e-4), (3.0, 6.0), (1.0, 0.5), 128),
    "large": Size({"train": 10000, "validation": 1000, "test": 2000}, None, (3e-4,), (3.0,), (1.0,), 128),
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
    seeds: int = opt(3, "Training runs of each method.", least=1, main=True)
    size: Literal["tiny", "small", "full", "large"] | None = opt(
        None,
        "Toy world, without --pairs: `tiny` takes seconds, `large` has 10,000 training images. Default: full.",
        main=True,
    )
    model: str = opt(
        "world/base",
        "Retriever: Hub id or folder of a dual encoder, or a toy retriever such as world/base.",
        main=True,
    )
    other_model: str | None = opt(
        None, "Another retriever, for the methods other-backbone and other-backbone-vanilla. Toy world: world/narrow."
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
        "Tune learning rate, epochs and grid weight on the validation split; otherwise the first of each is used.",
        main=True,
    )
    learning_rates: list[float] = opt([], "Peak learning rates to try. Default: the paper's, or by --size.", above=0)
    epochs: list[float] = opt([], "Numbers of passes over the training captions to try.", above=0, main=True)
    grid_weights: list[float] = opt([], "Weights of the grid loss (lambda) to try.", least=0)
    batch_size: int | None = opt(None, "Pairs per batch. Default: 128, less in small toy worlds.", least=1)
    training: dict | None = opt(
        None, """More options of `repair-hf train` for all methods, as JSON, such as '{"fp16": true}'."""
    )
    shares: list[float] = opt(
        [1.0], "Shares of each method's samples to train on, such as 0.2 0.6 1; 1 is always added.", above=0, most=1
    )
    sample_sizes: list[int] = opt(
        [], "Numbers of each method's samples to train on, such as 20000 60000; all are always added.", least=2
    )
    test_split: str = opt("test", "Split for the reported results.", main=True)
    validation_split: str = opt("validation", "Split that --tune evaluates on.", main=True)
    resamples: int = opt(2000, "Bootstrap resamples of the images, for the 95% intervals.", least=1)
    paper: Literal["flickr30k", "coco30k"] | None = opt(
        None,
        "Add columns with the RePair paper's results on this dataset.",
    )
    keep_models: bool = opt(
        False, "Keep the weights of each reported training run; by default they are deleted after evaluation."
    )
    cells: str | None = opt(
        None, "Folder of small JSON results, one per training run: existing ones are reused, new ones added."
    )
    table: bool = opt(False, "Write the tables from --cells alone, without training.")
    dry_run: bool = opt(False, "Print each method's requests and their cost, then stop.", neutral=True, main=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.datasets is not None and not self.datasets:
            raise UserError("`datasets` is empty; name datasets and their options, or leave it out.")
        if self.table and not self.cells:
            raise UserError("`table` needs `cells`, the folder of finished cells.")


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


def size_of(options: StudyOptions, pairs: StudyPairsOptions) -> Size:
    """Return the toy world that the options name, or the hyperparameters for one's own data."""
    if pairs.pairs is None:
        return SIZES[options.size or "full"]
    if options.size is not None:
        raise UserError(
            f"`size` {options.size} is one of the toy world, but `pairs` names {pairs.pairs}; leave one out."
        )
    return OWN_DATA
