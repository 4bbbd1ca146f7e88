"""Train with a loss of your own: here, the contrastive loss plus a margin between an edit and its false positive.

    python examples/custom_objective.py

An objective maps a batch to named terms. The trainer adds them by weight and logs each. For your own data, change
PAIRS and MODEL, and give the folder or Hub id of your records.
"""

from typing import Any

import torch.nn.functional as F

from repair_hf import RepairConfig, load_pairs, load_records, train
from repair_hf.cli.main import main as repair_hf
from repair_hf.training.objectives import LocalGrids, Term, Vectors

PAIRS, RECORDS, MODEL = "runs/examples/world", "runs/examples/records", "world/base"
MARGIN, WEIGHT = 0.2, 0.5


class EditMargin(LocalGrids):
    """A caption should be nearer to the image that fits it than to the training image, by a margin of cosine."""

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        terms = super().forward(vectors, inputs)  # loss_global and loss_grid
        images = vectors.images[inputs["grid_images"]]  # (B, 3, D)
        texts = vectors.texts[inputs["grid_texts"]]  # (B, 3, D)
        present = inputs["present"][:, 1].float()  # (B,): whether the anchor has a false positive caption
        gap = (texts[:, 1] * (images[:, 1] - images[:, 0])).sum(1)  # (B,)
        loss = (F.relu(MARGIN - gap) * present).sum() / present.sum().clamp(min=1)
        return terms | {"loss_margin": Term(loss, WEIGHT, present.sum())}


def main() -> None:
    # Make pairs and records in the toy world.
    repair_hf(["world", "build", "--train", "120", "--validation", "20", "--test", "40", "--output", PAIRS])
    both = ["--pairs", PAIRS, "--model", MODEL]
    repair_hf(["mine", *both, "--max-queries", "50", "--output", "runs/examples/failures"])
    words = ["--failures", "runs/examples/failures", "--llm", "world/oracle", "--editor", "world"]
    repair_hf(["synthesize", *both, *words, "--output", RECORDS])

    config = RepairConfig(
        "runs/examples/margin",
        negatives="grid",  # the rows of a batch hold grids
        learning_rate=3e-4,
        per_device_train_batch_size=32,
        max_steps=20,
        logging_steps=5,
    )
    summary = train(MODEL, load_pairs(PAIRS), load_records(RECORDS), config, objective=EditMargin())
    print(f"mean loss {summary['loss']:.3f} over {summary['steps']} steps")


if __name__ == "__main__":
    main()
