"""Mine false positives: the best-scored candidates that do not answer a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, Value, concatenate_datasets

from repair_hf.mining.faiss_index import rank_by_index
from repair_hf.mining.options import check_sizes
from repair_hf.mining.queries import Ranking
from repair_hf.mining.ranking import check_embeddings, rank_both_ways, rank_some
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.truth import Truth, wordings
from repair_hf.runtime.options import UserError

FEATURES = Features(
    {
        "direction": Value("string"),
        "q": Value("int64"),
        "gt": Value("int64"),
        "fp": Value("int64"),
        "fp_score": Value("float32"),
        "fp_rank": Value("int64"),
        "gt_score": Value("float32"),
        "gt_rank": Value("int64"),
    }
)


def mine_false_positives(
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    caption_image: np.ndarray,
    *,
    k_mine: int = 100,
    d_i2t: int = 5,
    d_t2i: int = 1,
    same_text_is_positive: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> Dataset:
    """Find each query's best-scored false positives, in both directions.

    Every query is mined, also if its positive ranks first: the candidate right behind it is the next likely error.
    Rows with `gt_rank > 1` are retrieval failures. The processes of a launcher share the work: each must call this
    with the same vectors, and gets all rows.

    Args:
        image_embeddings: Unit vectors, (N, D) float32; may be memory-mapped.
        text_embeddings: Unit vectors, (M, D) float32; may be memory-mapped.
        caption_image: Index of each caption's image, (M,).
        k_mine: Size of each query's pool of false positives. It bounds `d_i2t` and `d_t2i` and changes nothing else.
        d_i2t: False positives (captions) kept for each image.
        d_t2i: False positives (images) kept for each caption.
        same_text_is_positive: The captions' texts, (M,), to count a caption as a positive of each image that has a
            caption of the same text, ignoring case, spacing and final punctuation.
        device: Where blocks of scores are screened.

    Returns:
        Rows of direction, q, gt, fp, fp_score, fp_rank, gt_score, gt_rank; first `t2i` (q a caption; gt and fp
        images), then `i2t` (q an image; gt and fp captions), in order of q, then of rank. q, gt and fp are indices;
        scores are cosines; gt is the best-scored positive. Ranks count from 1 in the full ranking, positives included,
        and ties are ranked pessimistically. A query with fewer candidates than asked for has fewer rows.

    Raises:
        UserError: If vectors, `caption_image` or sizes are not valid.
    """
    images, texts = np.asarray(image_embeddings, np.float32), np.asarray(text_embeddings, np.float32)
    caption_image = np.asarray(caption_image, np.int64)
    check_embeddings(images, texts, caption_image)
    check_sizes(k_mine, d_i2t=d_i2t, d_t2i=d_t2i)
    wording = None if same_text_is_positive is None else wordings(same_text_is_positive)
    if wording is not None and len(wording) != len(texts):
        raise UserError(
            f"`same_text_is_positive` must hold a text for each of the {len(texts)} captions, got {len(wording)}."
        )
    positives = Truth.annotated(caption_image, len(images), wording=wording)
    sizes: Any = {"k_mine": k_mine, "d_i2t": d_i2t, "d_t2i": d_t2i}
    return find_false_positives(images, texts, positives, **sizes, device=device)[0]


def find_false_positives(
    images: np.ndarray,
    texts: np.ndarray,
    positives: Truth,
    *,
    k_mine: int,
    d_i2t: int,
    d_t2i: int,
    queries: Mapping[str, np.ndarray] | None = None,
    has_index: bool = False,
    device: torch.device | str = "cpu",
) -> tuple[Dataset, dict[str, float]]:
    """Find false positives as `mine_false_positives` does, of some queries or with an index that may miss some.

    `queries` are the rows of each direction that are ranked, ascending; None ranks all. With an index, scores are
    exact and ranks are lower bounds: candidates that it missed are not counted, and `gt_rank` is at most `k_mine` + 1.

    Returns:
        The rows; and with an index the recall by direction: the share of the true false positives that were found,
        measured on some queries.
    """
    fps = {"t2i": min(d_t2i, len(images)), "i2t": min(d_i2t, len(texts))}
    if not has_index and queries is None:
        both = {"fps_of_image": fps["i2t"], "fps_of_caption": fps["t2i"]}
        i2t, t2i = rank_both_ways(images, texts, positives, **both, device=device)
        return concatenate_datasets([_rows("t2i", t2i), _rows("i2t", i2t)]), {}
    parts, recall = [], {}
    for direction, vectors in (("t2i", texts), ("i2t", images)):
        rows = np.arange(len(vectors)) if queries is None else queries[direction]
        if not (fps[direction] and len(rows)):
            continue
        data, k = (direction, images, texts, positives, rows), fps[direction]
        if has_index:
            ranking, recall[direction] = rank_by_index(*data, fps=k, pool=k_mine)
        else:
            ranking = rank_some(*data, fps=k, device=device)
        parts.append(_rows(direction, ranking, rows))
    failures = concatenate_datasets(parts) if parts else Dataset.from_dict(dict.fromkeys(FEATURES, []), FEATURES)
    return failures, dict(sorted(recall.items()))


def draw_queries(
    positives: Truth,
    caption_image: np.ndarray,
    max_queries: int,
    *,
    d_i2t: int,
    d_t2i: int,
    captions: np.ndarray | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Draw `max_queries` images and as many of their captions at random: rows by direction, ascending.

    Only queries are drawn that have a wrong answer, of a direction that is mined. `caption_image` is the image of each
    caption, (M,). `captions` are rows of captions that may be drawn; by default all.
    """
    n_images, n_captions = len(positives.image_class), len(caption_image)
    captions_of_image, images_of_caption = positives.counts()
    is_i2t = (captions_of_image < n_captions) & (d_i2t > 0)
    is_t2i = (images_of_caption < n_images) & (d_t2i > 0)
    if captions is not None:
        is_t2i &= np.isin(np.arange(n_captions), captions)
    images = np.union1d(np.flatnonzero(is_i2t), caption_image[is_t2i])
    drawn = np.random.default_rng([seed, 1]).permutation(images)[:max_queries]
    captions = np.flatnonzero(is_t2i & np.isin(caption_image, drawn))
    captions = np.random.default_rng([seed, 0]).permutation(captions)[:max_queries]
    return {"t2i": np.sort(captions), "i2t": np.sort(drawn[is_i2t[drawn]])}


