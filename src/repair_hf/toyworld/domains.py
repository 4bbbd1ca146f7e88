"""The toy world's three domains: which scenes they show, in which look, and how they are captioned.

A domain and its look have one name, which each picture carries.
`plain` is exact: every caption is true. `web` is what the base retriever is pretrained on, `target` what it is then
fine-tuned and tested on. The two differ in look and wording, as web pictures differ from a benchmark's photographs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from repair_hf.toyworld.captions import STYLE, Style
from repair_hf.toyworld.scenes import COMPANY, Scene, sample


@dataclass(frozen=True)
class Domain:
    """One domain.

    Attributes:
        look: Name of the domain, and of its look in `looks.LOOKS`.
        style: How captions are written.
        company: Share of scenes with a second thing.
        false: Share of training captions with one false fact.
        strange: Share of training captions that belong to another picture.
        repeated: Share of training pictures that show the scene of another one.
    """

    look: str = "plain"
    style: Style = STYLE
    company: float = COMPANY
    false: float = 0.0
    strange: float = 0.0
    repeated: float = 0.0

    def scene(self, rng: random.Random) -> Scene:
        """Draw a scene."""
        return sample(rng, company=self.company, look=self.look)


DOMAINS = {
    "plain": Domain(),
    "web": Domain(
        look="web",
        style=Style(other=0.8, color=0.8, size=0.5, action=0.6, background=0.4, joined=0.3, first_word=0.85),
        company=0.6,
        false=0.05,
        strange=0.08,
    ),
    "target": Domain(
        look="target",
        style=Style(other=0.6, color=0.35, size=0.1, action=0.65, background=0.08, joined=0.7, first_word=0.3),
        company=0.55,
        false=0.17,
        repeated=0.6,
    ),
}
