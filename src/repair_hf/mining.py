"""Find what the retriever confuses: the best-scored candidates that do not answer a query.

In:  unit vectors of images and captions, and each caption's image.
Out: one row per false positive: direction, q, gt, fp, their scores and ranks; and a table of how they lie.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, Value, concatenate_datasets

from repair_hf.options import UserError
from repair_hf.pairs import Pairs, bare_caption
from repair_hf.rankings import Positives, Ranking
from repair_hf.retrieval import check_embeddings, rank_both_ways

DIRECTIONS = ("t2i", "i2t")
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
) -> Dataset:
    """Find each query's best-scored false positives, in both directions.

    Every query is mined, also one whose positive stands first: the candidate right behind it is what it will be
    confused with next. `gt_rank` above 1 tells the failures proper.

    Args:
        image_embeddings: Unit vectors, float32.
        text_embeddings: Unit vectors, float32.
        caption_image: Index of each caption's image.
        k_mine: Size of the pool of false positives that the kept ones are the best of. The d best of the pool are the
            d best of all, so it bounds `d_i2t` and `d_t2i` and changes nothing else.
        d_i2t: False positives (captions) kept for each image.
        d_t2i: False positives (images) kept for each caption.
        same_text_is_positive: The captions' texts, if a caption that equals one of an image's own, but for case,
            spacing and final punctuation, shall count as that image's positive too.

    Shape:
        image_embeddings: (N, D). text_embeddings: (M, D). caption_image, same_text_is_positive: (M,).

    Returns:
        Rows of direction, q, gt, fp, fp_score, fp_rank, gt_score, gt_rank; first `t2i` (q a caption; gt and fp
        images), then `i2t` (q an image; gt and fp captions), in order of q, then of rank. q, gt and fp are indices;
        scores are cosines; gt is the best-scored positive. Ranks count from 1 in the full ranking, positives included;
        a tie counts against the positive. A query with fewer candidates than asked for has fewer rows.

    Raises:
        UserError: If a vector is zero or not finite, an image has no caption, shapes do not fit, or a d exceeds `k_mine`.
    """
    for name, d in (("d_i2t", d_i2t), ("d_t2i", d_t2i)):
        if not 0 <= d <= k_mine:
            raise UserError(f"`{name}` must lie between 0 and `k_mine` ({k_mine}), got {d}.")
    images, texts = np.asarray(image_embeddings, np.float32), np.asarray(text_embeddings, np.float32)
    caption_image = np.asarray(caption_image, np.int64)
    check_embeddings(images, texts, caption_image)
    i2t, t2i = rank_both_ways(
        images,
        texts,
        annotated_positives(caption_image, len(images), same_text_is_positive),
        fps_of_image=min(d_i2t, len(texts)),
        fps_of_caption=min(d_t2i, len(images)),
    )
    return concatenate_datasets([_rows("t2i", t2i), _rows("i2t", i2t)])


def annotated_positives(caption_image: np.ndarray, n_images: int, captions: Sequence[str] | None = None) -> Positives:
    """What counts as an answer while mining: the annotation and, if `captions` are given, captions of equal text."""
    if captions is not None and len(captions) != len(caption_image):
        raise UserError(
            f"`same_text_is_positive` must hold a text for each of the {len(caption_image)} captions, got {len(captions)}."
        )
    return Positives.of(
        caption_image, n_images, None if captions is None else [bare_caption(text) for text in captions]
    )


def sample_queries(failures: Dataset, max_queries: int, seed: int = 0) -> Dataset:
    """Keep the false positives of `max_queries` queries of each direction, drawn at random; the order stays."""
    direction, query = np.array(failures["direction"][:]), np.array(failures["q"][:])
    kept = np.zeros(len(failures), bool)
    for place, name in enumerate(DIRECTIONS):
        queries = np.unique(query[direction == name])
        drawn = np.random.default_rng([seed, place]).permutation(queries)[:max_queries]
        kept |= (direction == name) & np.isin(query, drawn)
    return failures.select(np.flatnonzero(kept))


def with_ids(failures: Dataset, pairs: Pairs) -> Dataset:
    """Add `q_id`, `gt_id` and `fp_id`, the names that the items have in the pairs."""
    image_ids, caption_ids = pairs.images["image_id"][:], pairs.captions["caption_id"][:]
    table, is_t2i = failures.with_format("arrow")[:], [way == "t2i" for way in failures["direction"][:]]
    for role in ("q", "gt", "fp"):
        rows = zip(is_t2i, failures[role][:], strict=True)
        ids = [caption_ids[row] if t2i == (role == "q") else image_ids[row] for t2i, row in rows]
        table = table.append_column(f"{role}_id", pa.array(ids, pa.string()))
    return Dataset(table)


def summarize(failures: Dataset) -> dict[str, dict[str, float]]:
    """Tell how the false positives lie, for each direction that has any.

    Returns:
        `queries`; `false_positives`; `failed`, the queries with a false positive before their gt; and the quartiles
        `gap_25`, `gap_50`, `gap_75` of the score of a query's best false positive less its gt's (positive: it failed).
    """
    columns = {name: np.array(failures[name][:]) for name in failures.column_names}
    table = {}
    for name in DIRECTIONS:
        rows = {key: values[columns["direction"] == name] for key, values in columns.items()}
        if not len(rows["q"]):
            continue
        best = np.lexsort((rows["fp_rank"], rows["q"]))[np.unique(np.sort(rows["q"]), return_index=True)[1]]
        gaps = rows["fp_score"][best] - rows["gt_score"][best]  # (queries,)
        quartiles = np.percentile(gaps, [25, 50, 75]).tolist()
        table[name] = {
            "queries": len(best),
            "false_positives": len(rows["q"]),
            "failed": int((rows["gt_rank"][best] > 1).sum()),
            **dict(zip(("gap_25", "gap_50", "gap_75"), quartiles, strict=True)),
        }
    return table


def _rows(direction: str, ranking: Ranking) -> Dataset:
    query, place = np.nonzero(ranking.fp >= 0)
    columns = {
        "direction": pa.repeat(direction, len(query)),
        "q": query,
        "gt": ranking.gt[query],
        "fp": ranking.fp[query, place],
        "fp_score": ranking.fp_score[query, place],
        "fp_rank": ranking.fp_rank[query, place],
        "gt_score": ranking.gt_score[query],
        "gt_rank": ranking.gt_rank[query],
    }
    return Dataset(pa.table(columns, schema=FEATURES.arrow_schema))