def with_ids(failures: Dataset, pairs: Pairs) -> Dataset:
    """Add `q_id`, `gt_id` and `fp_id`, the items' ids in the pairs."""
    items = pairs.images.with_format("arrow")["image_id"][:], pairs.captions.with_format("arrow")["caption_id"][:]
    ids = pa.chunked_array([chunk.cast(pa.large_string()) for column in items for chunk in column.chunks])
    table = failures.with_format("arrow")[:]
    is_t2i = pc.equal(table["direction"], "t2i").to_numpy()
    for role in ("q", "gt", "fp"):
        is_caption = is_t2i == (role == "q")
        rows = table[role].to_numpy() + np.where(is_caption, len(pairs.images), 0)
        table = table.append_column(f"{role}_id", ids.take(pa.array(rows)).cast(pa.string()))
    return Dataset(table)


def summarize(failures: Dataset) -> dict[str, dict[str, float]]:
    """Summarize the false positives of each direction that has any.

    `failed` counts the queries with a false positive ahead of their gt. `gap_25`, `gap_50` and `gap_75` are quartiles
    of the score of a query's best false positive minus its gt's (positive: it failed).
    """
    table: dict[str, dict[str, float]] = {}
    all_rows = failures.select_columns(list(FEATURES)).to_pandas()
    for direction in ("t2i", "i2t"):
        rows = all_rows[all_rows["direction"] == direction]
        if len(rows):
            best = rows.sort_values("fp_rank").drop_duplicates("q")
            gaps = np.percentile(best["fp_score"] - best["gt_score"], [25, 50, 75]).tolist()  # of the queries
            table[direction] = {
                "queries": len(best),
                "false_positives": len(rows),
                "failed": int((best["gt_rank"] > 1).sum()),
                **dict(zip(("gap_25", "gap_50", "gap_75"), gaps, strict=True)),
            }
    return table


def _rows(direction: str, ranking: Ranking, queries: np.ndarray | None = None) -> Dataset:
    query, place = np.nonzero(ranking.fp >= 0)
    columns = {
        "direction": pa.repeat(direction, len(query)),
        "q": query if queries is None else queries[query],
        "gt": ranking.gt[query],
        "fp": ranking.fp[query, place],
        "fp_score": ranking.fp_score[query, place],
        "fp_rank": ranking.fp_rank[query, place],
        "gt_score": ranking.gt_score[query],
        "gt_rank": ranking.gt_rank[query],
    }
    return Dataset(pa.table(columns, schema=FEATURES.arrow_schema))
