"""The objectives that take RePair's apart, at scale 0 against their known values and against slow loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from made_grids import SCALE, cross_entropy, dot, unit

from repair_hf.study.methods.losses import WithNegatives, triplet
from repair_hf.study.methods.stablerep import MultiPositive
from repair_hf.training.objectives import GlobalMatrix, HardNegativesOnly, LocalGrids, Vectors, objective_of

# Three anchors, pairs (0, 0), (1, 1), (2, 2). The first has both sides, the second an I2T failure, the third none.
IMAGES = [[0, 3, 4], [1, 5, -1], [2, -1, -1]]
TEXTS = [[0, 3, 4], [1, 5, -1], [2, -1, -1]]
NO_GRIDS = ([[0, -1, -1], [1, -1, -1]],) * 2


def batch(images=IMAGES, texts=TEXTS, matches=()) -> dict[str, torch.Tensor]:
    images, texts = torch.tensor(images), torch.tensor(texts)
    known = torch.zeros(len(images), 3, 3, dtype=torch.bool)
    for cell in matches:
        known[cell] = True
    return {
        "anchor_images": images[:, 0],
        "anchor_texts": texts[:, 0],
        "grid_images": images,
        "grid_texts": texts,
        "present": images >= 0,
        "matches": known,
    } | global_pairs(images, texts, matches)


def global_pairs(images: torch.Tensor, texts: torch.Tensor, matches=()) -> dict[str, torch.Tensor]:
    """Slots 2 and 3 as pairs; a caption is its own wording, and matches the images that it is a pair with."""
    pairs = {(i, t) for i, t in zip(images.flatten().tolist(), texts.flatten().tolist(), strict=True) if i >= 0}
    pairs |= {(int(images[b, i]), int(texts[b, j])) for b, i, j in matches}
    answers = [[[t if (i, t) in pairs else -1 for t in range(12)] for i in row] for row in images.tolist()]
    slots = torch.tensor([False, True, True])
    found = {name: torch.where(slots, rows, -1) for name, rows in (("images", images), ("texts", texts))}
    columns = {"wordings": torch.cat([texts[:, :1], found["texts"]], 1)}
    some = torch.tensor(answers)  # (B, 3, 12), of the anchor and of slots 2 and 3
    columns["answers"] = torch.cat([some[:, :1], torch.full_like(some[:, :1], -1), some[:, 1:]], 1)
    return {f"pair_{name}": rows for name, rows in found.items()} | columns


def without_pairs(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: column for name, column in inputs.items() if not name.startswith(("pair_", "wordings", "answers"))}


def vectors() -> Vectors:
    return Vectors(unit(6, 0).requires_grad_(), unit(6, 1).requires_grad_(), torch.tensor(SCALE))


def infonce(images: torch.Tensor, texts: torch.Tensor, pairs: list[tuple[int, int]]) -> float:
    """Over pairs; what is a pair elsewhere is no rival."""
    total = 0.0
    for image, text in pairs:
        own = dot(images[image], texts[text])
        total += cross_entropy(own, [dot(images[image], texts[t]) for _, t in pairs if (image, t) not in pairs])
        total += cross_entropy(own, [dot(images[i], texts[text]) for i, _ in pairs if (i, text) not in pairs])
    return total / (2 * len(pairs))


@pytest.mark.parametrize(
    ("images", "texts", "pairs"),
    [
        (IMAGES, TEXTS, [(k, k) for k in range(6)]),
        # image 4 is what two anchors were taken for, with two captions of it; caption 3 stands with images 3 and 5
        ([[0, 3, 4], [1, 5, 4]], [[0, 3, 4], [1, 3, 5]], [(0, 0), (3, 3), (4, 4), (1, 1), (5, 3), (4, 5)]),
        # an anchor is another's false positive, beside its own caption
        ([[0, -1, 1], [1, -1, -1]], [[0, -1, 1], [1, -1, -1]], [(0, 0), (1, 1), (1, 1)]),
        (*NO_GRIDS, [(0, 0), (1, 1)]),
    ],
)
def test_the_full_matrix_is_infonce_over_all_pairs(images, texts, pairs):
    found = vectors()
    loss = GlobalMatrix()(found, batch(images, texts))["loss_global"].value
    assert loss.item() == pytest.approx(infonce(found.images, found.texts, pairs), rel=1e-5)
    loss.backward()
    used = sorted({image for image, _ in pairs})
    assert torch.isfinite(found.images.grad).all()
    assert found.images.grad.abs().sum(1).nonzero().flatten().tolist() == used


def test_a_pair_that_is_known_to_match_is_no_rival_in_the_global_batch_and_the_grid_stays():
    """The first anchor's T_hn, caption 3, is known to be true of the second anchor's negative, image 5."""
    found, inputs = vectors(), batch()
    row = inputs["pair_images"].flatten().tolist().index(5)
    inputs["answers"][row // 3, 1 + row % 3, 0] = 3
    terms = LocalGrids(0.5)(found, inputs)
    assert terms["loss_grid"].value == LocalGrids(0.5)(found, without_pairs(inputs))["loss_grid"].value
    pairs, hidden = [(k, k) for k in range(6)], {(5, 3)}
    total = 0.0
    for k, _ in pairs:
        own = dot(found.images[k], found.texts[k])
        rivals = [dot(found.images[k], found.texts[t]) for t, _ in pairs if t != k and (k, t) not in hidden]
        total += cross_entropy(own, rivals)
        rivals = [dot(found.images[i], found.texts[k]) for i, _ in pairs if i != k and (i, k) not in hidden]
        total += cross_entropy(own, rivals)
    assert terms["loss_global"].value.item() == pytest.approx(total / 12, rel=1e-5)


def test_without_grids_the_full_matrix_is_the_contrastive_loss():
    inputs = {name: column for name, column in batch().items() if name.startswith("anchor")}
    found = vectors()
    loss = GlobalMatrix()(found, inputs)["loss_global"].value
    assert loss.item() == pytest.approx(infonce(found.images, found.texts, [(0, 0), (1, 1), (2, 2)]), rel=1e-5)


@pytest.mark.parametrize("mask_matches", [True, False])
def test_hard_negatives_alone_push_the_anchor_from_what_it_was_taken_for(mask_matches):
    found = vectors()
    inputs = batch(matches=[(0, 0, 1)])  # the first anchor's T_hn is known to be true of its image
    terms = HardNegativesOnly(0.25, mask_matches=mask_matches)(found, without_pairs(inputs))
    pairs = infonce(found.images, found.texts, [(0, 0), (1, 1), (2, 2)])
    assert terms["loss_global"].value.item() == pytest.approx(pairs, rel=1e-5)
    assert (terms["loss_grid"].weight, terms["loss_grid"].count.item()) == (0.25, 2)
    grid = terms["loss_grid"].value
    images, texts = found.images, found.texts
    of_text = cross_entropy(dot(images[0], texts[0]), [dot(images[0], texts[3])] if not mask_matches else [])
    of_image = cross_entropy(dot(images[0], texts[0]), [dot(images[4], texts[0])])
    second = cross_entropy(dot(images[1], texts[1]), [dot(images[1], texts[5])])
    assert grid.item() == pytest.approx(((of_text + of_image) / 2 + second) / 2, rel=1e-5)
    grid.backward()
    # nothing is pulled: what stands opposite a negative, image 3 or caption 4, has no part in it
    assert images.grad.abs().sum(1).nonzero().flatten().tolist() == [0, 1, 4]
    assert texts.grad.abs().sum(1).nonzero().flatten().tolist() == ([0, 1, 5] if mask_matches else [0, 1, 3, 5])


def test_hard_negatives_alone_without_any_grid_add_nothing():
    found = vectors()
    terms = HardNegativesOnly()(found, without_pairs(batch(*NO_GRIDS)))
    assert terms["loss_grid"].value.item() == 0 and terms["loss_grid"].count.item() == 0
    terms["loss_grid"].value.backward()
    assert not found.images.grad.any()


def test_options_name_the_objective():
    kinds = {
        "grid": LocalGrids,
        "grid+captions": LocalGrids,
        "grid+edits": LocalGrids,
        "batch": GlobalMatrix,
        "alone": HardNegativesOnly,
        "none": LocalGrids,
    }
    for negatives, kind in kinds.items():
        assert type(objective_of(negatives, 0.5, "masked")) is kind
    found = objective_of("alone", 0.125, "negative")
    assert (found.grid_weight, found.mask_matches) == (0.125, False)


MADE = {
    "full matrix": GlobalMatrix,
    "grid and edits": LocalGrids,
    "triplet": lambda: WithNegatives(triplet),
    "drawn": MultiPositive,
    "sigmoid": lambda: LocalGrids(needs_bias=True),
}


def part(rank: int) -> tuple[Vectors, dict[str, torch.Tensor]]:
    """One process's half of a batch: two anchors, the second without a grid, a negative or a drawn image."""
    found = Vectors(unit(6, 2 * rank).requires_grad_(), unit(6, 2 * rank + 1).requires_grad_(), torch.tensor(SCALE))
    inputs = batch([[0, 3, 4], [1, -1, -1]], [[0, 3, 4], [1, -1, -1]])
    places = torch.tensor([5, -1])
    return found, inputs | {"negative_images": places, "negative_texts": places, "drawn_images": places}


