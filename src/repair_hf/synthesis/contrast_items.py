"""One item of a contrast set: draw a picture, change one detail of its caption, edit, audit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from repair_hf.llm.answers import AnswerError, RefusedAnswer
from repair_hf.llm.asker import Asker
from repair_hf.llm.prompts import fit_instruction
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.wording import bare_caption
from repair_hf.records.columns import KINDS, Kind
from repair_hf.records.columns import REASONS as REASONS_OF_RECORDS
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.schemas import OneLine
from repair_hf.synthesis.selection import pixels_of
from repair_hf.synthesis.sources import SourceImages, UnreadableImage, image_url, open_picture
from repair_hf.synthesis.steps import audit

REASONS = {
    "caption_false": "the audit found that the caption does not fit its picture",
    "change_true": "the audit found that the changed caption fits the picture, too",
    "edit_false": "the audit found that the edited picture does not fit the changed caption",
    "edit_too_similar": "the audit found that the edited picture still fits the caption",
    "no_op": "the LLM or the image editor changed nothing",
}
REASONS |= {
    name: REASONS_OF_RECORDS[name]
    for name in ("llm_unparsed", "llm_refused", "llm_failed", "editor_failed", "unreadable_image")
}
MAX_TOKENS = 256


class Change(BaseModel):
    """A caption in which one detail is changed; None if the LLM declined."""

    kind: Kind
    answer: OneLine | None


@dataclass
class Item:
    """A drawn picture with one of its captions, and what became of it."""

    image: int  # row of the pairs' images
    caption: int  # row of the captions
    preferred: Kind
    kind: str | None = None
    changed: str | None = None
    edited: Path | None = None
    reason: str | None = None
    detail: str = ""
    is_finished: bool = False


class NoCase(Exception):
    """An item makes no case; `drop_reason` is one of `REASONS`."""

    def __init__(self, drop_reason: str, detail: str = "") -> None:
        super().__init__(detail)
        self.drop_reason = drop_reason


class ItemMaker:
    """Takes items through contrast, edit and audit.

    Args:
        captions: The pairs' captions.
        sources: Their images.
        asker: The LLM.
        seed: Seed of its answers.
        images: Makes the edited pictures; None makes none.
        rehearses_edit: Ask about the picture itself in place of its edit, to count what would be asked.
    """

    def __init__(
        self,
        captions: Sequence[str],
        sources: SourceImages,
        asker: Asker,
        images: Candidates | None,
        *,
        seed: int,
        rehearses_edit: bool = False,
    ) -> None:
        self.captions, self.sources, self.asker, self.images, self.seed = captions, sources, asker, images, seed
        self._rehearses_edit = rehearses_edit

    async def finish(self, item: Item) -> None:
        """Make the case of an item, or note why there is none.

        Raises:
            Deferred: If an answer comes with a batch; the item stays open.
            RunStopped: If the run cannot go on.
        """
        try:
            await self._make(item)
        except (AnswerError, NoCase, UnreadableImage) as error:
            item.reason, item.detail = error.drop_reason, str(error)
        item.is_finished = True

    async def _make(self, item: Item) -> None:
        text = self.captions[item.caption]
        change: Any = await self.asker.ask(
            self.asker.prompts.chat("contrast", caption=text, preferred_kind=item.preferred),
            stage="contrast",
            direction="i2t",
            schema=Change,
            max_tokens=MAX_TOKENS,
            seed=self.seed,
        )
        if change.answer is None:
            raise RefusedAnswer("the model declined")
        item.kind, item.changed = change.kind, change.answer
        if bare_caption(change.answer) == bare_caption(text):
            raise NoCase("no_op", "the answer equals the caption")
        await self._audit(self.sources.url(item.image), text, change.answer, "caption_false", "change_true")
        if self.images is not None:
            url = await self._edit(self.images, item, change.answer)
            await self._audit(url, change.answer, text, "edit_false", "edit_too_similar")
        elif self._rehearses_edit:
            await self._audit(self.sources.url(item.image), change.answer, text, "edit_false", "edit_too_similar")

    async def _edit(self, images: Candidates, item: Item, changed: str) -> str:
        """Edit the picture to fit the changed caption; return it for a question."""
        (item.edited,) = await images.make(item.image, fit_instruction(changed))
        assert item.edited is not None, "an edit without a candidate is an error"
        data = await asyncio.to_thread(item.edited.read_bytes)
        before = await asyncio.to_thread(lambda: pixels_of(self.sources.picture(item.image)))
        if pixels_of(open_picture(data)) == before:
            raise NoCase("no_op", "the editor changed nothing")
        return image_url(data, self.sources.longest_side)

    async def _audit(self, url: str, own: str, other: str, if_own_is_false: str, if_other_is_true: str) -> None:
        """Check that of two captions the first is true of a picture, and the second false."""
        verdict = await audit(self.asker, "i2t", q=url, gt=own, fp=other)
        if not verdict.gt_valid:
            raise NoCase(if_own_is_false, verdict.gt_reason)
        if verdict.fp_too_similar:
            raise NoCase(if_other_is_true, verdict.fp_reason)


def draw_items(pairs: Pairs, count: int, seed: int) -> list[Item]:
    """Draw pictures, at most so many, each with one of its captions and a preferred kind of change.

    A larger count keeps what a smaller one draws.
    """
    drawn = np.random.default_rng(seed).permutation(len(pairs.images))[:count]
    names, items = pairs.images["image_id"][:], []
    for image in map(int, drawn):
        rng = random.Random(f"{seed}/{names[image]}")
        items.append(Item(image, int(rng.choice(list(pairs.captions_of(image)))), rng.choice(KINDS)))
    return items
