"""Ranks, false positives and their order, compared with a sort of the full ranking."""

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, local

import numpy as np
import pytest
import torch

from repair_hf.mining import panels, products, ranking
from repair_hf.mining.ranking import check_embeddings, rank_both_ways
from repair_hf.mining.scores import exact_scores_on_device
from repair_hf.pairs.truth import Truth
from repair_hf.runtime.options import UserError
from tests.mining.embeddings import COLLECTIONS, HARDEST, check, identical, planted, quantised, random_unit


def slow(*cases: tuple) -> list:
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


SOME = [*HARDEST, *slow(*((name,) for name in COLLECTIONS if name not in HARDEST))]


@pytest.mark.parametrize("make", [quantised, random_unit, identical])
@pytest.mark.parametrize(("n_images", "n_texts", "block"), [(11, 37, 4), *slow((13, 13, 5)), (7, 40, 64), (3, 9, 1)])
@pytest.mark.parametrize(
    ("same_text", "same_image"), [(False, False), *slow((True, False), (False, True)), (True, True)]
)
def test_few_items_equal_the_whole_matrix(make, n_images, n_texts, block, same_text, same_image):
    rng = np.random.default_rng(n_images * n_texts)
    images, texts = make(rng, n_images), make(rng, n_texts)
    caption_image = np.concatenate([np.arange(n_images), rng.integers(0, n_images, n_texts - n_images)])
    rng.shuffle(caption_image)
    words = rng.integers(0, 16, n_texts) if same_text else None
    looks = rng.integers(0, n_images, n_images) if same_image else None
    check(images, texts, caption_image, 5, 3, block=block, words=words, looks=looks)


@pytest.mark.parametrize(
    ("name", "k_image", "k_caption", "block"),
    [
        *((name, 5, 1, 96) for name in COLLECTIONS),
        *((name, 40, 40, 128) for name in HARDEST),
        *slow(*((name, 40, 40, 128) for name in COLLECTIONS if name not in HARDEST)),
        *slow(*((name, *each) for name in COLLECTIONS for each in ((0, 0, 128), (0, 7, 2048)))),
    ],
)
def test_many_panels_equal_the_whole_matrix(name, k_image, k_caption, block):
    check(*COLLECTIONS[name](np.random.default_rng(1)), k_image, k_caption, block=block)


@pytest.mark.parametrize("name", SOME)
def test_a_full_pool_gives_the_same(name, monkeypatch):
    monkeypatch.setattr(panels, "POOL", 64)
    check(*COLLECTIONS[name](np.random.default_rng(2)), 6, 3, block=128)


class Twin:
    """One of two processes that meet in `gather`; here they are threads."""

    count, meeting, parts = 2, Barrier(2), [None, None]

    def __init__(self, index: int) -> None:
        self.index, self.is_main = index, index == 0

    def gather(self, part):
        self.parts[self.index] = part
        self.meeting.wait()
        parts = list(self.parts)
        self.meeting.wait()  # nobody may bring the next part before both have read these
        return parts


@pytest.fixture
def precision():
    """Threads that play processes share the precision of products, and may leave it as one of them set it."""
    before = precisions()
    yield
    set_precisions(before)


@pytest.mark.parametrize("block", [64, 2048])
def test_processes_that_share_the_panels_find_what_one_finds(block, precision, monkeypatch):
    """Also where one of them has nothing to do: a single panel is not shared."""
    images, texts, own = planted(np.random.default_rng(6), 1.0)
    data, ks = (images, texts, Truth.annotated(own, len(images))), {"fps_of_image": 9, "fps_of_caption": 3}
    expected = [vars(found) for found in rank_both_ways(*data, **ks)]
    own_process = local()
    monkeypatch.setattr(ranking, "processes", lambda: own_process.value)

    def rank(index):
        own_process.value = Twin(index)
        return rank_both_ways(*data, **ks, block=block)

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(rank, range(2)))
    for i2t, t2i in found:
        np.testing.assert_equal([vars(i2t), vars(t2i)], expected)