def biased(name: str, vectors: Vectors) -> Vectors:
    return replace(vectors, bias=torch.tensor(-3.0)) if name == "sigmoid" else vectors


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    said = {}
    for name, make in MADE.items():
        found, inputs = part(rank)
        loss = sum(term.value for term in make()(biased(name, found), inputs).values())
        loss.backward()
        said[name] = loss.item(), found.images.grad / 2, found.texts.grad / 2  # the Trainer's mean over processes
    torch.save(said, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def is_place(name: str, column: torch.Tensor) -> bool:
    """Whether a column names rows of a batch's vectors."""
    return column.dtype == torch.int64 and name not in ("wordings", "answers")


@pytest.mark.slow
def test_two_processes_have_the_loss_and_the_gradients_of_one(tmp_path):
    torch.multiprocessing.spawn(work, (str(tmp_path),), nprocs=2)
    halves = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    parts = [part(rank) for rank in range(2)]
    inputs = {
        name: torch.cat([column, torch.where(other >= 0, other + 6, -1) if is_place(name, other) else other])
        for (name, column), other in zip(parts[0][1].items(), parts[1][1].values(), strict=True)
    }
    for name, make in MADE.items():
        images, texts = (
            torch.cat([getattr(found, kind).detach() for found, _ in parts]).requires_grad_()
            for kind in ("images", "texts")
        )
        vectors = biased(name, Vectors(images, texts, torch.tensor(SCALE)))
        loss = sum(term.value for term in make()(vectors, inputs).values())
        loss.backward()
        # each process averages over its own grids; both have one
        assert sum(half[name][0] for half in halves) / 2 == pytest.approx(loss.item(), rel=1e-5)
        for rank, half in enumerate(halves):
            _, image_grad, text_grad = half[name]
            rows = slice(6 * rank, 6 * rank + 6)
            torch.testing.assert_close(image_grad, images.grad[rows], msg=name)
            torch.testing.assert_close(text_grad, texts.grad[rows], msg=name)
