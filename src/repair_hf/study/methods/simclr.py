"""SimCLR beside CLIP, as in SLIP (Chen et al., 2020; Mu et al., 2022).

Data: two random views of each image, drawn anew in each step. No samples are made beforehand.
Loss: InfoNCE on the pairs, plus `two_views` on a projection of the image features, with temperature 0.1 and weight 1.

Our reading (RePair's paper gives no recipe):
- CLIP sees the uncropped image, as in the evaluation. Views are normalised like the retriever's own images.
- The head is SLIP's (4,096, 4,096, 256), and narrower for a tower that is narrower than SLIP's smallest. It starts at
  random, so it needs a part of a short fine-tuning to become useful. It is not evaluated and not saved.
- It trains in one process only: see `objectives.attach`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repair_hf.study.methods.losses import groups_of, projection_head, two_views
from repair_hf.study.methods.method import Baseline
from repair_hf.training.objectives import Objective, Term, Vectors, global_loss

HIDDEN, OUT, TEMPERATURE = 4096, 256, 0.1
SMALLEST = 384  # width of SLIP's smallest tower


class TwoViews(Objective):
    """InfoNCE, plus NT-Xent with a weight, on image features of some width."""

    needs_features: ClassVar[bool] = True

    def __init__(self, width: int, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight
        self.head = projection_head(width, min(HIDDEN, HIDDEN * width // SMALLEST), OUT)

    def prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Append two views of each anchor's image to the batch's images."""
        pixels = inputs["pixels"]
        originals = pixels[inputs["anchor_images"]]  # (B, 3, H, W)
        views = torch.cat([pixels, self.augment(originals), self.augment(originals)])
        return inputs | {"pixels": views, "first_view": len(pixels)}

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        assert vectors.features is not None, "`needs_features` asks for them"
        views = F.normalize(self.head(vectors.features[inputs["first_view"] :].float()), dim=1)  # (2 B, OUT)
        one, other = views.chunk(2)
        found = two_views(one, other, TEMPERATURE, groups_of(inputs))
        return {"loss_global": global_loss(vectors, inputs), "loss_views": Term(found, self.weight)}

    def augment(self, pixels: Tensor) -> Tensor:
        """Return a view of each image, (B, 3, H, W) uint8, by SLIP's crop, colors, grey, blur and mirror."""
        views = _views(*pixels.shape[2:])(pixels.float() / 255)
        return (255 * views).round().clamp(0, 255).to(torch.uint8)


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


METHOD = Baseline(
    "simclr",
    objective=lambda encoder: TwoViews(encoder.model.config.vision_config.hidden_size),
    needs=("kornia",),
)