@pytest.mark.parametrize("n_texts", [1, 6])
def test_a_single_image_has_no_wrong_answer(n_texts):
    images, texts = random_unit(np.random.default_rng(0), 1), random_unit(np.random.default_rng(1), n_texts)
    positives = Truth.annotated(np.zeros(n_texts, int), 1)
    for found in rank_both_ways(images, texts, positives, fps_of_image=3, fps_of_caption=3):
        assert (found.gt_rank == 1).all() and (found.fp == -1).all()


def precisions() -> list[str]:
    """The precision of float32 products, on the GPU and on the CPU; before torch 2.9 they have one setting."""
    if not hasattr(torch.backends, "fp32_precision"):
        return [torch.get_float32_matmul_precision()]
    return [torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision]


def set_precisions(before: list[str]) -> None:
    if len(before) == 1:
        torch.set_float32_matmul_precision(before[0])
    else:
        torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before


def test_no_product_is_in_tf32_and_precision_and_threads_stay_as_they_were(monkeypatch):
    """TF32, which a training run may switch on, exceeds the error bound."""
    before, seen, mm, threads = precisions(), [], torch.mm, torch.get_num_threads()
    fast = ["high"] if len(before) == 1 else ["tf32", "tf32"]
    monkeypatch.setattr(torch, "mm", lambda *rows, **options: seen.append(precisions()) or mm(*rows, **options))
    try:
        torch.set_float32_matmul_precision("high")
        rank_both_ways(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), Truth.annotated(np.arange(3), 3))
        assert precisions() == fast and torch.get_num_threads() == threads
    finally:
        torch.set_float32_matmul_precision("highest")
        set_precisions(before)
    assert seen and not {"tf32", "high"} & {precision for one in seen for precision in one}


@pytest.fixture
def rounds(monkeypatch):
    """A processor whose products round vectors to bfloat16 if they may, as one with AMX; returns the precisions."""
    mm, used = torch.mm, []

    def rounding(rows, columns, **options):
        used.append(torch.backends.mkldnn.matmul.fp32_precision)
        if used[-1] == "bf16":
            rows, columns = rows.bfloat16().float(), columns.bfloat16().float()
        return mm(rows, columns, **options)

    monkeypatch.setattr(products, "_has_fast_bfloat16", lambda: True)
    monkeypatch.setattr(torch, "mm", rounding)
    return used


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="needs torch 2.9")
@pytest.mark.parametrize("name", SOME)
def test_products_of_rounded_vectors_give_the_same(name, rounds, monkeypatch):
    monkeypatch.setattr(products, "MOST_DOUBTS", 1.0)
    check(*COLLECTIONS[name](np.random.default_rng(3)), 5, 1, block=96)
    assert set(rounds) == {"bf16"}


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="needs torch 2.9")
@pytest.mark.parametrize(("name", "precision"), [("spread", "bf16"), ("cone", "ieee")])
def test_vectors_are_not_rounded_where_that_leaves_many_pairs_in_doubt(name, precision, rounds):
    rng = np.random.default_rng(0)
    images, texts, own = planted(rng, 0.3, n_texts=900, size=256) if name == "spread" else COLLECTIONS[name](rng)
    rank_both_ways(images, texts, Truth.annotated(own, len(images)), fps_of_image=1)
    assert rounds[-1] == precision


@pytest.mark.parametrize("name", SOME)
def test_scores_of_a_device_give_the_same(name, monkeypatch):
    """The path of a GPU, on the CPU."""
    on_device = lambda rows, row, columns, column: exact_scores_on_device(  # noqa: E731
        torch.from_numpy(rows), row, torch.from_numpy(columns), column
    )
    monkeypatch.setattr(panels, "exact_scores", on_device)
    check(*COLLECTIONS[name](np.random.default_rng(5)), 5, 1, block=96)


