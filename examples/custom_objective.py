"""Train with a loss of your own: here, the contrastive loss plus a margin between an edit and its false positive.

    python examples/custom_objective.py

An objective maps a step, with its similarity matrix, to named terms. The trainer adds them by weight and logs each.
For your own data, change PAIRS and MODEL, and give the folder or Hub id of your records.
"""

import torch
from torch import Tensor

from repair_hf import PairObjective, RepairConfig, Step, load_pairs, load_records, train
from repair_hf.cli.main import main as repair_hf

PAIRS, RECORDS, MODEL = "runs/examples/world", "runs/examples/records", "world/base"


class EditMargin(PairObjective):
    """A pair of an edit should score higher than the pair with the false positive, by a margin."""

    weights = {"loss_margin": 0.5}  # in the loss; 1 for other terms
    margin = 2.0  # of logits

    def terms(self, step: Step) -> dict[str, Tensor]:
        terms = super().terms(step)  # loss_global, loss_grid
        matrix, visible, anchors = step.matrix, step.visible, step.anchors
        pairs = torch.arange(len(matrix), device=matrix.device)
        beside = (anchors != pairs) & visible[anchors, pairs] & visible[pairs, anchors]  # (P,): pairs of an edit
        wrong = torch.maximum(matrix[anchors, pairs], matrix[pairs, anchors])  # with the anchor's image or caption
        loss = (self.margin + wrong - matrix.diagonal()).relu()
        return terms | {"loss_margin": (loss * beside).sum() / beside.sum().clamp(min=1)}


def main() -> None:
    # Make pairs and records in the toy world.
    repair_hf(["world", "build", "--train", "120", "--validation", "20", "--test", "40", "--output", PAIRS])
    both = ["--pairs", PAIRS, "--model", MODEL]
    repair_hf(["mine", *both, "--max-queries", "50", "--output", "runs/examples/failures"])
    words = ["--failures", "runs/examples/failures", "--llm", "world/oracle", "--editor", "world"]
    repair_hf(["synthesize", *both, *words, "--output", RECORDS])

    config = RepairConfig(
        "runs/examples/margin", learning_rate=3e-4, per_device_train_batch_size=32, max_steps=20, logging_steps=5
    )
    summary = train(MODEL, load_pairs(PAIRS), load_records(RECORDS), config, objective=EditMargin())
    print(f"mean loss {summary['loss']:.3f} over {summary['steps']} steps")


if __name__ == "__main__":
    main()
