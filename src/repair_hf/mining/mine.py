"""Mine a retriever's failures in one call: embed the pairs, rank them, keep the best wrong answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from datasets import Dataset
from transformers import ProcessorMixin

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.opening import Retriever, open_encoder
from repair_hf.encoder.pixel_store import pixels_for
from repair_hf.mining.faiss_index import Index
from repair_hf.mining.false_positives import (
    annotated_positives,
    mine_approximately,
    mine_false_positives,
    sample_queries,
    summarize,
    with_ids,
)
from repair_hf.mining.options import MiningKeywords, MiningOptions
from repair_hf.mining.random_failures import at_random
from repair_hf.pairs.dataset import MAKE_PAIRS, Pairs
from repair_hf.runtime.options import UserError, expect
from repair_hf.runtime.processes import processes


def mine(
    model: Retriever, pairs: Pairs, *, processor: ProcessorMixin | None = None, **options: Unpack[MiningKeywords]
) -> Dataset:
    """Find the wrong answers that a retriever ranks highest, in both directions.

    Args:
        model: A `CLIPModel` or another dual encoder of transformers, a Hub id, or a folder.
        pairs: Images and captions, see `load_pairs` and `Pairs.from_dataset`.
        processor: The model's processor; by default the one beside the weights.
        options: Fields of `MiningOptions`, such as `d_i2t=5` or `max_queries=1000`: the options of `repair-hf mine`.

    Returns:
        A row per false positive, see `mine_false_positives`, with the ids of query, ground truth and false positive.

    Raises:
        UserError: If an argument is of a wrong type, the model cannot be loaded, or an option is not valid.

    Example:
        >>> failures = mine("openai/clip-vit-base-patch32", pairs, max_queries=1000)
        >>> failures.filter(lambda row: row["gt_rank"] > 1)
    """
    wanted = MiningOptions(**options)
    expect(pairs, Pairs, "pairs", MAKE_PAIRS)
    if len(pairs.images) < 2:
        raise UserError("`pairs` hold one image, so no caption can find a wrong one. Give more images.")
    encoder = open_encoder(model, processor, batch_size=wanted.batch_size, precision=wanted.precision)
    return mine_pairs(encoder, pairs, wanted)[0]


def mine_pairs(
    encoder: DualEncoder, pairs: Pairs, options: MiningOptions, cache_folder: Path | None = None
) -> tuple[Dataset, dict[str, Any]]:
    """Mine with an open encoder; vectors are kept in `cache_folder`. Every process gets all failures.

    Returns:
        The failures; and their summary: `directions` (see `summarize`), `positives_by_equal_text`, and with an index
        `search`, `recall` and `ranks`.
    """
    captions, pixels = pairs.captions["caption"][:], pixels_for(pairs.images, encoder.preprocessor, options)
    images, texts = encoder.embed_pairs(pairs, pixels=pixels, cache_folder=cache_folder)
    sizes: dict[str, Any] = {"k_mine": options.k_mine, "d_i2t": options.d_i2t, "d_t2i": options.d_t2i}
    sizes["same_text_is_positive"] = captions
    of_search: dict[str, Any] = {}
    if options.search == "exact":
        device = encoder.device if encoder.device.type == "cuda" else "cpu"
        failures = mine_false_positives(
            images, texts, pairs.caption_image, device=device, everyone=processes(), **sizes
        )
    else:
        failures, recall = mine_approximately(
            images, texts, pairs.caption_image, Index(options.search, options.search_effort), **sizes
        )
        of_search = {"search": options.search, "recall": recall, "ranks": "lower bounds"}
    if options.max_queries is not None:
        failures = sample_queries(failures, pairs.caption_image, options.max_queries, options.seed)
    positives = annotated_positives(pairs.caption_image, len(pairs.images), captions)
    if options.false_positives == "random":
        failures = at_random(failures, images, texts, positives, options.seed)
    summary = {"directions": summarize(failures), "positives_by_equal_text": positives.doubles}
    return with_ids(failures, pairs), summary | of_search
