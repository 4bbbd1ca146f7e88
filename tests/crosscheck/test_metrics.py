"""Our metrics agree with those of CLIP_benchmark and open_clip on the same embeddings, except for ties."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from repair_hf.evaluation.benchmark_metrics import judge_winoground, sugarcrepe_metrics
from repair_hf.evaluation.cases import Case, Cases, first_is_right
from repair_hf.evaluation.judging import compositional_metrics, evaluate_compositional
from repair_hf.evaluation.retrieval import evaluate_retrieval
from tests.mining.embeddings import random_unit, unit

REASON = "CLIP_benchmark and open_clip want torchvision: `make crosscheck` runs this in an environment of their own"
zeroshot_retrieval = pytest.importorskip("clip_benchmark.metrics.zeroshot_retrieval", reason=REASON)
image_caption_selection = pytest.importorskip("clip_benchmark.metrics.image_caption_selection", reason=REASON)
KS = (1, 3, 5, 10)


class Given(torch.nn.Module):
    """In the place of a model: an image is its vector, a caption's token is the number of its vector."""

    def __init__(self, texts: np.ndarray) -> None:
        super().__init__()
        self.texts = torch.from_numpy(texts)

    preprocessor = None

    def encode_image(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors.flatten(1)

    def encode_text(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.texts[numbers]

    def embed_images(self, vectors: np.ndarray, **options: object) -> np.ndarray:
        return vectors

    def embed_texts(self, names: list[str], **options: object) -> np.ndarray:
        return self.texts.numpy()[[int(name) for name in names]]


class Pictures(np.ndarray):
    """Images that are their vectors."""

    def resized(self, preprocessor: None) -> np.ndarray:
        return self


def corpus(per_image: list[int], dim: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Captions near their images, so that ranks are of all sizes."""
    rng = np.random.default_rng(sum(per_image))
    caption_image = np.repeat(np.arange(len(per_image)), per_image)
    images = random_unit(rng, len(per_image), dim)
    texts = images[caption_image] + 1.5 * random_unit(rng, len(caption_image), dim)
    return images, unit(texts), caption_image


def of_clip_benchmark(images: np.ndarray, texts: np.ndarray, caption_image: np.ndarray) -> dict[str, float]:
    def batches(size: int = 32) -> Iterator[tuple[torch.Tensor, list[list[int]]]]:
        for start in range(0, len(images), size):
            stop = min(start + size, len(images))
            own = [np.flatnonzero(caption_image == image).tolist() for image in range(start, stop)]
            yield torch.from_numpy(images[start:stop]), own

    found = zeroshot_retrieval.evaluate(Given(texts), batches(), torch.tensor, "cpu", amp=False, recall_k_list=KS)
    words = {"image_retrieval_recall": "t2i_R", "text_retrieval_recall": "i2t_R"}
    return {words[name.split("@")[0]] + f"@{name.split('@')[1]}": value for name, value in found.items()}


@pytest.mark.parametrize(
    "per_image", [[5] * 60, [1] * 80, [1, 7, 2, 5, 3] * 20], ids=["five each", "one each", "one to seven"]
)
def test_recall_is_clip_benchmarks(per_image):
    data = corpus(per_image)
    theirs, ours = of_clip_benchmark(*data), evaluate_retrieval(*data, ks=KS)
    assert 0.1 < ours["t2i_R@1"] < 0.9
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, abs=1e-6), name


def test_recall_and_ranks_are_open_clips():
    """Its metrics know one caption an image. Its median is the lower whole number where ours lies between two."""
    train = pytest.importorskip("open_clip_train.train", reason=REASON)
    images, texts, caption_image = corpus([1] * 101)
    ours = evaluate_retrieval(images, texts, caption_image)
    theirs = train.get_clip_metrics(torch.from_numpy(images), torch.from_numpy(texts), 100.0)
    for name, side in (("image_to_text", "i2t"), ("text_to_image", "t2i")):
        for k in (1, 5, 10):
            assert ours[f"{side}_R@{k}"] == pytest.approx(theirs[f"{name}_R@{k}"], abs=1e-9)
        assert ours[f"{side}_median_rank"] == theirs[f"{name}_median_rank"]


def test_caption_choice_is_clip_benchmarks_but_for_ties():
    """CLIP_benchmark counts a caption that equals its negative as right; we count it as wrong."""
    rng = np.random.default_rng(0)
    images, texts = random_unit(rng, 50), random_unit(rng, 100)
    tied = [3, 17, 29]
    texts[[2 * case + 1 for case in tied]] = texts[[2 * case for case in tied]]
    batches = [(torch.from_numpy(images[:, :, None, None]), [[2 * case, 2 * case + 1] for case in range(50)])]
    theirs = image_caption_selection.evaluate(Given(texts), batches, torch.tensor, "cpu", amp=False)
    each = [Case(f"{k}", "swap_obj", (k,), (str(2 * k), str(2 * k + 1)), str(k)) for k in range(50)]
    cases = Cases("sugarcrepe", each, images.view(Pictures), first_is_right, sugarcrepe_metrics(["swap_obj"]))
    ours = compositional_metrics(evaluate_compositional(Given(texts), [cases], "given"), [cases])
    assert ours["sugarcrepe_n_ties"] == 3
    assert ours["sugarcrepe_swap_obj"] + 3 / 50 == pytest.approx(theirs["text_acc"], abs=1e-6)


def test_winogrounds_three_numbers_are_clip_benchmarks():
    images, texts, _ = corpus([1] * 80, dim=4)
    pixels = torch.from_numpy(images.reshape(40, 2, 4, 1, 1))
    batches = [(pixels, [[2 * case, 2 * case + 1] for case in range(40)])]
    theirs = image_caption_selection.evaluate(Given(texts), batches, torch.tensor, "cpu", amp=False)
    scores = np.einsum("cid,ctd->cit", images.reshape(40, 2, 4), texts.reshape(40, 2, 4))
    ours = {name: (margin > 0).mean() for name, margin in judge_winoground(scores, None).items()}
    assert 0 < ours["group"] < ours["text"] < 1
    for name, their_name in (("text", "text_acc"), ("image", "image_acc"), ("group", "acc")):
        assert ours[name] == pytest.approx(theirs[their_name], abs=1e-6)
