"""The losses against loops over cells and analytic figures; which cells of a step are visible; two processes."""

from __future__ import annotations

import math
import multiprocessing
from itertools import product

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from made_pairs import make_pairs, random_records
from transformers import SiglipConfig, SiglipModel
from transformers.models.clip import modeling_clip

from repair_hf.pairs.truth import Truth, truth_of
from repair_hf.training.fills import Anchors, Edits
from repair_hf.training.step import PairObjective, Step, cross_entropy, sigmoid_loss, step_of

LOSSES = ("batch", "grid", "both", "none")
SCALE = torch.tensor(7.0)


def slow_terms(loss: str, matrix, visible, anchors, grid_mean: str, *, sigmoid: bool) -> dict[str, float]:
    """The definition, cell by cell. A pair without an image or a caption is only what others are compared with."""
    cell, seen, anchors, n = matrix.tolist(), visible.tolist(), anchors.tolist(), len(matrix)

    def of_pair(p: int, others: list[int]) -> float:
        if sigmoid:
            signed = [cell[p][q] if q != p else -cell[p][q] for q in others if seen[p][q]]
            return sum(math.log(1 + math.exp(score)) for score in signed)
        row = sum(math.exp(cell[p][q]) for q in others if seen[p][q])
        column = sum(math.exp(cell[q][p]) for q in others if seen[q][p])
        return (math.log(row) + math.log(column)) / 2 - cell[p][p]

    def mean(members: list[int]) -> float:
        losses = [of_pair(p, members) for p in members if seen[p][p]]
        return sum(losses) / len(losses)

    of_anchors = [p for p in range(n) if anchors[p] == p]
    terms = {"loss_global": mean(list(range(n)) if loss in ("batch", "both") else of_anchors)}
    if loss in ("grid", "both"):
        grids = [[p for p in range(n) if anchors[p] == anchor] for anchor in of_anchors]
        found = [mean(grid) for grid in grids if len(grid) > 1]
        terms["loss_grid"] = sum(found) / (len(found) if grid_mean == "grids" else len(grids))
    return terms


def step_with(matrix, visible, anchors) -> Step:
    """A step of these logits; a pair has no image or no caption if no cell of it is visible."""
    n = len(matrix)
    places = torch.arange(n)
    image_rows, text_rows = (torch.where(visible.any(side), places, -1) for side in (1, 0))
    truth = Truth(np.arange(n), np.arange(n), *(~visible).fill_diagonal_(False).nonzero().T.numpy())
    width = int((places - anchors).max()) + 1
    grids = [[p for p in range(n) if anchors[p] == anchor] for anchor in range(n) if anchors[anchor] == anchor]
    grids = torch.tensor([grid + [-1] * (width - len(grid)) for grid in grids])
    texts, scale = torch.eye(n, dtype=matrix.dtype), torch.ones((), dtype=matrix.dtype)
    return Step(matrix, texts, image_rows, text_rows, grids, truth, scale)


