"""Write the toy world to disk: pictures with captions, in the folder format of `load_pairs`.

`captions.jsonl` has one line for each picture (image, captions, split). Each picture `images/<split>-00001.png`
carries its scene. The folder is that of a stage.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from repair_hf.runtime.options import UserError, flags
from repair_hf.runtime.progress import Progress
from repair_hf.runtime.run_folder import digest, write_atomically
from repair_hf.runtime.stage import Stage, command_of
from repair_hf.toyworld import captions, renderer, scenes
from repair_hf.toyworld.domains import DOMAINS, Domain
from repair_hf.toyworld.looks import LOOKS
from repair_hf.toyworld.variations import falsify

SPLITS = {"train": 2500, "validation": 2000, "test": 2000}
CAPTIONS = 5
SEED = 0
COMMAND = "world build"
DRAWING = 2  # changes with the way in which splits are drawn: older folders hold another world
ALONE = 1_500  # most pictures of one thing in validation or test; there are 1,728 such scenes
TRIES = 20  # to write a caption that is true of one picture only; the last mentions every fact


def is_world(folder: str | Path) -> bool:
    """Return whether a folder was made by `build_world`."""
    return command_of(Path(folder)) == COMMAND


def build_world(
    folder: str | Path, *, splits: dict[str, int] = SPLITS, seed: int = SEED, domain: str = "plain"
) -> Path:
    """Draw pictures with five captions each, unless the folder already holds this world.

    Every split is drawn independently from the domain: a split stays the same if another one grows. Each caption of
    validation and test is true of one picture of its split, so R@1 counts no right answer as wrong. In training,
    captions err at the domain's rates, and some pictures show the same scene.

    Raises:
        UserError: If the folder holds something else, or a split is too large for unambiguous captions.
    """
    options = {**splits, "seed": seed, "domain": domain}
    inputs = options | {"world": digest_of_domain(DOMAINS[domain])}
    writes = ("captions.jsonl", "images/*.png")
    stage = Stage(COMMAND, folder, inputs=inputs, words=flags(options), writes=writes)
    stage.run(lambda _: _draw(Path(folder), splits, seed, domain))
    return Path(folder)


def _draw(folder: Path, splits: dict[str, int], seed: int, domain: str) -> dict[str, Any]:
    """Draw all pictures, write their captions, and return how many there are of each split."""
    shown = {split: draw_scenes(split, count, seed=seed, domain=domain) for split, count in splits.items()}
    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = []

    def draw(name: str, scene: scenes.Scene) -> None:
        (folder / "images" / name).write_bytes(renderer.to_png(renderer.render(scene)))

    progress = Progress(total=sum(splits.values()), desc="Drawing the toy world", unit=" pictures")
    with progress, ThreadPoolExecutor() as threads:
        for split, scenes_of_split in shown.items():
            rng = random.Random(f"{seed}/{split}/captions")
            table = None if split == "train" else SceneTable(scenes_of_split)
            names = [f"{split}-{number:05d}.png" for number in range(len(scenes_of_split))]
            drawing: Any = threads.map(draw, names, scenes_of_split)
            with closing(drawing):  # an interrupt cancels what waits
                for name, scene, _ in zip(names, scenes_of_split, drawing, strict=True):
                    texts = [_caption(scene, rng, DOMAINS[domain], table) for _ in range(CAPTIONS)]
                    lines.append(json.dumps({"image": name, "captions": texts, "split": split}))
                    progress.update()
    write_atomically(folder / "captions.jsonl", "\n".join(lines) + "\n")
    return {"pictures": splits}


def draw_scenes(split: str, count: int, *, seed: int = SEED, domain: str = "plain") -> list[scenes.Scene]:
    """Draw the scenes of a split, which depend on no other split.

    Raises:
        UserError: If there are not enough settings for each picture to have a caption that is true of it alone.
    """
    rng, drawn = random.Random(f"{seed}/{split}"), DOMAINS[domain]
    if split != "train":
        return _distinct(rng, drawn, count)
    repeated = round(drawn.repeated * count / 2)
    shown = [drawn.scene(rng) for _ in range(count - repeated)]
    return shown + [replace(scene, layout=rng.randrange(2**31)) for scene in shown[:repeated]]


def _distinct(rng: random.Random, domain: Domain, count: int) -> list[scenes.Scene]:
    """Draw scenes of which each can be told from all others by a caption: a thing alone in a setting of its own.

    A scene that cannot is drawn again, with as many things as before. Things alone come first. So the share of
    scenes with one thing, and that of each shape, color, count and so on, stay those of the domain.
    """
    drawn = sorted((domain.scene(rng) for _ in range(count)), key=lambda scene: scene.other is not None)
    if sum(scene.other is None for scene in drawn) > ALONE:
        raise UserError(f"A split of {count:,} pictures has too many with one thing alone; at most {ALONE:,} differ.")
    shown: dict[scenes.Scene, None] = {}
    alone: set[tuple] = set()
    for scene in drawn:
        has_other = scene.other is not None
        while (scene.other is not None) != has_other or scene in shown or (scene.subject, scene.background) in alone:
            scene = domain.scene(rng)
        shown[scene] = None
        if not has_other:
            alone.add((scene.subject, scene.background))
    found = list(shown)
    rng.shuffle(found)
    return found


class SceneTable:
    """Which scenes each fact holds in, to compare a caption with many scenes at once."""

    def __init__(self, shown: Sequence[scenes.Scene]) -> None:
        self._holds: dict[tuple[Any, Any], np.ndarray] = {}  # (slot, value) -> (n,) bool
        for row, scene in enumerate(shown):
            for fact in scenes.facts_of(scene).items():
                self._holds.setdefault(fact, np.zeros(len(shown), bool))[row] = True
        self._nowhere = np.zeros(len(shown), bool)

    def matches(self, facts: scenes.Facts) -> np.ndarray:
        """Return (n,) bool: whether `facts` hold in each scene."""
        found = self._nowhere.copy()
        for first, second in scenes.matchings(facts):
            said = scenes.stated(facts, first, second)
            found |= np.logical_and.reduce([self._holds.get(fact, self._nowhere) for fact in said.items()])
        return found


def digest_of_domain(domain: Domain) -> str:
    """Digest how a domain is drawn: a folder of another digest holds another world."""
    return digest(
        [DRAWING, renderer.SIDE, captions.NOUNS, captions.PREFIXES, asdict(domain), asdict(LOOKS[domain.look])]
    )


def _caption(scene: scenes.Scene, rng: random.Random, domain: Domain, table: SceneTable | None) -> str:
    """Write one caption: one that is true of a single scene of `table`; without a table, perhaps a false one."""
    if table is None:
        fault = rng.random()
        if fault < domain.strange:
            return captions.write(scenes.sample(rng, company=domain.company), rng, domain.style)
        text = captions.write(scene, rng, domain.style)
        return falsify(text, rng) if fault < domain.strange + domain.false else text
    for attempt in range(TRIES):
        text = captions.write(scene, rng, domain.style.fuller(attempt / (TRIES - 1)))
        if table.matches(captions.parse(text)).sum() == 1:
            return text
    raise AssertionError("a caption with every fact is true of one scene alone")
