"""What an optimizer trains: the learning rate and weight decay of each weight, and that none is left out."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from torch import nn

from repair_hf.encoder.adapters import TOWERS
from repair_hf.runtime.options import UserError


def weight_groups(model: nn.Module, decaying: Collection[str], args: Any) -> list[dict[str, Any]]:
    """Return the groups of an optimizer: the weights of each learning rate and weight decay.

    With `layer_decay`, the rate of a layer is multiplied by it once more than that of the layer above: once for the
    last layer, and once more for the embeddings than for the first layer (Bao et al., 2022, "BEiT").

    Args:
        model: What is trained.
        decaying: Names of the weights that have a weight decay.
        args: Has `learning_rate`, `image_learning_rate` (None for the same), `layer_decay` and `weight_decay`.
    """
    weights, rates = dict(model.named_parameters()), dict[str, float]()
    for tower, parts in TOWERS.items():
        has_own = tower == "image" and args.image_learning_rate is not None
        own = args.image_learning_rate if has_own else args.learning_rate
        names = [name for name in weights if {*parts} & {*name.split(".")}]
        layers = {name: int(found[1]) for name in names if (found := re.search(r"\.layers?\.(\d+)\.", name))}
        layers |= {name: -1 for name in names if ".embeddings." in name}
        depth = 1 + max(layers.values(), default=-1)
        rates |= {name: own * args.layer_decay ** (depth - layers[name]) if name in layers else own for name in names}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, weight in weights.items():
        if weight.requires_grad:
            key = rates.get(name, args.learning_rate), args.weight_decay if name in decaying else 0.0
            groups.setdefault(key, []).append(weight)
    order = sorted(groups, key=lambda key: key[0] != args.learning_rate)  # the first rate is in the log
    return [{"params": groups[key], "lr": key[0], "weight_decay": key[1]} for key in order]


def check_parameters(objective: nn.Module, model: nn.Module) -> None:
    """Raise an error for an objective with parameters outside the model, which would not be trained."""
    known = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) not in known for parameter in objective.parameters()):
        raise UserError(
            f"{type(objective).__name__} has parameters of its own, which would not be trained. Make them a part of "
            "the model while it trains."
        )
