"""The options of `repair-hf study`, and the sizes that it knows.

In:  a recipe or a command line.
Out: dataclasses; nothing here loads torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from repair_hf.runtime.options import PairsOptions, UserError, opt
from repair_hf.synthesis.models import ORACLE, EditorOptions, LLMOptions


@dataclass(frozen=True)
class Size:
    """A toy world and the hyperparameters that suit it; without a world, those that suit a pretrained CLIP."""

    world: dict[str, int] | None
    max_queries: int | None
    learning_rates: tuple[float, ...]
    epochs: tuple[float, ...]
    grid_weights: tuple[float, ...]
    batch_size: int


SIZES = {
    "tiny": Size({"train": 32, "validation": 16, "test": 24}, 16, (1e-4,), (0.2,), (1.0,), 16),
    "small": Size({"train": 500, "validation": 300, "test": 300}, None, (1e-4, 3e-4), (1.5,), (1.0,), 64),
    "full": Size({"train": 2500, "validation": 2000, "test": 2000}, None, (1e-4, 3e-4), (1.5,), (1.0, 0.5), 128),
}
OWN_DATA = Size(None, None, (1e-5, 5e-6, 2e-6), (5.0,), (0.5, 1.0), 128)


@dataclass
class ListOptions:
    """What there is."""

    _argument_group_name = "methods"

    list: bool = opt(False, "Print the names of all methods, one a line, then stop.")


@dataclass
class StudyOptions:
    """Which methods, and how they are trained and measured."""

    _argument_group_name = "study"

    output: str = opt("runs/study", "Folder of the study.")
    datasets: dict | None = opt(
        None,
        """Several data sets, and one table of all: name -> the options in which it differs, such as '{"flickr30k": {"pairs": "..."}}'.""",
    )
    methods: list[str] = opt([], "Names of methods; all by default. Plain training is always among them.")
    seeds: int = opt(3, "Trainings of each method.")
    size: Literal["tiny", "small", "full"] | None = opt(
        None,
        "Of the toy world, where no --pairs are given; full by default. `tiny` shows in seconds that every part runs; its numbers mean nothing.",
    )
    model: str = opt(
        "world/base-12k",
        "The retriever: Hub id or folder of a dual encoder, or world/base-12k, world/narrow-12k or world/base.",
    )
    other_model: str | None = opt(
        None,
        "Another retriever, for the methods other-backbone and other-backbone-vanilla. In the toy world, world/narrow-12k.",
    )
    weak_llm: str | None = opt(
        None, "A weaker LLM, for the method weak-llm. In the toy world, the oracle that errs in a fifth of its audits."
    )
    weak_editor: str | None = opt(
        None, "A weaker editor, for weak-editor. In the toy world, one that changes too much in three of ten images."
    )
    spacy_model: str | None = opt(
        None, "spaCy model or folder that parses captions for negclip; en_core_web_sm, or the toy world's own parser."
    )
    max_queries: int | None = opt(
        None,
        "Mine at most so many queries of each direction; all by default, as the other methods take every caption.",
    )
    d_i2t: int = opt(5, "False positive captions kept for each image.")
    d_t2i: int = opt(1, "False positive images kept for each caption.")
    tune: bool = opt(
        False,
        "Choose learning rate, epochs and lambda for each method, one after the other, on the validation split; without it the first of each is taken.",
    )
    learning_rates: list[float] = opt([], "Peak learning rates to choose from; by --size, or the paper's.")
    epochs: list[float] = opt([], "Passes over the training captions to choose from.")
    grid_weights: list[float] = opt([], "Lambdas to choose from.")
    batch_size: int | None = opt(None, "Pairs in a batch; 128, less in small worlds.")
    training: dict | None = opt(
        None, """More arguments of training for all methods, such as '{"fp16": true}': those of `repair-hf train`."""
    )
    shares: list[float] = opt(
        [1.0], "Shares of each method's samples to train on, such as 0.2 0.6 1; 1 is always among them."
    )
    test_split: str = opt("test", "Split that is reported on.")
    validation_split: str = opt("validation", "Split that --tune chooses on.")
    resamples: int = opt(2000, "Times that the images are drawn anew, with replacement, for the 95% intervals.")
    paper: Literal["flickr30k", "coco30k"] | None = opt(
        None, "Set the figures that RePair's paper reports for this data set beside ours, in columns of their own."
    )
    keep_models: bool = opt(False, "Keep the weights of each training; they are deleted once measured.")
    dry_run: bool = opt(False, "Say what each method would ask for and what that would cost, then stop.")

    def __post_init__(self) -> None:
        if self.datasets is not None and not self.datasets:
            raise UserError("`datasets` is empty; name data sets and their options, or leave it out.")
        for name in ("seeds", "resamples", "d_i2t", "d_t2i"):
            if vars(self)[name] < 1:
                raise UserError(f"`{name}` must be at least 1, got {vars(self)[name]}.")
        if wrong := [share for share in self.shares if not 0 < share <= 1]:
            raise UserError(f"`shares` lie above 0 and at most at 1, got {wrong[0]:g}.")
        for name in ("learning_rates", "epochs"):
            if wrong := [value for value in vars(self)[name] if value <= 0]:
                raise UserError(f"`{name}` must be more than 0, got {wrong[0]:g}.")
        if wrong := [value for value in self.grid_weights if value < 0]:
            raise UserError(f"`grid_weights` must not be negative, got {wrong[0]:g}.")
        for name in ("max_queries", "batch_size"):
            if vars(self)[name] is not None and vars(self)[name] < 1:
                raise UserError(f"`{name}` must be at least 1, got {vars(self)[name]}; leave it out for the default.")


@dataclass
class StudyPairsOptions(PairsOptions):
    """Which images and captions are trained on."""

    pairs: str | None = opt(None, "As for `repair-hf train`; without, the toy world of --size is drawn.")


@dataclass
class StudyLLMOptions(LLMOptions):
    """The LLM of all methods. Ceilings hold for the study as a whole."""

    llm: str = opt(ORACLE, "The LLM of all methods, as for `repair-hf synthesize`.")


@dataclass
class StudyEditorOptions(EditorOptions):
    """The image editor of all methods."""

    editor: str = opt("world", "The image editor of all methods, as for `repair-hf synthesize`.")


def size_of(options: StudyOptions, pairs: StudyPairsOptions) -> Size:
    """The toy world that was asked for, or what suits a data set of one's own.

    Raises:
        UserError: If both are given.
    """
    if pairs.pairs is None:
        return SIZES[options.size or "full"]
    if options.size is not None:
        raise UserError(
            f"`size` {options.size} is one of the toy world, but `pairs` names {pairs.pairs}; give one of the two."
        )
    return OWN_DATA
