"""SimCLR beside CLIP, as in SLIP (Chen et al., 2020; Mu et al., 2022).

Data: two random views of each image, drawn anew in each step. No samples are made beforehand.
Loss: InfoNCE on the pairs, plus `two_views` on a projection of the image features, with temperature 0.1 and weight 1.

Our reading (RePair's paper gives no recipe):
- CLIP sees the uncropped image, as in the evaluation. Views are normalised like the retriever's own images.
- The head is SLIP's (4,096, 4,096, 256), and narrower for a tower that is narrower than SLIP's smallest. It starts at
  random, so it needs a part of a short fine-tuning to become useful. It is not evaluated and not saved.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.runtime.options import UserError
from repair_hf.study.methods.losses import alike, anchor_loss, two_views
from repair_hf.study.methods.method import Method
from repair_hf.training.step import Objective, Step

HIDDEN, OUT, TEMPERATURE = 4096, 256, 0.1
SMALLEST = 384  # width of SLIP's smallest tower
HEAD, VIEWS = "two_views_head", 2


class TwoViews(Objective, TrainerCallback):
    """InfoNCE, plus NT-Xent with a weight on the image tower's features.

    The head is part of the model while it trains. As a callback of the training, this objective removes it.
    """

    def __init__(self, encoder: DualEncoder, weight: float = 1.0) -> None:
        super().__init__()
        self.encoder, self.weights = encoder, {"loss_views": weight}
        width = encoder.model.config.vision_config.hidden_size
        self.head = projection_head(width, min(HIDDEN, HIDDEN * width // SMALLEST), OUT)
        encoder.model.add_module(HEAD, self.head)

    def terms(self, step: Step) -> dict[str, Tensor]:
        originals = step.batch["pixels"][step.batch["images"][:, 0]]  # (B, 3, H, W)
        views = torch.cat([self.augment(originals) for _ in range(VIEWS)])
        vectors = F.normalize(self.head(self.features(views, step.batch).float()), dim=1)  # (2 B, OUT)
        one, other = vectors.chunk(VIEWS)
        anchors = step.own[step.slots[step.own] == 0]  # views are of this process's images alone
        known = alike(step)[anchors][:, anchors]
        return {"loss_global": anchor_loss(step), "loss_views": two_views(one, other, TEMPERATURE, known)}

    def features(self, images: Tensor, batch: dict[str, Any]) -> Tensor:
        """Return the image tower's output before its projection, (n, F), by a forward of the whole model."""
        found: list[Tensor] = []
        one_caption = {name: ids[:1] for name, ids in batch["texts"][0].items()}
        model, normalize = self.encoder.model, self.encoder.preprocessor.normalize
        with model.vision_model.register_forward_hook(lambda tower, given, out: found.append(out.pooler_output)):
            model(pixel_values=normalize(images), **one_caption)
        return found[0]

    def augment(self, pixels: Tensor) -> Tensor:
        """Return a view of each image, (B, 3, H, W) uint8, by SLIP's crop, colors, grey, blur and mirror."""
        views = _views(*pixels.shape[2:])(pixels.float() / 255)
        return (255 * views).round().clamp(0, 255).to(torch.uint8)

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise a UserError for adapters, which alone are trained and saved."""
        if not all(parameter.requires_grad for parameter in self.head.parameters()):
            raise UserError("`simclr` has a head of its own, which is not trained with adapters. Train all weights.")

    def on_train_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove the head, so that the finished model is a plain dual encoder."""
        delattr(self.encoder.model, HEAD)


def projection_head(width: int, hidden: int, out: int) -> nn.Sequential:
    """SLIP's projection head: three layers with batch normalisation."""
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, out),
    )


@cache
def _views(height: int, width: int) -> nn.Module:
    import kornia.augmentation as views

    blur = 2 * (min(height, width) // 20) + 1  # a tenth of the side, as in SimCLR
    return nn.Sequential(
        views.RandomResizedCrop((height, width), scale=(0.08, 1.0)),
        views.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        views.RandomGrayscale(p=0.2),
        views.RandomGaussianBlur((blur, blur), (0.1, 2.0), p=0.5),
        views.RandomHorizontalFlip(p=0.5),
    )


METHOD = Method("simclr", objective=lambda encoder, config: TwoViews(encoder), more_images=VIEWS, needs="kornia")
