"""Write the toy world to disk: pictures with captions, in the folder format of `load_pairs`.

`captions.jsonl` has one line for each picture (image, captions, split). Each picture `images/<split>-00001.png`
carries its scene.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from tqdm.auto import tqdm

from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest, write_atomically
from repair_hf.runtime.texts import read_json
from repair_hf.toyworld import captions, renderer, scenes

SPLITS = {"train": 2500, "validation": 2000, "test": 2000}
CAPTIONS = 5
SEED = 0
MARK = "world.json"


def is_world(folder: str | Path) -> bool:
    """Return whether a folder was made by `build_world`."""
    return (Path(folder) / MARK).is_file()


def build_world(folder: str | Path, *, splits: dict[str, int] = SPLITS, seed: int = SEED) -> Path:
    """Draw pictures with five captions each, unless the folder already holds this world.

    All scenes are distinct, so no test picture was seen in training. `captions.jsonl` is written last, so it marks a
    complete world.

    Raises:
        UserError: If the folder holds other captions.
    """
    folder = Path(folder)
    world = {
        "splits": splits,
        "seed": seed,
        "world": digest([renderer.SIDE, renderer.RGB, captions.PREFIXES, scenes.COMPANY]),
    }
    mark = folder / MARK
    if (folder / "captions.jsonl").exists():
        if mark.exists() and read_json(mark) == world:
            return folder
        raise UserError(
            f"{folder} holds captions already, and not those of this world "
            f"({', '.join(f'{n:,} {s}' for s, n in splits.items())}, seed {seed}); give another --output."
        )
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    seen: set[scenes.Scene] = set()
    lines = []
    with tqdm(total=sum(splits.values()), desc="Drawing the toy world", unit=" pictures", disable=None) as progress:
        for split, count in splits.items():
            for number in range(count):
                scene = _unseen(rng, seen)
                name = f"{split}-{number:05d}.png"
                (folder / "images" / name).write_bytes(renderer.to_png(renderer.render(scene)))
                texts = [captions.write(scene, rng) for _ in range(CAPTIONS)]
                lines.append(json.dumps({"image": name, "captions": texts, "split": split}))
                progress.update()
    write_atomically(mark, json.dumps(world))
    write_atomically(folder / "captions.jsonl", "\n".join(lines) + "\n")
    return folder


def _unseen(rng: random.Random, seen: set[scenes.Scene]) -> scenes.Scene:
    while True:
        scene = scenes.sample(rng)
        if scene not in seen:
            seen.add(scene)
            return scene
