"""Synthetic samples, and the fill that draws them.

A sample belongs to a caption and holds a text, an image, or both. It plays one of four parts:

| part | use | what it is known to match |
|---|---|---|
| `rewrite` | replaces its caption | the images that its caption matches |
| `variant` | replaces its caption's image | its caption |
| `negative` | a caption, or a caption with an image, beside the pair that it was made from | this image |
| `drawn` | a further image of its caption, beside it | its caption |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import datasets
import numpy as np
import pandas as pd
from datasets import Dataset, Features, Value, concatenate_datasets

from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.truth import Truth
from repair_hf.records.index import Groups
from repair_hf.runtime.draws import uniforms
from repair_hf.training.fills import Anchors

Part = Literal["rewrite", "variant", "negative", "drawn"]
PARTS: tuple[Part, ...] = ("rewrite", "variant", "negative", "drawn")
WITH_TEXT, REPLACING = ("rewrite", "negative"), ("rewrite", "variant")

IDS = {name: Value("string") for name in ("caption_id", "image_id")}
SAMPLES = Features(IDS | {"text": Value("string"), "edit_image": datasets.Image()})
# Captions without a sample. `reason` is one of the records' `REASONS`, or `filtered` by the method's own filter.
DROPPED = Features(IDS | {"reason": Value("string"), "detail": Value("string")})


class Samples(Anchors):
    """A fill of synthetic samples. Each is drawn with the caption that it belongs to.

    The anchor's caption or one of its rewrites is drawn, and its image or one of its variants, all equally likely.
    Beside this pair stand a negative and a drawn image, if there are such samples: rows of `SAMPLES` by part.
    """

    def __init__(
        self, pairs: Pairs, samples: Mapping[Part, Dataset], truth: Truth | None = None, seed: int = 0
    ) -> None:
        super().__init__(pairs, truth, seed)
        self._parts = {part: self._number(part, samples[part]) for part in PARTS if part in samples}
        if self._parts:
            self.truth = self._with_samples(self.truth)

    def draw(self, epochs: np.ndarray, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images, texts = [self.pairs.caption_image[anchors]], [anchors]
        for stream, (part, rows) in enumerate(self._parts.items()):
            new_images, new_texts = rows.draw(anchors, uniforms(self.seed, epochs, anchors, stream))
            if part == "rewrite":
                texts[0] = new_texts
            elif part == "variant":
                images[0] = new_images
            else:
                images.append(new_images)
                texts.append(new_texts)
        return np.stack(images, 1), np.stack(texts, 1)

    def _number(self, part: Part, samples: Dataset) -> _PartSamples:
        """Append the texts and images of a part's samples to those of the fill, and number them."""
        captions = self.pairs.captions["caption_id"][:]
        owners = pd.Index(captions).get_indexer(samples["caption_id"][:])
        texts = images = np.full(len(samples), -1)
        if part in WITH_TEXT:
            texts = len(captions) + len(self.texts or []) + np.arange(len(samples))
            self.texts = _joined(self.texts, samples.select_columns("text").rename_column("text", "edit_text"))
        if part != "rewrite" and len(samples) > 0 and samples.data.column("edit_image").null_count == 0:
            images = len(self.pairs.images) + len(self.images or []) + np.arange(len(samples))
            self.images = _joined(self.images, samples.select_columns("edit_image"))
        return _PartSamples(part, owners, images, texts, self.pairs.caption_image)

    def _with_samples(self, truth: Truth) -> Truth:
        """Add what the samples are known to match."""
        parts = self._parts.values()
        matches = [rows.matches(truth) for rows in parts]
        of_images = np.concatenate([rows.made_for[rows.images >= 0] for rows in parts])
        of_texts = np.concatenate([rows.made_for[rows.texts >= 0] for rows in parts])
        caption_image, classes = self.pairs.caption_image, np.full_like(of_images, -1)
        if self.pairs.groups is not None:  # what fits one caption of a group fits all of them
            classes = np.where(of_images >= 0, truth.image_class[caption_image[of_images]], -1)
        return truth.extended(
            [] if self.texts is None else self.texts["edit_text"],
            images=np.concatenate([images for images, _ in matches]),
            texts=np.concatenate([texts for _, texts in matches]),
            new_classes=classes,
            made_for_text=of_images,
            made_for_image=np.where(of_texts >= 0, caption_image[of_texts], -1),
        )


class _PartSamples:
    """The samples of a part: (n,) the caption that each belongs to, its row of images and of captions, -1 without one.

    `caption_image` is the image of each caption, (M,).
    """

    def __init__(
        self, part: Part, owners: np.ndarray, images: np.ndarray, texts: np.ndarray, caption_image: np.ndarray
    ) -> None:
        self.part, self.owners, self.images, self.texts = part, owners, images, texts
        self.made_for = np.where(part != "negative", owners, -1)  # a negative is made from its caption, not for it
        originals = np.arange(len(caption_image) if part in REPLACING else 0)
        self._of_caption = Groups(np.concatenate([originals, owners]), len(caption_image))
        self._images = np.concatenate([caption_image[originals], images, [-1]])
        self._texts = np.concatenate([originals, texts, [-1]])

    def draw(self, captions: np.ndarray, chance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw one of each caption's samples, or what it replaces: rows of images and of captions."""
        place = self._of_caption.draw(captions, chance)
        return self._images[place], self._texts[place]

    def matches(self, truth: Truth) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of images and of captions that match, (P,) each; one of the two is a sample."""
        if self.part == "rewrite":
            images, place = truth.images_of(self.owners)
            return images, self.texts[place]
        has_image = self.images >= 0
        return self.images[has_image], (self.texts if self.part == "negative" else self.owners)[has_image]


def _joined(one: Dataset | None, other: Dataset) -> Dataset:
    return other if one is None else concatenate_datasets([one, other])
