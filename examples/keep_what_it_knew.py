"""Train on the records, blend with the base, and measure what is gained and what is kept.

Runs in the toy world, whose numbers say nothing about photographs. For your own data, change the model, the two data
sets, and the learning rate.
"""

from __future__ import annotations

import sys
from pathlib import Path

from repair_hf import evaluate, load_pairs, load_records, train
from repair_hf.encoder.blend import export_blend
from repair_hf.training.config import RepairConfig

BASE = "world/base"  # yours: "openai/clip-vit-base-patch32"


def main(demo: str = "runs/demo", output: str = "runs/kept") -> None:
    """Use the world, the records and the base's own domain that `repair-hf demo` left."""
    out, tuned, blended = Path(output), f"{output}/tuned", f"{output}/blended"
    pairs, test = (load_pairs(f"{demo}/world", split=split) for split in ("train", "test"))
    config = RepairConfig(tuned, num_train_epochs=2, learning_rate=3e-4, per_device_train_batch_size=128)
    train(BASE, pairs, load_records(f"{demo}/records"), config)
    export_blend(tuned, BASE, 0.8, blended)

    other = {"web": load_pairs(f"{demo}/web", split="test")}  # what the base is good at
    found = evaluate([BASE, tuned, blended], test, also=other, output=out / "evaluate")
    for name, metrics in found.items():
        gained, kept = (100 * metrics[f"{prefix}t2i_R@1"] for prefix in ("", "web_"))
        print(f"{name:8} T2I R@1: {gained:.1f} here, {kept:.1f} on the base's own domain")


if __name__ == "__main__":
    main(*sys.argv[1:])
