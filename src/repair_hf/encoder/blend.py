"""Blend a tuned model with its base: `base + weight * (tuned - base)`, as in WiSE-FT (Wortsman et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repair_hf.encoder.adapters import has_adapters
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.embedder import Embedder
from repair_hf.encoder.models import NAMED, load_model
from repair_hf.runtime.options import UserError
from repair_hf.runtime.stage import Stage


@torch.no_grad()
def blend(model: Any, base: Mapping[str, Tensor] | str | Path, weight: float, *, revision: str | None = None) -> None:
    """Move a tuned model's weights towards its base, in place: 0 gives the base, and 1 the tuned model.

    The arithmetic is float32. Integer buffers stay. LoRA adapters need no base: `weight` multiplies their update.

    Args:
        model: The tuned dual encoder, or a `PeftModel` with LoRA adapters.
        base: The base's state dict, or its Hub id or folder, which is loaded; not read for adapters.
        weight: From 0 to 1.
        revision: Branch, tag or commit of a base on the Hub.

    Raises:
        UserError: If the weight is out of range, the base has other weights or shapes, or the adapters are not LoRA's.
    """
    if not 0 <= weight <= 1:
        raise UserError(f"The weight of a blend is from 0 (the base) to 1 (the tuned model), got {weight}.")
    if has_adapters(model):
        return _scale_adapters(model, weight)
    first = load_model(base, revision=revision).state_dict() if isinstance(base, str | Path) else base
    tuned = model.state_dict()
    _check_same(first, tuned)
    done = set[tuple[int, int]]()  # tied weights have several names
    for name, value in tuned.items():
        place = value.data_ptr(), value.numel()
        if value.is_floating_point() and place not in done:
            done.add(place)
            value.copy_(first[name].to(value.device, torch.float32).lerp(value.float(), weight))


def weights_of(base: Any) -> dict[str, Tensor]:
    """Load the weights of the base of some blends.

    Raises:
        UserError: If it is not named by id or folder, or cannot be loaded.
    """
    if not isinstance(base, str | Path):
        raise UserError("`blends` loads the base, so name it by Hub id or folder.")
    return load_model(base).state_dict()


def blended(encoder: Embedder, base: Mapping[str, Tensor], weight: float) -> DualEncoder:
    """Blend the open encoder of a tuned model with the weights of its base, and return it.

    Raises:
        UserError: As `blend`; or if it is no dual encoder of transformers.
    """
    if not isinstance(encoder, DualEncoder):
        raise UserError(f"`blends` takes dual encoders of transformers; {encoder.origin} is a SentenceTransformer.")
    blend(encoder.model, base, weight)
    return encoder


def export_blend(model: str | Path, base: str | Path, weight: float, output: str | Path) -> dict[str, Any]:
    """Write the blend of a tuned model with its base, as `repair-hf export blend` does.

    Args:
        model: Hub id or folder of the tuned model; an adapter is merged.
        base: Hub id or folder of the model that it was tuned from.
        weight: From 0 (the base) to 1 (the tuned model).
        output: Folder for weights and processor; a finished one is left as it is.

    Returns:
        `parameters`, how many there are.

    Raises:
        UserError: As `blend`; or if the folder holds something else.

    Example:
        >>> export_blend("runs/train", "openai/clip-vit-base-patch32", 0.8, "runs/blend")
    """
    encoder = DualEncoder.from_pretrained(model, device="cpu")
    inputs = {"model": str(model), "model_digest": encoder.digest, "base": str(base), "weight": weight}
    words = ["--model", str(model), "--base", str(base), "--weight", f"{weight:g}"]
    stage = Stage("export blend", output, inputs=inputs, words=words)

    def write(folder: Path | None) -> dict[str, Any]:
        blend(encoder.model, base, weight)
        encoder.model.save_pretrained(output)
        encoder.preprocessor.save_pretrained(output)
        return {"parameters": sum(parameter.numel() for parameter in encoder.model.parameters())}

    return stage.run(write)


def untrained(model: Any) -> dict[str, Tensor]:
    """Copy the weights of a model that is about to be trained, for `blend`. Adapters need no copy."""
    if has_adapters(model):
        return {}
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def _check_same(base: Mapping[str, Tensor], tuned: Mapping[str, Tensor]) -> None:
    names = sorted(base.keys() | tuned.keys())
    shapes = {name: [tuple(side[name].shape) if name in side else None for side in (base, tuned)] for name in names}
    other = [f"{name} {one} and {two}" for name, (one, two) in shapes.items() if one != two]
    if other:
        raise UserError(
            f"Base and tuned model differ in {len(other)} weights or shapes, such as {', '.join(other[:NAMED])}. Give "
            "the base that the model was tuned from."
        )


def _scale_adapters(model: Any, weight: float) -> None:
    """Multiply the updates of LoRA, and blend the modules that are trained whole with their originals."""
    for config in model.peft_config.values():
        if config.peft_type != "LORA" or config.use_dora or config.bias != "none":
            raise UserError("Only plain LoRA adapters can be blended: without DoRA and without trained biases.")
    for module in model.modules():
        for name in ("lora_B", "lora_embedding_B"):  # the update is B A: scaling B survives saving
            for part in (getattr(module, name, None) or {}).values():
                (part if isinstance(part, Tensor) else part.weight).mul_(weight)
        # a wrapper of peft around a module that is trained whole; seen with peft 0.21
        if hasattr(module, "modules_to_save") and hasattr(module, "original_module"):
            for part in module.modules_to_save.values():
                blend(part, module.original_module.state_dict(), weight)