@pytest.mark.parametrize("name", SOME)
def test_products_that_are_off_by_as_much_as_the_bound_allows_give_the_same(name, monkeypatch):
    mm, draws = torch.mm, torch.Generator().manual_seed(0)

    def off(rows, columns, **options):
        product = mm(rows, columns, **options)
        return product.add_(0.02 * torch.randint(0, 2, product.shape, generator=draws) - 0.01)

    monkeypatch.setattr(torch, "mm", off)
    monkeypatch.setattr(products, "screen_error", lambda images, texts, **options: 0.0101)
    monkeypatch.setattr(products, "_has_fast_bfloat16", lambda: False)
    check(*COLLECTIONS[name](np.random.default_rng(6)), 5, 3, block=96)


@pytest.mark.parametrize("way", ["mapped", np.s_[::-1], np.s_[:, ::-1], np.s_[::-1, ::-1]])
def test_vectors_that_are_mapped_or_lie_backwards_give_the_same(way, tmp_path):
    images, texts, own = planted(np.random.default_rng(4), 1.0, n_images=60)
    if way == "mapped":
        for name, vectors in (("images", images), ("texts", texts)):
            np.save(tmp_path / f"{name}.npy", vectors)
        given = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("images", "texts")]
    else:
        given = [np.ascontiguousarray(vectors[way])[way] for vectors in (images, texts)]
        assert all(min(vectors.strides) < 0 for vectors in given)
    check(*given, own, 3, 3, block=64)


def test_zero_and_minus_zero_tie():
    """A product of -1e-60 is -0.0 in float32."""
    images = np.array([[1, 0, 0], [0, -1e-30, 1], [0, 0, 1]], np.float32)
    texts = np.array([[1, 1e-30, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    _, t2i = rank_both_ways(images, texts, Truth.annotated(np.arange(3), 3), fps_of_caption=2)
    assert t2i.fp[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("images", np.diag([1, np.nan, 1]), "1 of 3 image embeddings are zero or not finite, first row 1"),
        ("texts", np.eye(6, 3), "3 of 6 text embeddings are zero or not finite, first row 3"),
        ("texts", np.ones((6, 4)), r"got \(3, 3\) and \(6, 4\)"),
        ("own", np.arange(2), r"each of the 6 captions, got shape \(2,\)"),
        ("own", np.array([1, 1, 1, 1, 2, 2]), "1 of 3 images have no caption, first image 0"),
        ("own", np.array([3, 0, 1, 1, 2, 2]), r"must lie in \[0, 3\), got 0 to 3"),
    ],
)
def test_refuses_what_cannot_be_ranked(kind, value, message):
    data = {"images": np.eye(3), "texts": np.eye(3).repeat(2, 0), "own": np.arange(6) // 2}
    check_embeddings(*data.values())
    with pytest.raises(UserError, match=message):
        check_embeddings(*(data | {kind: value}).values())


def test_warns_of_vectors_that_are_not_of_unit_length(caplog):
    with caplog.at_level(logging.WARNING):
        check_embeddings(np.eye(3, dtype=np.float32), 2 * np.eye(3, dtype=np.float32), np.arange(3))
    assert "3 of 3 text embeddings are not of unit length" in caplog.text


MAPPED = """
import sys, threading
import numpy as np
from repair_hf.mining.false_positives import mine_false_positives

def anonymous() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024

images, texts = (np.load(path, mmap_mode="r") for path in sys.argv[1:])
own = np.arange(len(texts)) % len(images)
mine_false_positives(images[:50], texts[:100], own[:100] % 50)
before = peak = anonymous()
is_done = threading.Event()

def watch() -> None:
    global peak
    while not is_done.wait(0.005):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
mine_false_positives(images, texts, own)
is_done.set()
watcher.join()
print(peak - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to tell memory from mapped files")
def test_mapped_vectors_are_not_held_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("images", 100), ("texts", 100_000)):
        vectors = rng.standard_normal((count, 512), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.save(tmp_path / f"{name}.npy", vectors)
    files = [str(tmp_path / f"{name}.npy") for name in ("images", "texts")]
    done = subprocess.run([sys.executable, "-c", MAPPED, *files], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < vectors.nbytes / 2, "mining took at least half as much memory as the captions"
