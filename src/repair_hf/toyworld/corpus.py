"""Write the toy world to disk in the folder format in which `load_pairs` takes any pictures with captions.

In:  sizes of the splits and a seed.
Out: `images/<split>-00001.png` (each carries its scene) and `captions.jsonl`, one line a picture: image, captions, split.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from tqdm.auto import tqdm

from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest, write_atomically
from repair_hf.toyworld import captions, renderer, scenes

SPLITS = {"train": 2500, "validation": 2000, "test": 2000}
CAPTIONS = 5
SEED = 0
MARK = "world.json"


def is_world(folder: str | Path) -> bool:
    """Whether `build_world` drew what is in a folder."""
    return (Path(folder) / MARK).is_file()


def build_world(folder: str | Path, *, splits: dict[str, int] = SPLITS, seed: int = SEED) -> Path:
    """Draw `splits` pictures with five captions each; a folder that already holds this very world is left as it is.

    Scenes are distinct over all splits, so no test picture was seen in training. `captions.jsonl` is written last: where it
    stands, the world is whole.

    Raises:
        UserError: If the folder holds captions of another world, or of somebody's own pictures.
    """
    folder = Path(folder)
    world = {
        "splits": splits,
        "seed": seed,
        "world": digest([renderer.SIDE, renderer.RGB, captions.PREFIXES, scenes.COMPANY]),
    }
    mark = folder / MARK
    if (folder / "captions.jsonl").exists():
        if mark.exists() and json.loads(mark.read_text()) == world:
            return folder
        raise UserError(
            f"{folder} holds captions already, and not those of this world ({', '.join(f'{n:,} {s}' for s, n in splits.items())}, seed {seed}); "
            "give another --output."
        )
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    seen, lines = set(), []
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
