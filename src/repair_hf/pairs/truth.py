"""Which images and captions are known to match. Mining leaves these pairs out, and every loss masks them.

A caption matches its own image. Beyond this annotation:

- captions of equal wording match the same images;
- images of one class match the same captions: images of equal pixels, near-duplicates, and those of one group;
- an edit matches what it was made for.

Evaluation uses the annotation alone, as the benchmarks define it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.images import equal_pixels
from repair_hf.pairs.rows import connected, joined
from repair_hf.pairs.wording import bare_caption

AT_ONCE = 1024  # images compared with all others, captions read


class Truth:
    """The pairs of an image and a caption that are known to match.

    They are stored as sorted keys, one for each wording and class of images that match.

    Args:
        image_class: (N,) images of equal number match the same captions.
        wording: (M,) integers; captions of equal number match the same images.
        images, texts: (P,) rows of images and captions that match.
        made_for_text: (N,) for an edited image the caption that it was made for, else -1. By default none is edited.
        made_for_image: (M,) for an edited caption the image that it was made for, else -1.
    """

    def __init__(
        self,
        image_class: np.ndarray,
        wording: np.ndarray,
        images: np.ndarray,
        texts: np.ndarray,
        made_for_text: np.ndarray | None = None,
        made_for_image: np.ndarray | None = None,
    ) -> None:
        self._given = wording, images, texts
        self.image_class = np.unique(image_class, return_inverse=True)[1]  # (N,)
        self.wording = np.unique(wording, return_inverse=True)[1]  # (M,)
        self.made_for_text = np.full(len(image_class), -1) if made_for_text is None else made_for_text
        self.made_for_image = np.full(len(wording), -1) if made_for_image is None else made_for_image
        self.n_classes = int(self.image_class.max()) + 1
        self.keys = np.unique(self._key(images, texts))
        self.n_wordings = int(self.wording.max()) + 1
        matching_wording, matching_class = np.divmod(self.keys, self.n_classes)
        most_classes = int(np.bincount(matching_wording).max(initial=0))  # of one wording: a label may have thousands
        most_wordings = int(np.bincount(matching_class).max(initial=0))  # of one class
        self.looks_up_classes = most_classes <= most_wordings  # of each wording, else wordings of each class
        self.most_linked = min(most_classes, most_wordings)
        self.has_edits = bool((self.made_for_text >= 0).any() and (self.made_for_image >= 0).any())
        self._on: dict[torch.device, tuple[Tensor, ...]] = {}

    @classmethod
    def annotated(
        cls,
        caption_image: np.ndarray,
        n_images: int,
        *,
        wording: np.ndarray | None = None,
        image_class: np.ndarray | None = None,
    ) -> Truth:
        """Let each caption match its own image, (M,) rows, and what follows from wordings and classes, if given."""
        classes = np.arange(n_images) if image_class is None else image_class
        # without wordings, captions of one image may share a number: they match the same image
        texts = caption_image if wording is None else wording
        return cls(classes, texts, caption_image, np.arange(len(caption_image)))

    def match(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """Return whether each image is known to match the caption beside it, (P,). None may be an edit."""
        keys = self._key(images, texts)
        return self.keys[np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)] == keys

    def known(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return which of some images are known to match which of some captions.

        An edited image and an edited caption match if the caption and the image that they were made for do.

        Shape:
            images: (n,) rows, on any device. texts: (m,). -1 matches nothing. Returns (n, m) bool.

        All shapes follow from n and m, so a training step does not wait here for its GPU.
        """
        image_class, wording, for_text, for_image, keys = self._tables(images.device)

        def matches(images: Tensor, texts: Tensor) -> Tensor:
            class_of_image = torch.where(images < 0, -1, image_class[images.clamp(min=0)])  # (n,)
            wording_of_text = torch.where(texts < 0, -1, wording[texts.clamp(min=0)])  # (m,)
            if self.looks_up_classes:
                return _linked(class_of_image, wording_of_text, keys, self.n_classes, self.most_linked)
            return _linked(wording_of_text, class_of_image, keys, self.n_wordings, self.most_linked).T

        known = matches(images, texts)
        if self.has_edits:
            texts_made_for = torch.where(images < 0, -1, for_text[images.clamp(min=0)])  # (n,)
            images_made_for = torch.where(texts < 0, -1, for_image[texts.clamp(min=0)])  # (m,)
            known |= matches(images_made_for, texts_made_for).T
        return known

    def images_of(self, captions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all images that match some captions, (C,), and the place of each one's caption in `captions`.

        They are in order of place, then image.
        """
        base = self.wording[captions] * self.n_classes  # (C,)
        at, place = expanded(*np.searchsorted(self.keys, [base, base + self.n_classes]))
        classes = self.keys[at] - base[place]
        by_class, starts = self._images_by_class
        at, member = expanded(starts[classes], starts[classes + 1])
        images, place = by_class[at], place[member]
        in_order = np.lexsort((images, place))
        return images[in_order], place[in_order]

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Count how many captions match each image, (N,), and how many images each caption, (M,)."""
        wording, image_class = np.divmod(self.keys, self.n_classes)
        captions_of, images_of = np.bincount(self.wording), np.bincount(self.image_class)
        captions_of_class = np.bincount(image_class, captions_of[wording]).astype(np.int64)
        images_of_wording = np.bincount(wording, images_of[image_class]).astype(np.int64)
        return captions_of_class[self.image_class], images_of_wording[self.wording]

    def select(self, images: np.ndarray, texts: np.ndarray) -> Truth:
        """Return the truth of some images and captions, (n,) and (m,) rows in this order, none of which is an edit."""
        selected = copy.copy(self)
        selected.image_class, selected.wording = self.image_class[images], self.wording[texts]
        selected.__dict__.pop("_images_by_class", None)
        selected._on = {}
        return selected

    @property
    def beyond_annotation(self) -> int:
        """How many pairs match beyond each caption and its own image."""
        return int(self.counts()[1].sum()) - len(self.wording)

    def extended(
        self,
        captions: Iterable[str] = (),
        *,
        images: np.ndarray,
        texts: np.ndarray,
        new_classes: np.ndarray,
        made_for_text: np.ndarray | None = None,
        made_for_image: np.ndarray | None = None,
    ) -> Truth:
        """Add images and captions, such as edits, as further rows.

        Args:
            captions: The new captions.
            images: Rows of images that match `texts`, (P,), among old and new ones.
            texts: Rows of captions, (P,).
            new_classes: The class of each new image: that of an old one, or -1 for a class of its own.
            made_for_text: For each new image the caption that it was made for, if any.
            made_for_image: For each new caption the image that it was made for, if any.
        """
        wording, old_images, old_texts = self._given
        alone = self.n_classes + np.arange(len(new_classes))
        found = wordings(captions)
        for_text = np.full(len(new_classes), -1) if made_for_text is None else made_for_text
        for_image = np.full(len(found), -1) if made_for_image is None else made_for_image
        return Truth(
            np.concatenate([self.image_class, np.where(new_classes < 0, alone, new_classes)]),
            np.concatenate([wording, found]),
            np.concatenate([old_images, images]),
            np.concatenate([old_texts, texts]),
            np.concatenate([self.made_for_text, for_text]),
            np.concatenate([self.made_for_image, for_image]),
        )

    @cached_property
    def _images_by_class(self) -> tuple[np.ndarray, np.ndarray]:
        """The images in order of class, (N,), and where each class begins, (classes + 1,)."""
        order = np.argsort(self.image_class, kind="stable")
        return order, np.searchsorted(self.image_class[order], np.arange(self.n_classes + 1))

    def _key(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        return self.wording[texts] * self.n_classes + self.image_class[images]

    def _tables(self, device: torch.device) -> tuple[Tensor, ...]:
        if device not in self._on:
            keys = self.keys
            if not self.looks_up_classes:
                keys = np.sort(keys % self.n_classes * self.n_wordings + keys // self.n_classes)
            parts = self.image_class, self.wording, self.made_for_text, self.made_for_image, keys
            self._on[device] = tuple(torch.from_numpy(part).to(device) for part in parts)
        return self._on[device]


def _linked(row_kind: Tensor, column_kind: Tensor, keys: Tensor, n_row_kinds: int, most: int) -> Tensor:
    """Return which of some rows are linked to which of some columns, (n, m) bool, by their kinds.

    Shape:
        row_kind: (n,), -1 for none. column_kind: (m,), -1 for none. keys: (K,) sorted, `column kind * n_row_kinds +
        row kind` of each link. most: the most links of one column kind.
    """
    n, device = len(row_kind), keys.device
    first_key = torch.where(column_kind < 0, -n_row_kinds, column_kind * n_row_kinds)  # (m,)
    first, stop = torch.searchsorted(keys, torch.stack([first_key, first_key + n_row_kinds]))
    at = first[:, None] + torch.arange(most, device=device)  # (m, most)
    linked_kind = torch.where(at < stop[:, None], keys[at.clamp(max=len(keys) - 1)] - first_key[:, None], n_row_kinds)
    row_kind = torch.where(row_kind < 0, n_row_kinds + 1, row_kind)
    row_of = torch.full((n_row_kinds + 2,), n, device=device)  # one row of each kind; n where there is none
    row_of[row_kind] = torch.arange(n, device=device)
    row = row_of[linked_kind]
    column = torch.arange(len(column_kind), device=device)[:, None].expand_as(row)
    is_linked = torch.zeros(n + 1, len(column_kind), dtype=torch.bool, device=device)
    is_linked.index_put_((row, column), is_linked.new_ones(()))
    return is_linked[row_of[row_kind]]


def truth_of(
    pairs: Pairs, image_embeddings: np.ndarray | None = None, near_duplicates: float | None = None
) -> tuple[Truth, dict[str, int]]:
    """Collect what is known to match among some pairs.

    Args:
        pairs: Their annotation, wordings, equal pixels and groups.
        image_embeddings: Unit vectors, (N, D) float32, for near-duplicates.
        near_duplicates: Cosine from which two images are one picture, also by way of others; None for no such images.

    Returns:
        The truth; and for each reason how many images are alike to another.
    """
    kinds = {"equal_pixels": equal_pixels(pairs.images, pairs.looks)} if pairs.looks else {}
    if near_duplicates is not None:
        assert image_embeddings is not None, "near-duplicates are found by their embeddings"
        kinds["near_duplicates"] = near_numbers(image_embeddings, near_duplicates)
    if pairs.groups is not None:
        kinds["group"] = pairs.groups
    classes = np.arange(len(pairs.images))
    for other in kinds.values():
        classes = joined(classes, other)
    blocks = pairs.captions.select_columns(["caption"]).iter(AT_ONCE)
    texts = wordings(caption for block in blocks for caption in block["caption"])
    truth = Truth.annotated(pairs.caption_image, len(classes), wording=texts, image_class=classes)
    return truth, {name: int((np.bincount(kind)[kind] > 1).sum()) for name, kind in kinds.items()}


def wordings(captions: Iterable[str]) -> np.ndarray:
    """Map captions to integers that captions of equal wording share, (M,) int64.

    They are digests of 8 bytes: the texts themselves would take a hundred.
    """

    def digests() -> Iterator[int]:
        for caption in captions:
            found = hashlib.blake2b(bare_caption(caption).encode(errors="surrogatepass"), digest_size=8).digest()
            yield int.from_bytes(found, "little", signed=True)

    return np.fromiter(digests(), np.int64)


def near_numbers(vectors: np.ndarray, least: float) -> np.ndarray:
    """Number unit vectors, (N, D): those that a chain of cosines of at least `least` connects share a number, (N,)."""
    number = np.arange(len(vectors))
    starts, edges, waiting = range(0, len(vectors), AT_ONCE), [(number, number)], 0
    for first in starts:
        for second in starts[first // AT_ONCE :]:
            block = vectors[first : first + AT_ONCE] @ vectors[second : second + AT_ONCE].T
            one, other = np.nonzero(block >= least)
            one, other = number[first + one], number[second + other]
            is_new = one != other
            edges.append((one[is_new], other[is_new]))
            waiting += len(edges[-1][0])
            if waiting > len(vectors):  # so that the edges take little memory
                number, waiting = connected(*map(np.concatenate, zip(*edges, strict=True)))[number], 0
                edges = [(number, number)]
    return connected(*map(np.concatenate, zip(*edges, strict=True)))[number]


def expanded(first: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate R ranges of integers: return the integers, (P,), and which range each belongs to, (P,)."""
    count = stop - first
    owner = np.repeat(np.arange(len(count)), count)
    return np.arange(len(owner)) + np.repeat(first - (np.cumsum(count) - count), count), owner
