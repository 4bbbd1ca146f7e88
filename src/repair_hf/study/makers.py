"""How the baselines make their samples. Each maker asks the LLM, edits images and draws images for all captions.

What RePair's paper leaves open is our reading; it is named at each maker. All use the study's LLM, editor and
retriever, and an answer or an image that changes nothing is dropped.
"""

from __future__ import annotations

import difflib
import random
from typing import Any

import numpy as np

from repair_hf.llm.prompts import fit_instruction
from repair_hf.study.making import CANDIDATES, SEED, Maker, MakerContext, Sample
from repair_hf.toyworld import captions, renderer
from repair_hf.toyworld.domains import DOMAINS

MOST_NEW = 0.5  # of a hard negative, the share of new words
CONFIDENT_RANK = 100
GENERIC = (
    "a photo",
    "an image",
    "a painting",
    "a photo of an object",
    "a photo of geometric shapes",
    "a photo of a person",
)
PER_IMAGE = 3.6  # new pairs: the paper's ratio of edits (2.0 images and 1.6 captions)


async def hard_negatives(context: MakerContext) -> list[Sample]:
    """SugarCrepe (after Hsieh et al., 2023, whose benchmark trains nothing): of 3 false captions the nearest.

    Our reading: without the benchmark's adversarial refinement, which needs two more models.
    """
    return [(row, {"text": text}) for row, text in (await context.ask(is_small)).items()]


def is_small(caption: str, text: str) -> bool:
    """Return whether at most half of the words are new."""
    before, after = caption.casefold().split(), text.casefold().split()
    blocks = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_matching_blocks()
    longer = max(len(before), len(after))
    return longer - sum(block.size for block in blocks) <= max(MOST_NEW * longer, 1)


async def rewrites(context: MakerContext) -> list[Sample]:
    """LaCLIP (Fan et al., 2023): a rewrite of each caption, of two words or more; our prompt is an instruction."""
    texts = await context.ask(lambda caption, text: len(text.split()) > 1)
    return [(row, {"text": text}) for row, text in texts.items()]


async def drawn(context: MakerContext) -> list[Sample]:
    """StableRep (Tian et al., 2023): an image generated from each caption."""
    images = await context.draw(dict(enumerate(context.captions)))
    return [(row, {"edit_image": image}) for row, image in images.items()]


async def negative_pairs(context: MakerContext) -> list[Sample]:
    """TripletCLIP (Patel et al., 2024): a false caption, and an image generated from it, unfiltered."""
    texts = await context.ask()
    images = await context.draw(texts)
    return [(row, {"text": texts[row], "edit_image": image}) for row, image in images.items()]


async def counterfactuals(context: MakerContext) -> list[Sample]:
    """COCO-Counterfactuals (Le et al., 2023): another noun in each caption, and its image edited to show it.

    Our reading: the original masks nouns for a language model and filters by CLIP. Here the LLM proposes 3 captions,
    the editor 3 images, and the retriever takes the nearest of each.
    """
    swapped = await context.ask()
    images = await context.edit(
        {row: fit_instruction(text) for row, text in swapped.items()},
        lambda rows: context.encoder.embed_texts([swapped[row] for row in rows]),
    )
    return [(row, {"text": swapped[row], "edit_image": image}) for row, image in images.items()]


async def variants(context: MakerContext) -> list[Sample]:
    """ALiA (Dunlap et al., 2023): a variant of each image in which its caption stays true; of 3 edits the nearest.

    Our reading: images are edited, as in the original, and the LLM sees image and caption in place of a summary of
    the dataset. `is_variant` has both filters; the one for variants that are too easy would drop nearly all.
    """
    texts = context.encoder.embed_texts(context.captions)  # (M, D)
    generic = context.encoder.embed_texts(list(GENERIC))  # (G, D)
    images = await context.edit(
        await context.ask(shows_image=True),
        lambda rows: texts[rows],
        lambda vectors, own: is_variant(vectors, own, texts, generic),
    )
    return [(row, {"edit_image": image}) for row, image in images.items()]


def is_variant(vectors: np.ndarray, own: np.ndarray, texts: np.ndarray, generic: np.ndarray) -> np.ndarray:
    """Return which candidates (n, D) are nearer to their caption than to a generic one, and have it among the nearest.

    `own` are the cosines with their own captions, (n,).
    """
    is_right = own >= (vectors @ generic.T).max(1)
    return is_right & ((vectors @ texts.T > own[:, None]).sum(1) < CONFIDENT_RANK)


async def new_pairs(context: MakerContext) -> list[Sample]:
    """Control, in the toy world: as many new true pairs as RePair makes edits. Is it the repair, or more pictures?"""
    rng, first = random.Random(SEED), renderer.read_scene(context.pairs.images[0]["image"])
    domain, count = DOMAINS[first.look], len(context.captions)

    def draw(row: int) -> dict[str, Any]:
        scene = domain.scene(rng)
        picture = renderer.to_png(renderer.render(scene))
        text = captions.write(scene, rng, domain.style)
        return {"text": text, "edit_image": {"bytes": picture, "path": None}}

    chosen = set(rng.sample(range(count), min(round(PER_IMAGE * len(context.pairs.images)), count)))
    for row in set(range(count)) - chosen:
        context.drop(row, "filtered", f"{PER_IMAGE} new pairs for each image are enough")
    return [(row, draw(row)) for row in sorted(chosen)]


HARD_NEGATIVES = Maker("sugarcrepe", hard_negatives, prompt="hard_negative", answers=CANDIDATES)
REWRITES = Maker("laclip", rewrites, prompt="rewrite", answers=1)
DRAWN = Maker("stablerep", drawn, draws=True)
NEGATIVE_PAIRS = Maker("tripletclip", negative_pairs, prompt="hard_negative", answers=1, draws=True)
COUNTERFACTUALS = Maker("coco-cf", counterfactuals, prompt="noun_swap", answers=CANDIDATES, edits=CANDIDATES)
VARIANTS = Maker("alia", variants, prompt="scene_change", answers=1, edits=CANDIDATES)
NEW_PAIRS = Maker("new-pairs", new_pairs)
