"""Mine a retriever's false positives, and look at the worst ones before anything is paid.

    python examples/mine_and_look.py

For your own data, change PAIRS and MODEL, and leave out the first step.
"""

from repair_hf import DualEncoder, load_pairs, mine_false_positives
from repair_hf.cli.main import main as repair_hf

PAIRS = "runs/examples/world"  # your folder, table, caption JSON or Hub id
MODEL = "world/base"  # openai/clip-vit-base-patch32, or a folder
SHOWN = 5

# %% Draw a small toy world
repair_hf(["world", "build", "--train", "120", "--validation", "20", "--test", "40", "--output", PAIRS])

# %% Embed images and captions, and rank everything against everything
pairs = load_pairs(PAIRS)
encoder = DualEncoder.from_pretrained(MODEL)
images, texts = encoder.embed_pairs(pairs)  # (N, D) and (M, D) unit vectors
captions = pairs.captions["caption"][:]
found = mine_false_positives(images, texts, pairs.caption_image, same_text_is_positive=captions).to_pandas()

# %% How many queries were missed?
best = found.drop_duplicates(["direction", "q"])  # the first row of a query is its best false positive
for direction, rows in best.groupby("direction"):
    print(f"{direction}: {(rows.gt_rank > 1).sum():,} of {len(rows):,} queries were missed")

# %% The worst misses in both directions. Are they real errors, wrong annotations, or duplicates?
best = best.assign(gap=best.fp_score - best.gt_score).sort_values("gap", ascending=False)
for row in best[best.direction == "t2i"].head(SHOWN).itertuples():
    wrong = captions[pairs.captions_of(row.fp)[0]]
    print(f"gap {row.gap:.3f}   query: {captions[row.q]}   found an image that shows: {wrong}")
for row in best[best.direction == "i2t"].head(SHOWN).itertuples():
    print(f"gap {row.gap:.3f}   image shows: {captions[row.gt]}   found: {captions[row.fp]}")

# %% A picture of the worst one
worst = best[best.direction == "t2i"].iloc[0]
pairs.images[int(worst.fp)]["image"].resize((256, 256)).save("runs/examples/worst.png")
print(f"worst.png was found for: {captions[worst.q]}")
