"""Write the toy world to disk: pictures with captions, in the folder format of `load_pairs`.

`captions.jsonl` has one line for each picture (image, captions, split). Each picture `images/<split>-00001.png`
carries its scene.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import asdict, replace
from pathlib import Path

from tqdm.auto import tqdm

from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest, write_atomically
from repair_hf.runtime.texts import read_json
from repair_hf.toyworld import captions, renderer, scenes
from repair_hf.toyworld.domains import DOMAINS, Domain
from repair_hf.toyworld.looks import LOOKS
from repair_hf.toyworld.matching import SceneTable
from repair_hf.toyworld.variations import falsify

SPLITS = {"train": 2500, "validation": 2000, "test": 2000}
CAPTIONS = 5
SEED = 0
MARK = "world.json"
TRIES = 20  # to write a caption that is true of one picture only; the last mentions every fact


def is_world(folder: str | Path) -> bool:
    """Return whether a folder was made by `build_world`."""
    return (Path(folder) / MARK).is_file()


def build_world(
    folder: str | Path, *, splits: dict[str, int] = SPLITS, seed: int = SEED, domain: str = "plain"
) -> Path:
    """Draw pictures with five captions each, unless the folder already holds this world.

    In validation and test, each scene is shown once and each caption is true of one picture of its split: R@1 counts
    no right answer as wrong. Training shows other scenes, some more than once. `captions.jsonl` is written last, so
    it marks a complete world.

    Raises:
        UserError: If the folder holds other captions.
    """
    folder = Path(folder)
    drawn = DOMAINS[domain]
    world = {"splits": splits, "seed": seed, "domain": domain, "world": _digest(drawn)}
    mark = folder / MARK
    if (folder / "captions.jsonl").exists():
        if mark.exists() and read_json(mark) == world:
            return folder
        raise UserError(
            f"{folder} already holds other captions than those of this world "
            f"({', '.join(f'{n:,} {s}' for s, n in splits.items())}, seed {seed}); give another --output."
        )
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    seen: set[scenes.Scene] = set()  # in validation and test, which are drawn first
    lines = []
    with tqdm(total=sum(splits.values()), desc="Drawing the toy world", unit=" pictures", disable=None) as progress:
        for split, count in sorted(splits.items(), key=lambda item: item[0] == "train"):
            shown = _training_scenes(rng, seen, drawn, count) if split == "train" else _clear(rng, seen, drawn, count)
            table = None if split == "train" else SceneTable(shown)
            for number, scene in enumerate(shown):
                name = f"{split}-{number:05d}.png"
                (folder / "images" / name).write_bytes(renderer.to_png(renderer.render(scene)))
                texts = [_caption(scene, rng, drawn, table) for _ in range(CAPTIONS)]
                lines.append(json.dumps({"image": name, "captions": texts, "split": split}))
                progress.update()
    write_atomically(mark, json.dumps(world))
    write_atomically(folder / "captions.jsonl", "\n".join(lines) + "\n")
    return folder


def _training_scenes(rng: random.Random, seen: set[scenes.Scene], domain: Domain, count: int) -> list[scenes.Scene]:
    drawn = (domain.scene(rng) for _ in itertools.count())
    repeated = round(domain.repeated * count / 2)
    shown = list(itertools.islice((scene for scene in drawn if scene not in seen), count - repeated))
    return shown + [replace(scene, layout=rng.randrange(2**31)) for scene in shown[:repeated]]


def _clear(rng: random.Random, seen: set[scenes.Scene], domain: Domain, count: int) -> list[scenes.Scene]:
    """Draw scenes of which each can be told from all others by a caption. A thing alone needs a setting of its own."""
    shown: list[scenes.Scene] = []
    settings: set[tuple] = set()
    alone: set[tuple] = set()
    while len(shown) < count:
        scene = domain.scene(rng)
        setting = (scene.subject, scene.background)
        if scene in seen or setting in (alone if scene.other else settings):
            continue
        shown.append(scene)
        seen.add(scene)
        settings.add(setting)
        if scene.other is None:
            alone.add(setting)
    return shown


def _digest(domain: Domain) -> str:
    return digest([renderer.SIDE, captions.NOUNS, captions.PREFIXES, asdict(domain), asdict(LOOKS[domain.look])])


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
