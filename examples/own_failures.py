"""Repair failures that you know, such as those of a click log: only these are ranked, and paid for."""

import csv
from pathlib import Path

from repair_hf import load_pairs, mine
from repair_hf.cli.main import main as repair_hf

PAIRS = "runs/examples/known"  # your folder, table, caption JSON or Hub id
MODEL = "world/base"  # openai/clip-vit-base-patch32, or a folder
LOG = Path("runs/examples/mistakes.csv")

# %% Draw a small toy world
repair_hf(["world", "build", "--train", "60", "--validation", "10", "--test", "10", "--output", PAIRS])
pairs = load_pairs(PAIRS)

# %% A log: what was asked, and what was shown wrongly. Texts, ids and paths of images will do.
names, captions = pairs.images["image_id"][:], pairs.captions["caption"][:]
rows = [(captions[0], names[7]), (captions[30], names[2]), (names[4], captions[50]), ("not in the data", names[1])]
with LOG.open("w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("query", "wrong"), *rows])

# %% Rank them as mining does; `synthesize`, `show` and all else work on the result
for failure in mine(MODEL, pairs, wrong=str(LOG), output="runs/examples/own"):
    print(f"{failure['q_id']} found {failure['fp_id']}: rank {failure['fp_rank']}, cosine {failure['fp_score']:.3f}")
repair_hf(["show", "runs/examples/own", "--output", "runs/examples/own.html"])