def random_step(seed: int, n_anchors: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Anchors with none to two pairs beside them, some of these without an image or a caption; some cells hidden."""
    rng = np.random.default_rng(seed)
    sizes = [1, 3, 2, *rng.integers(1, 4, n_anchors - 3)]
    anchors = torch.tensor(np.repeat(np.cumsum([0, *sizes[:-1]]), sizes))
    n = len(anchors)
    is_anchor = anchors == torch.arange(n)
    visible = torch.from_numpy(rng.random((n, n)) < 0.7) | torch.eye(n, dtype=torch.bool)
    visible &= (torch.from_numpy(rng.random(n) < 0.7) | is_anchor)[:, None]  # no image
    has_image = visible.diagonal()
    visible &= torch.from_numpy(rng.random(n) < 0.7) | is_anchor | ~has_image  # no caption
    return torch.from_numpy(rng.normal(0, 3, (n, n))).float(), visible, anchors


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_equals_a_loop_over_cells(loss, sigmoid):
    for seed, grid_mean in product(range(8), ("grids", "anchors")):
        matrix, visible, anchors = random_step(seed)
        matrix = matrix.double().requires_grad_()
        terms = PairObjective(loss, grid_mean=grid_mean, sigmoid=sigmoid).terms(step_with(matrix, visible, anchors))
        expected = slow_terms(loss, matrix, visible, anchors, grid_mean, sigmoid=sigmoid)
        assert {name: value.item() for name, value in terms.items()} == pytest.approx(expected, rel=1e-12)
        sum(terms.values()).backward()
        assert matrix.grad.isfinite().all() and (matrix.grad[~visible] == 0).all()
        assert matrix.grad.abs().sum() > 0


@pytest.mark.parametrize(("n_anchors", "side"), [(1, 1), (2, 1), (128, 1), (4, 2), (4, 3)])
def test_equal_logits_give_ln_of_the_batch_and_a_grid_ln_of_its_side(n_anchors, side):
    n = n_anchors * side
    zeros, visible, anchors = torch.zeros(n, n), torch.ones(n, n, dtype=torch.bool), torch.arange(n) // side * side
    terms = {"loss_global": pytest.approx(math.log(n), abs=1e-6), "loss_grid": pytest.approx(math.log(side), abs=1e-6)}
    assert PairObjective("both").terms(step_with(zeros, visible, anchors)) == terms
    terms["loss_global"] = pytest.approx(math.log(n_anchors), abs=1e-6)
    assert PairObjective("grid").terms(step_with(zeros, visible, anchors)) == terms
    found = PairObjective("batch", sigmoid=True).terms(step_with(zeros, visible, anchors))
    assert found["loss_global"].item() == pytest.approx(n * math.log(2), rel=1e-6)


@pytest.mark.parametrize("alone", [0, 1, 13])
def test_anchors_without_a_grid_do_not_change_the_mean_over_grids(alone):
    n = 3 + alone
    zeros, visible = torch.zeros(n, n, requires_grad=True), torch.ones(n, n, dtype=torch.bool)
    one = step_with(zeros, visible, torch.tensor([0, 0, 0, *range(3, n)]))
    assert PairObjective("grid").terms(one)["loss_grid"].item() == pytest.approx(math.log(3))
    over_anchors = PairObjective("grid", grid_mean="anchors").terms(one)["loss_grid"].item()
    assert over_anchors == pytest.approx(math.log(3) / (1 + alone))
    without = PairObjective("grid").terms(step_with(zeros, visible, torch.arange(n)))["loss_grid"]
    without.backward()
    assert without.item() == 0 and not zeros.grad.any()


@pytest.mark.parametrize("sigmoid", [False, True])
def test_the_mean_over_anchors_of_two_halves_is_that_of_the_whole(sigmoid):
    """With two and with three grids: so accumulation needs no counting."""
    both = (one, seen, anchors), (two, also_seen, others) = [random_step(seed, 6) for seed in (1, 2)]
    local = PairObjective("grid", grid_mean="anchors", sigmoid=sigmoid)
    halves = [local.terms(step_with(*half))["loss_grid"].item() for half in both]
    whole, visible = torch.block_diag(one, two), torch.block_diag(seen, also_seen).bool()
    visible[: len(one), len(one) :] = seen.any(1)[:, None] & also_seen.any(0)  # cells of different grids
    everything = step_with(whole, visible, torch.cat([anchors, others + len(one)]))
    found = local.terms(everything)["loss_grid"].item()
    assert found == pytest.approx(sum(halves) / 2, rel=1e-5) and halves[0] != pytest.approx(halves[1], rel=0.01)


def unit(n: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(n, 5, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_the_losses_are_those_of_transformers():
    text = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    vision = {name: value for name, value in text.items() if name != "vocab_size"} | dict(image_size=8, patch_size=4)
    model = SiglipModel(SiglipConfig(text_config=text | dict(max_position_embeddings=4), vision_config=vision)).eval()
    found = model(input_ids=torch.randint(9, (5, 4)), pixel_values=torch.randn(5, 3, 8, 8), return_loss=True)
    visible = torch.ones(5, 5, dtype=torch.bool)
    own = torch.arange(5)
    torch.testing.assert_close(sigmoid_loss(found.logits_per_image, visible, own).mean(), found.loss)
    name = "image_text_contrastive_loss" if hasattr(modeling_clip, "image_text_contrastive_loss") else "clip_loss"
    expected = getattr(modeling_clip, name)(found.logits_per_text)  # renamed after 5.4
    both = (cross_entropy(logits, visible, own) for logits in (found.logits_per_image, found.logits_per_text))
    torch.testing.assert_close(sum(both).mean() / 2, expected)


def batch_of(fill: Anchors, anchors: list[int], epoch: int = 0) -> dict[str, torch.Tensor]:
    """A batch whose vectors are the whole tables, in which row k lies at place k."""
    image_rows, text_rows = map(torch.from_numpy, fill.draw(np.full(len(anchors), epoch), np.array(anchors)))
    return {"images": image_rows, "captions": text_rows, "image_rows": image_rows, "text_rows": text_rows}


CAPTIONS = [f"caption {k}" for k in range(12)]
CAPTIONS[7] = "  Caption 2. "  # i3 says what i1 says
PAIRS = make_pairs(captions=CAPTIONS, groups=[*"abcdaf"])  # i0 and i4 are of one group
ANCHORS = [0, 3, 7, 8, 11]


@pytest.mark.parametrize("own_failures", [None, False, True])
def test_a_step_has_the_pairs_of_its_anchors_and_shows_no_known_match_but_themselves(own_failures):
    alone, records = own_failures is None, random_records(50, 3)
    fill = Anchors(PAIRS) if alone else Edits(PAIRS, records, own_failures=own_failures)
    images, texts = unit(60, 0), unit(60, 1)
    batch = batch_of(fill, ANCHORS)
    batch["text_rows"][2, 1:] = batch["captions"][2, 1:] = -1  # an image without a caption
    step = step_of(images, texts, batch, fill.truth, SCALE, torch.tensor(-2.0))
    rows = [
        (int(image), int(text), anchor, slot)
        for anchor, (some, others) in enumerate(zip(batch["image_rows"], batch["text_rows"], strict=True))
        for slot, (image, text) in enumerate(zip(some, others, strict=True))
        if max(image, text) >= 0
    ]
    assert len(step.matrix) == len(rows) >= len(ANCHORS) and step.slots.tolist() == [slot for *_, slot in rows]
    first = {anchor: place for place, (_, _, anchor, slot) in reversed([*enumerate(rows)]) if slot == 0}
    assert step.anchors.tolist() == [first[anchor] for _, _, anchor, _ in rows]
    n_hidden = 0
    for (p, (image, *_)), (q, (_, text, *_)) in product(enumerate(rows), enumerate(rows)):
        is_there = image >= 0 and text >= 0
        is_match = p != q and bool(fill.truth.known(torch.tensor([image]), torch.tensor([text])))
        assert bool(step.visible[p, q]) == (is_there and not is_match)
        n_hidden += is_there and is_match
        if is_there:
            assert step.matrix[p, q].item() == pytest.approx((7 * images[image] @ texts[text] - 2).item(), abs=1e-5)
    half = step_of(images.bfloat16(), texts.bfloat16(), batch, fill.truth, SCALE).matrix  # is compared in float32
    full = step_of(images.bfloat16().float(), texts.bfloat16().float(), batch, fill.truth, SCALE).matrix
    assert half.dtype == torch.float32 and torch.equal(half, full)
    assert n_hidden == 3 if own_failures is None else n_hidden > 3  # c8 with i0, c0 with i4, c7 with i1


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_captions_of_equal_wording_are_masked_in_every_loss(loss, sigmoid):
    """c2 of i1 and c7 of i3 say the same: the score of c7 with i1 changes nothing, in plain training too."""
    fill, losses = Anchors(make_pairs(captions=CAPTIONS)), []
    known = truth_of(make_pairs())[0]  # without that wording
    for truth, turn in product((fill.truth, known), (1, -1)):
        images = torch.eye(6)
        texts = images.repeat_interleave(2, 0) / 2
        texts[7, 1] = turn / 2
        step = step_of(images, texts, batch_of(fill, [0, 2, 7]), truth, SCALE)
        losses.append(PairObjective(loss, sigmoid=sigmoid).terms(step)["loss_global"].item())
    assert losses[0] == losses[1] and losses[2] != losses[3]


MADE = [*product(("batch", "grid", "both", "none"), (False, True), ("grids", "anchors"))]


def terms_of(images, texts, batch, fill, loss, sigmoid: bool, grid_mean: str) -> torch.Tensor:
    bias = torch.tensor(-3.0) if sigmoid else None
    step = step_of(images, texts, batch, fill.truth, SCALE, bias)
    objective = PairObjective(loss, sigmoid=sigmoid, grid_mean=grid_mean)
    return sum(objective.terms(step).values())


def work(rank: int, folder: str, fill: Edits) -> None:
    """One of two processes, with half of the anchors; it averages gradients as DDP does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    found = {}
    for how in MADE:
        images, texts = unit(60, 0).requires_grad_(), unit(60, 1).requires_grad_()
        value = terms_of(images, texts, batch_of(fill, [[0, 3, 7], [8, 10, 5]][rank]), fill, *how)
        value.backward()
        for gradient in (images.grad, texts.grad):
            dist.all_reduce(gradient)
        dist.all_reduce(mean := value.detach() / 2)
        found[how] = mean.item(), images.grad / 2, texts.grad / 2
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="autograd has threads for a GPU, which a fork loses")
def test_two_processes_have_the_loss_and_the_gradients_of_one(tmp_path):
    """Their anchors have different numbers of pairs, and each computes the rows and columns of its own alone."""
    fill = Edits(PAIRS, random_records(14, 3))
    per_half = [int((batch_of(fill, half)["text_rows"] >= 0).sum()) for half in ([0, 3, 7], [8, 10, 5])]
    assert per_half[0] != per_half[1] and 0 < fill.share < 1
    start = multiprocessing.get_context("fork").Process  # a new interpreter would take ten seconds
    both = [start(target=work, args=(rank, str(tmp_path), fill)) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(600)
    assert [process.exitcode for process in both] == [0, 0]
    for rank, how in product(range(2), MADE):
        found = torch.load(tmp_path / f"{rank}.pt")[how]
        images, texts = unit(60, 0).requires_grad_(), unit(60, 1).requires_grad_()
        batch = batch_of(fill, [0, 3, 7, 8, 10, 5])
        value = terms_of(images, texts, batch, fill, *how)
        value.backward()
        assert found[0] == pytest.approx(value.item(), rel=1e-5)
        torch.testing.assert_close(found[1:], (images.grad, texts.grad), atol=1e-6, rtol=1e-4)
