"""Options of `repair-hf bench`: the load of each.

In:  the words of a command line.
Out: dataclasses that have refused what cannot be measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from repair_hf.runtime.options import UserError, opt

SMALL, PAPER = (5000, 25_000), (29_000, 145_000)  # images and captions


@dataclass
class LLMBenchOptions:
    """The load."""

    _argument_group_name = "bench llm"

    requests: int = opt(500, "Requests of each of the two in each round.")
    concurrency: int = opt(64, "Requests at once.")
    latency: float = opt(0.02, "Seconds that the server takes for each request.")
    image_bytes: int = opt(20_000, "Size of the picture that each request carries.")
    rounds: int = opt(8, "Rounds that are counted; one more goes before.")

    def __post_init__(self) -> None:
        _check_counts(self, "requests", "concurrency", "image_bytes", "rounds")
        if self.latency < 0:
            raise UserError(f"`latency` must not be negative, got {self.latency}.")


@dataclass
class TrainBenchOptions:
    """The training step."""

    _argument_group_name = "bench train"

    architecture: Literal["world", "vit-b-32", "vit-l-14"] = opt(
        "world", "The toy world's retriever, or CLIP's sizes with random weights."
    )
    batch: int = opt(128, "Anchors in a step.")
    corpus: int = opt(
        4000,
        "Images that they are drawn from, with five captions each, at least two for each anchor of a step: random batches of fewer share more.",
    )
    steps: int = opt(8, "Steps that are counted; two more go before.")
    rounds: int = opt(2, "Times that each row is measured; the table shows the fastest.")
    precision: Literal["fp32", "bf16", "fp16"] = opt("fp32", "Of the forward and backward; fp16 needs a GPU.")
    chunk_size: int = opt(64, "Images and captions at once in the row `chunks`, gradient caching.")
    chunk_batch: int | None = opt(None, "Anchors in a step of that row; by default as in the others.")
    device: Literal["auto", "cpu", "cuda"] = opt("auto", "Where to run; auto takes the GPU if there is one.")
    rows: list[str] = opt(
        ["all"],
        "Which rows to measure: run_clip, vanilla, every slot, grids, neighbours, chunks, eager, compiled; `all` leaves out `compiled`.",
    )

    def __post_init__(self) -> None:
        self.chunk_batch = self.batch if self.chunk_batch is None else self.chunk_batch
        _check_counts(self, "batch", "corpus", "steps", "rounds", "chunk_size", "chunk_batch")


@dataclass
class EmbedBenchOptions:
    """What is embedded."""

    _argument_group_name = "bench embed"

    architecture: Literal["world", "vit-b-32", "vit-l-14"] = opt(
        "world", "The toy world's retriever, or CLIP's sizes with random weights."
    )
    images: int = opt(512, "Photographs, as JPEG files of 500 x 375.")
    texts: int = opt(5000, "Captions.")
    batch: int = opt(256, "Items encoded at once.")
    rounds: int = opt(2, "Times that each row is measured; the table shows the fastest.")
    device: Literal["auto", "cpu", "cuda"] = opt("auto", "Where to run; auto takes the GPU if there is one.")
    rows: list[str] = opt(["all"], "Which rows to measure: loop, ours, cached, bf16; or all.")

    def __post_init__(self) -> None:
        _check_counts(self, "images", "texts", "batch", "rounds")


@dataclass
class MineBenchOptions:
    """The matrix."""

    _argument_group_name = "bench mine"

    images: int | None = opt(None, "Images; 5,000 by default.")
    texts: int | None = opt(None, "Captions; 25,000 by default.")
    paper: bool = opt(False, "In their place, as many as in the paper's corpus: 29,000 images and 145,000 captions.")
    growth: bool = opt(
        False,
        "In their place, 5,000 x 25,000, the paper's corpus, and twice that each way: how the time of a pair changes.",
    )
    dim: int = opt(512, "Length of a vector.")
    k: int = opt(100, "False positives sought for each query of both directions.")
    repeat: int = opt(3, "Rounds: in each of them every row is measured once. The table shows medians.")
    rows: list[str] = opt(
        ["all"],
        "Which rows to measure: product, mine, mine 5/1, evaluate, faiss, hard negatives; with `growth`, `all` leaves out the last two.",
    )

    def __post_init__(self) -> None:
        if self.paper and self.growth:
            raise UserError("`paper` and `growth` exclude each other: growth has the paper's corpus among its sizes.")
        flag = "paper" if self.paper else "growth" if self.growth else None
        _settle_sizes(self, PAPER if self.paper else SMALL, flag)  # of growth, the least
        _check_counts(self, "dim", "k", "repeat")
        if self.k >= self.images:
            raise UserError(f"`k` must be less than the images ({self.images}), got {self.k}.")

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Images and captions of each matrix."""
        if self.growth:
            return [SMALL, PAPER, (2 * PAPER[0], 2 * PAPER[1])]
        return [(self.images, self.texts)]


@dataclass
class EvaluateBenchOptions:
    """The matrix."""

    _argument_group_name = "bench evaluate"

    images: int | None = opt(None, "Images; 1,000 by default.")
    texts: int | None = opt(None, "Captions; 5,000 by default.")
    paper: bool = opt(False, "In their place, as many as in COCO's test split: 5,000 images and 25,000 captions.")
    dim: int = opt(512, "Length of a vector.")
    resamples: int = opt(2000, "Times that the images are drawn anew for the intervals.")
    repeat: int = opt(3, "Rounds: in each of them every row is measured once. The table shows medians.")

    def __post_init__(self) -> None:
        _settle_sizes(self, SMALL if self.paper else (1000, 5000), "paper" if self.paper else None)
        _check_counts(self, "dim", "resamples", "repeat")
        if self.images < 10:
            raise UserError(f"`images` must be at least 10, for Recall@10; got {self.images}.")


def _settle_sizes(options: Any, sizes: tuple[int, int], flag: str | None) -> None:
    """Fill in `images` and `texts` where they were not given; beside a flag that decides them they may not be."""
    for name, size in zip(("images", "texts"), sizes, strict=True):
        given = vars(options)[name]
        if flag is not None and given is not None:
            raise UserError(f"`{flag}` has sizes of its own; leave out it or `{name}`, got {given}.")
        setattr(options, name, size if given is None else given)
    _check_counts(options, "images", "texts")
    if options.texts < options.images:
        raise UserError(
            f"`texts` must be at least `images` ({options.images}): each has a caption; got {options.texts}."
        )


def _check_counts(options: Any, *names: str) -> None:
    for name in names:
        if vars(options)[name] < 1:
            raise UserError(f"`{name}` must be at least 1, got {vars(options)[name]}.")
