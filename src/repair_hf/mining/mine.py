"""Mine a retriever's failures in one call: embed the pairs, rank them, keep the best wrong answers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import ProcessorMixin

from repair_hf.encoder.embedder import vectors_folder
from repair_hf.encoder.opening import Retriever, open_retriever
from repair_hf.encoder.pixel_store import pixels_for
from repair_hf.mining.failures import FILE, load_failures
from repair_hf.mining.false_positives import draw_queries, find_false_positives, summarize, with_ids
from repair_hf.mining.options import MiningOptions
from repair_hf.mining.ranking import check_embeddings
from repair_hf.mining.wrong import find_wrong
from repair_hf.pairs.dataset import MAKE_PAIRS, Pairs
from repair_hf.pairs.truth import Truth, truth_of
from repair_hf.runtime.options import IN_MEMORY, UserError, expect, fill
from repair_hf.runtime.processes import processes
from repair_hf.runtime.stage import Stage


def mine(
    model: Retriever,
    pairs: Pairs,
    *,
    processor: ProcessorMixin | None = None,
    output: str | Path | None = None,
    **options: Any,
) -> Dataset:
    """Find the wrong answers that a retriever ranks highest, in both directions.

    Args:
        model: A `CLIPModel` or another dual encoder of transformers, a `SentenceTransformer`, a Hub id, or a folder.
        pairs: Images and captions, see `load_pairs` and `Pairs.from_dataset`.
        processor: The model's processor; by default the one beside the weights.
        output: Folder for the failures, as `repair-hf mine` writes it; a finished one is read. None writes nothing.
        options: Fields of `MiningOptions`, such as `d_i2t=5` or `max_queries=1000`: the options of `repair-hf mine`.

    Returns:
        A row per false positive, see `mine_false_positives`, with the ids of query, ground truth and false positive.

    Raises:
        UserError: If an argument is of a wrong type, the model cannot be loaded, an option is not valid, or the folder
            holds something else.

    Example:
        >>> failures = mine("openai/clip-vit-base-patch32", pairs, max_queries=1000)
        >>> failures.filter(lambda row: row["gt_rank"] > 1)
    """
    name = str(model) if isinstance(model, str | Path) else IN_MEMORY
    (wanted,) = fill([MiningOptions], options | {"model": name}, "mine")
    return Mining(model, pairs, wanted, processor=processor, output=output).run()


class Mining:
    """What is to be mined, loaded and checked; nothing is written yet. The arguments are those of `mine`.

    Attributes:
        stage: The folder.
        summary: After `run`, the numbers; empty except in the first process.
    """

    summary: dict[str, Any]

    def __init__(
        self,
        model: Retriever,
        pairs: Pairs,
        options: MiningOptions,
        *,
        processor: ProcessorMixin | None = None,
        output: str | Path | None = None,
    ) -> None:
        expect(pairs, Pairs, "pairs", MAKE_PAIRS)
        if options.search != "exact" and processes().count > 1:
            raise UserError(
                f"`search` {options.search} runs in one process, got {processes().count}; only exact search can be "
                "shared."
            )
        if len(pairs.images) < 2:
            raise UserError(
                f"`{pairs.source.pairs}` has one usable image in split `{pairs.source.split}`, so no caption can find "
                "a wrong one. Give more images, or --split all."
            )
        self.pairs, self.options = pairs, options
        self._failures: Dataset | None = None
        self.encoder = open_retriever(model, processor, **options.how_to_load)
        inputs = {"pairs_fingerprint": pairs.fingerprint, "model_digest": self.encoder.digest}
        if options.model == IN_MEMORY:  # who mined the failures
            inputs["model"] = self.encoder.origin or IN_MEMORY
        if options.wrong is not None:
            if not Path(options.wrong).is_file():
                raise UserError(f"`wrong` {options.wrong} is no file; give a table with the columns query and wrong.")
            inputs["wrong_digest"] = hashlib.sha256(Path(options.wrong).read_bytes()).hexdigest()
        needs = ("directions", "positives_by_equal_text")
        named: dict[str, Any] = {"items": pairs.items, "needs": needs, "writes": [FILE]}
        self.stage = Stage("mine", output, (pairs.source, options), inputs, **named)
        self.stage.check()

    def run(self) -> Dataset:
        """Mine, or read what is mined already. Every process gets all failures."""
        self.summary = self.stage.run(self._mine)
        return load_failures(str(self.stage.folder)) if self._failures is None else self._failures

    def _mine(self, folder: Path | None) -> dict[str, Any]:
        """Mine in all processes; the first writes the failures and returns their summary."""
        pairs, options = self.pairs, self.options
        pixels = pixels_for(pairs.images, self.encoder.preprocessor, options)
        cache = None if folder is None else vectors_folder()
        images, texts = self.encoder.embed_pairs(pairs, pixels=pixels, cache_folder=cache)
        vectors = np.asarray(images, np.float32), np.asarray(texts, np.float32)
        check_embeddings(*vectors, pairs.caption_image)
        positives, alike = truth_of(pairs, vectors[0], options.near_duplicates)
        failures, about = self._search(vectors, positives)
        self._failures = with_ids(failures, pairs)
        if not processes().is_main:
            return {}
        if folder is not None:
            draft = folder / f".{FILE}.tmp"
            self._failures.to_parquet(draft)
            draft.replace(folder / FILE)
        by_text = positives.beyond_annotation
        if any(alike.values()):
            by_text = Truth.annotated(pairs.caption_image, len(images), wording=positives.wording).beyond_annotation
        return {
            "directions": summarize(failures),
            "positives_by_equal_text": by_text,
            "positives_by_image": positives.beyond_annotation - by_text,
            "images_alike": alike,
            "vectors": [str(part.filename) for part in (images, texts) if isinstance(part, np.memmap)],
            **about,
            "captions_cut": self.encoder.report_captions(pairs.captions["caption"][:]),
        }

    def _search(self, vectors: tuple[np.ndarray, np.ndarray], positives: Truth) -> tuple[Dataset, dict[str, Any]]:
        """Return the failures, and what the summary says of an index or of a user's own failures."""
        options = self.options
        if options.wrong is not None:
            failures, counts = find_wrong(options.wrong, self.pairs, *vectors, positives)
            return failures, {"wrong": counts}
        sizes: Any = {"d_i2t": options.d_i2t, "d_t2i": options.d_t2i}
        asked = np.unique(positives.wording, return_index=True)[1]  # captions of equal wording are one query
        queries = None
        if options.max_queries is not None:
            drawn = positives, self.pairs.caption_image, options.max_queries
            queries = draw_queries(*drawn, **sizes, captions=asked, seed=options.seed)
        failures, recall = find_false_positives(
            *vectors,
            positives,
            k_mine=options.k_mine,
            **sizes,
            queries=queries,
            has_index=options.search != "exact",
            device=self.encoder.device,
        )
        rows = failures.with_format("numpy")[:]
        failures = failures.select(np.flatnonzero((rows["direction"] == "i2t") | np.isin(rows["q"], asked)))
        about = {"search": options.search, "recall": recall, "ranks": "lower bounds"}
        return failures, about if options.search != "exact" else {}
