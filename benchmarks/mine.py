"""Time mining beside the bare product of the same matrix, FAISS and sentence-transformers.

    python benchmarks/mine.py              # 5,000 images x 25,000 captions
    python benchmarks/mine.py --paper      # the paper's training data: 29,000 x 145,000
    python benchmarks/mine.py --growth     # both, and twice the second: does the time of a pair stay the same?

All rows run in this process and take turns. Ratios are to the bare product of the same round.
"""

from __future__ import annotations

import importlib.util
from statistics import median

import numpy as np
import torch
from common import GPU_HEADS, GPU_NOTE, PAPER, SMALL, Timing, Vectors, measure, parser, print_notes, print_table, ratio
from datasets import Dataset

from repair_hf.mining.ranking import rank_both_ways
from repair_hf.pairs.truth import Truth

NOTES = {
    "product": "the bare blocked float32 product, the limit of any exact method",
    "mine": "the k best false positives and all ranks, both directions, exact, in one pass",
    "mine 5/1": "the same for 5 captions of an image and 1 image of a caption, the default of `repair-hf mine`",
    "evaluate": "all ranks, both directions",
    "faiss": "IndexFlatIP, once for each direction: the k best, positives included",
    "hard negatives": "mine_hard_negatives of sentence-transformers, once for each direction",
}
LIMIT = "product"
ROWS_OF_BLOCK, COLUMNS_OF_BLOCK = 1024, 2048


def main() -> None:
    """Print one table for each size."""
    options = parser("Time mining.", NOTES)
    options.add_argument("--images", type=int, default=SMALL[0])
    options.add_argument("--texts", type=int, default=SMALL[1])
    options.add_argument("--paper", action="store_true", help="29,000 images x 145,000 captions")
    options.add_argument("--growth", action="store_true", help="three sizes, and the time of a pair in each")
    options.add_argument("--dim", type=int, default=512, help="length of a vector")
    options.add_argument("--k", type=int, default=100, help="false positives sought for each query")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where `product` and ours multiply")
    args = options.parse_args()
    sizes = [PAPER if args.paper else (args.images, args.texts)]
    if args.growth:
        sizes = [SMALL, PAPER, (2 * PAPER[0], 2 * PAPER[1])]
    rows = [row for row in NOTES if row == LIMIT or (row in args.rows and _is_installed(row))]
    per_pair: dict[str, list[str]] = {row: [] for row in rows}
    for images, texts in sizes:
        vectors = Vectors.random(images, texts, args.dim)
        load, device = (vectors, args.k, args.device), args.device
        rounds = [{row: measure(WAYS[row], *load, device=device) for row in rows} for _ in range(args.repeat)]
        print(f"{images:,} images x {texts:,} captions")
        heads = ("", "seconds", "ratio", "busy", "ratio", "memory", *GPU_HEADS)
        print_table(heads, [_cells(row, rounds) for row in rows])
        for row in rows:
            per_pair[row].append(f"{1e9 * median(one[row].seconds for one in rounds) / (images * texts):.2f}")
    if args.growth:
        print("nanoseconds for each pair of an image and a caption")
        print_table(("", *(f"{n:,} x {m:,}" for n, m in sizes)), [(row, *times) for row, times in per_pair.items()])
    print_notes(NOTES, rows, f"{args.dim} numbers a vector, k {args.k}, {torch.get_num_threads()} threads, median of")
    print(
        f"{args.repeat} rounds; busy: processor seconds; memory: growth of the process, earlier rows' leftovers reused"
    )
    print(GPU_NOTE)


def _is_installed(row: str) -> bool:
    return row != "hard negatives" or importlib.util.find_spec("sentence_transformers") is not None


def _cells(row: str, rounds: list[dict[str, Timing]]) -> tuple[str, ...]:
    cells = [row]
    for name in ("seconds", "busy"):
        of_limit = median(ratio(getattr(one[row], name), getattr(one[LIMIT], name)) for one in rounds)
        cells += [f"{median(getattr(one[row], name) for one in rounds):.2f}", f"{of_limit:.2f}"]
    gpu = max((one[row].gpu for one in rounds), key=lambda use: use.memory)
    return *cells, f"{max(one[row].memory for one in rounds) / 2**20:,.0f} MiB", *gpu.cells()


def _product(vectors: Vectors, k: int, device: str) -> None:
    images, texts = (torch.from_numpy(some).to(device) for some in (vectors.images, vectors.texts))
    held = torch.empty(ROWS_OF_BLOCK * COLUMNS_OF_BLOCK, device=device)
    for columns in texts.split(COLUMNS_OF_BLOCK):
        for rows in images.split(ROWS_OF_BLOCK):
            torch.mm(rows, columns.T, out=held[: len(rows) * len(columns)].view(len(rows), len(columns)))
    if device == "cuda":
        torch.cuda.synchronize()


def _mine(vectors: Vectors, k: int, device: str) -> None:
    positives = Truth.annotated(vectors.image_of, len(vectors.images))
    rank_both_ways(vectors.images, vectors.texts, positives, fps_of_image=k, fps_of_caption=k, device=device)


def _mine_default(vectors: Vectors, k: int, device: str) -> None:
    positives = Truth.annotated(vectors.image_of, len(vectors.images))
    rank_both_ways(vectors.images, vectors.texts, positives, fps_of_image=5, fps_of_caption=1, device=device)


def _evaluate(vectors: Vectors, k: int, device: str) -> None:
    positives = Truth.annotated(vectors.image_of, len(vectors.images))
    rank_both_ways(vectors.images, vectors.texts, positives, device=device)


def _faiss(vectors: Vectors, k: int, device: str) -> None:
    import faiss

    for queries, candidates in ((vectors.images, vectors.texts), (vectors.texts, vectors.images)):
        index = faiss.IndexFlatIP(candidates.shape[1])
        index.add(candidates)
        index.search(queries, k)


def _hard_negatives(vectors: Vectors, k: int, device: str) -> None:
    from sentence_transformers.util import mine_hard_negatives

    image, caption = [f"i{place}" for place in vectors.image_of], [f"c{place}" for place in range(len(vectors.texts))]
    for anchor, positive in ((image, caption), (caption, image)):
        pairs = Dataset.from_dict({"anchor": anchor, "positive": positive})
        mine_hard_negatives(
            pairs, _Lookup(vectors), num_negatives=k, range_max=k, output_format="n-tuple", verbose=False
        )


class _Lookup:
    """Stand in for a sentence-transformers model: look an item's vector up by its name."""

    device = torch.device("cpu")

    def __init__(self, vectors: Vectors) -> None:
        self.tables = {"i": vectors.images, "c": vectors.texts}

    def encode_query(self, names: list[str], **options: object) -> np.ndarray:
        return self.tables[names[0][0]][[int(name[1:]) for name in names]]

    encode_document = encode_query

    def similarity(self, some: np.ndarray | torch.Tensor, others: np.ndarray | torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(some) @ torch.as_tensor(others).T

    def similarity_pairwise(self, some: np.ndarray, others: np.ndarray) -> torch.Tensor:
        return (torch.as_tensor(some) * torch.as_tensor(others)).sum(1)


WAYS = {
    "product": _product,
    "mine": _mine,
    "mine 5/1": _mine_default,
    "evaluate": _evaluate,
    "faiss": _faiss,
    "hard negatives": _hard_negatives,
}

if __name__ == "__main__":
    main()
