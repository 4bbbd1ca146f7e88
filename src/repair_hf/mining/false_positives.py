"""Mine false positives: the best-scored candidates that do not answer a query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, Value, concatenate_datasets

from repair_hf.mining.faiss_index import Index, rank_by_index
from repair_hf.mining.options import check_sizes
from repair_hf.mining.ranking import check_embeddings, rank_both_ways
from repair_hf.mining.queries import Ranking
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.truth import Truth, wordings
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import Processes

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
    same_image_is_positive: np.ndarray | None = None,
    device: torch.device | str = "cpu",
    everyone: Processes | None = None,
) -> Dataset:
    """Find each query's best-scored false positives, in both directions.

    Every query is mined, also if its positive ranks first: the candidate right behind it is the next likely error.
    Rows with `gt_rank > 1` are retrieval failures.

    Args:
        image_embeddings: Unit vectors, (N, D) float32; may be memory-mapped.
        text_embeddings: Unit vectors, (M, D) float32; may be memory-mapped.
        caption_image: Index of each caption's image, (M,).
        k_mine: Size of each query's pool of false positives. It bounds `d_i2t` and `d_t2i` and changes nothing else.
        d_i2t: False positives (captions) kept for each image.
        d_t2i: False positives (images) kept for each caption.
        same_text_is_positive: The captions' texts, (M,), to count a caption as a positive of each image that has a
            caption of the same text, ignoring case, spacing and final punctuation.
        same_image_is_positive: A number for each image, (N,), such as `Truth.image_class`: images of equal number
            have the same positives.
        device: Where blocks of scores are screened.
        everyone: The processes that share the work; each must call this with the same vectors, and gets all rows.

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
    positives = annotated_positives(caption_image, len(images), same_text_is_positive, same_image_is_positive)
    found, _ = find_false_positives(
        images, texts, positives, k_mine=k_mine, d_i2t=d_i2t, d_t2i=d_t2i, device=device, everyone=everyone
    )
    return found


def find_false_positives(
    images: np.ndarray,
    texts: np.ndarray,
    positives: Truth,
    *,
    k_mine: int,
    d_i2t: int,
    d_t2i: int,
    index: Index | None = None,
    device: torch.device | str = "cpu",
    everyone: Processes | None = None,
) -> tuple[Dataset, dict[str, float]]:
    """Find false positives as `mine_false_positives` does, or with an index that may miss some.

    With an index, scores are exact and ranks are lower bounds: candidates that it missed are not counted, and
    `gt_rank` is at most `k_mine` + 1.

    Returns:
        The rows; and with an index the recall by direction: the share of the true false positives that were found,
        measured on some queries.
    """
    recall: dict[str, float] = {}
    fps = {"fps_of_image": min(d_i2t, len(texts)), "fps_of_caption": min(d_t2i, len(images))}
    if index is None:
        i2t, t2i = rank_both_ways(images, texts, positives, **fps, device=device, everyone=everyone)
    else:
        i2t, t2i, recall = rank_by_index(images, texts, positives, index, **fps, pool=k_mine)
    return concatenate_datasets([_rows("t2i", t2i), _rows("i2t", i2t)]), recall


def annotated_positives(
    caption_image: np.ndarray,
    n_images: int,
    captions: Sequence[str] | None = None,
    same_image: np.ndarray | None = None,
) -> Truth:
    """Return the annotated positives and, if given, those of equal text and those of images of equal number."""
    if captions is not None and len(captions) != len(caption_image):
        expected = f"a text for each of the {len(caption_image)} captions"
        raise UserError(f"`same_text_is_positive` must hold {expected}, got {len(captions)}.")
    if same_image is not None and np.shape(same_image) != (n_images,):
        expected = f"a number for each of the {n_images} images"
        raise UserError(f"`same_image_is_positive` must hold {expected}, got shape {np.shape(same_image)}.")
    wording = None if captions is None else wordings(captions)
    return Truth.annotated(caption_image, n_images, wording=wording, image_class=same_image)


def sample_queries(failures: Dataset, caption_image: np.ndarray, max_queries: int, seed: int = 0) -> Dataset:
    """Keep the false positives of `max_queries` images and of as many of their captions, drawn at random, in order.

    `caption_image` is the image of each caption, (M,).
    """
    is_t2i, query = _is_t2i(failures), _column(failures, "q")
    images = np.where(is_t2i, np.asarray(caption_image)[np.where(is_t2i, query, 0)], query)  # of each failure
    is_drawn = np.isin(images, np.random.default_rng([seed, 1]).permutation(np.unique(images))[:max_queries])
    captions = np.unique(query[is_t2i & is_drawn])
    is_caption_drawn = np.isin(query, np.random.default_rng([seed, 0]).permutation(captions)[:max_queries])
    return failures.select(np.flatnonzero(is_drawn & (~is_t2i | is_caption_drawn)))


def with_ids(failures: Dataset, pairs: Pairs) -> Dataset:
    """Add `q_id`, `gt_id` and `fp_id`, the items' ids in the pairs."""
    image_ids, caption_ids = _ids(pairs.images, "image_id"), _ids(pairs.captions, "caption_id")
    ids = pa.chunked_array([*image_ids.chunks, *caption_ids.chunks], pa.large_string())
    is_t2i, table = _is_t2i(failures), failures.with_format("arrow")[:]
    for role in ("q", "gt", "fp"):
        is_caption = is_t2i == (role == "q")
        rows = _column(failures, role) + np.where(is_caption, len(image_ids), 0)
        table = table.append_column(f"{role}_id", ids.take(pa.array(rows)).cast(pa.string()))
    return Dataset(table)


def summarize(failures: Dataset) -> dict[str, dict[str, float]]:
    """Summarize the false positives of each direction that has any.

    `failed` counts the queries with a false positive ahead of their gt. `gap_25`, `gap_50` and `gap_75` are quartiles
    of the score of a query's best false positive minus its gt's (positive: it failed).
    """
    is_t2i, table = _is_t2i(failures), {}
    columns = {name: _column(failures, name) for name in ("q", "fp_rank", "fp_score", "gt_score", "gt_rank")}
    for name, ours in (("t2i", is_t2i), ("i2t", ~is_t2i)):
        rows = {key: values[ours] for key, values in columns.items()}
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


def _column(failures: Dataset, name: str) -> np.ndarray:
    """Read a column without creating a Python object for each row."""
    return failures.with_format("arrow")[name][:].to_numpy()


def _is_t2i(failures: Dataset) -> np.ndarray:
    return pc.equal(failures.with_format("arrow")["direction"][:], "t2i").to_numpy()


def _ids(items: Dataset, name: str) -> pa.ChunkedArray:
    return items.with_format("arrow")[name][:].cast(pa.large_string())


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
