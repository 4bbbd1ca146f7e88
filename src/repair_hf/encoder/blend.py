"""Blend a tuned model with its base: `base + weight * (tuned - base)`, as in WiSE-FT (Wortsman et al., 2022)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repair_hf.encoder.adapters import has_adapters
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.models import MODEL_FILES, NAMED, load_model
from repair_hf.runtime.files import read_json, read_yaml
from repair_hf.runtime.items import FILE
from repair_hf.runtime.options import UserError
from repair_hf.runtime.stage import Stage, command_of

FLOAT32 = "torch.float32"
TRAININGS = ("train", "export blend")  # commands whose folders hold a trained model
# The weights that plain LoRA trains. The update is B A, so a scale of B survives saving.
PLAIN_LORA = re.compile(r"\.(lora_A|lora_B|lora_embedding_A|lora_embedding_B|modules_to_save)\.")


@torch.no_grad()
def blend(model: Any, base: Mapping[str, Tensor] | str | Path, weight: float) -> None:
    """Move a tuned model's weights towards its base, in place: 0 gives the base, and 1 the tuned model.

    The arithmetic is float32. Integer buffers stay. LoRA adapters need no base: `weight` multiplies their update.

    Args:
        model: The tuned dual encoder, or a `PeftModel` with adapters that `untrained` took.
        base: The base's state dict, or its Hub id or folder, which is loaded; not read for adapters.
        weight: From 0 to 1.

    Raises:
        UserError: If the weight is out of range, or the base has other weights or shapes.
    """
    if not 0 <= weight <= 1:
        raise UserError(f"The weight of a blend is from 0 (the base) to 1 (the tuned model), got {weight}.")
    if has_adapters(model):
        return _scale_adapters(model, weight)
    first = load_model(base).state_dict() if isinstance(base, str | Path) else base
    tuned = model.state_dict()
    _check_same(first, tuned)
    done = set[tuple[int, int]]()  # tied weights have several names
    for name, value in tuned.items():
        place = value.data_ptr(), value.numel()
        if value.is_floating_point() and place not in done:
            done.add(place)
            value.copy_(first[name].to(value.device, torch.float32).lerp(value.float(), weight))


def untrained(model: Any) -> dict[str, Tensor]:
    """Copy the weights of a model that is about to be trained, for `blend`. LoRA adapters need no copy.

    Raises:
        UserError: If the model has adapters that are not plain LoRA: a part of their update is not a scaled B.
    """
    if not has_adapters(model):
        return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}
    for name, value in model.named_parameters():
        starts_at_base = "lora_B" not in name or not value.any()  # PiSSA and OLoRA begin elsewhere
        if value.requires_grad and not (PLAIN_LORA.search(name) and starts_at_base):
            raise UserError(
                f"`blend` below 1 takes plain LoRA adapters, and this one trains {name}. Leave `blend` out, and blend "
                "the trained folder with `repair-hf export blend`."
            )
    return {}


def export_blend(model: str | Path, base: str | Path, weight: float, output: str | Path) -> dict[str, Any]:
    """Write the blend of a tuned model with its base, as `repair-hf export blend` does.

    The folder holds the training's own options and numbers, with `blend` set. So `evaluate` and the model's card treat
    it as any trained model.

    Args:
        model: Hub id or folder of the tuned model; an adapter is merged.
        base: Hub id or folder of the model that it was tuned from, in one training or in several.
        weight: From 0 (the base) to 1 (the tuned model).
        output: Folder for weights and processor; a finished one is left as it is.

    Returns:
        The summary of the training, without its evaluation, and `parameters` (how many).

    Raises:
        UserError: As `blend`; or if the model was tuned from another base, or the folder holds something else.

    Example:
        >>> export_blend("runs/train", "openai/clip-vit-base-patch32", 0.8, "runs/blend")
    """
    encoder = DualEncoder.from_pretrained(model, device="cpu")
    folder, options, numbers = training_of(model)
    first = _check_base(model, base)
    before = options.get("base_digest", options.get("model_digest"))  # of the base of a blend that the training made
    own = {
        "blend": weight * (options.get("blend", 1.0) if first.digest == before else 1.0),
        "base": str(base),
        "base_digest": first.digest,
        "tuned": str(model),
        "tuned_digest": encoder.digest,
    }
    inputs = {"model": str(base), "model_digest": first.digest} | options | own
    neutral = inputs.keys() - {"blend", "base_digest", "tuned_digest"}
    words = ["--model", str(model), "--base", str(base), "--weight", f"{weight:g}"]
    size = sum(parameter.numel() for parameter in encoder.model.parameters())

    def write(_: Any) -> dict[str, Any]:
        blend(encoder.model, base, weight)
        encoder.model.save_pretrained(output)
        encoder.preprocessor.save_pretrained(output)
        if folder is not None and (folder / FILE).is_file():  # what it was trained on
            shutil.copyfile(folder / FILE, Path(output) / FILE)
        kept = {name: value for name, value in numbers.items() if not name.startswith("eval_")}
        return kept | {"parameters": size}

    stage = Stage("export blend", output, inputs=inputs, neutral=neutral, words=words, writes=(*MODEL_FILES, FILE))
    return stage.run(write)


def find_trainings(model: Any) -> dict[Path, dict[str, Any]]:
    """Find the folder and the options of a model's training, then of that of the model it started from, and so on."""
    trainings: dict[Path, dict[str, Any]] = {}
    while True:
        folder, options, _ = training_of(model)
        if folder is None or folder in trainings:
            return trainings
        trainings[folder] = options
        model = options.get("model")


def training_of(model: Any) -> tuple[Path | None, dict[str, Any], dict[str, Any]]:
    """Return the folder, the options and the numbers of a model's training; None and nothing if they are unknown.

    A checkpoint has the options of its training, and the steps of its name.
    """
    if not isinstance(model, str | Path):
        return None, {}, {}
    kind, _, step = Path(model).name.rpartition("-")
    is_checkpoint = kind == "checkpoint" and step.isdecimal()
    folder = Path(model).parent if is_checkpoint else Path(model)
    if command_of(folder) not in TRAININGS:
        return None, {}, {}
    numbers = read_json(folder / "summary.json") if (folder / "summary.json").is_file() else {}
    options = read_yaml(folder / "config.yaml")
    return folder, options, numbers | ({"steps": int(step)} if is_checkpoint else {})


def _check_base(model: str | Path, base: str | Path) -> DualEncoder:
    """Open the base of a tuned model, in the type of weights of the training that names it.

    Raises:
        UserError: If the model has trainings, and none of them began with this base.
    """
    names = []
    first = DualEncoder.from_pretrained(base, device="cpu")
    for options in find_trainings(model).values():
        names.append(f"{options.get('model')}@{options.get('model_digest')}")
        dtype = options.get("dtype", FLOAT32)
        opened = first if dtype == FLOAT32 else DualEncoder.from_pretrained(base, device="cpu", dtype=dtype[6:])
        if opened.is_named(names[-1]):
            return opened
    if names:
        raise UserError(
            f"{model} was tuned from {', '.join(names)}, and --base is {first.name}. Give the base that it was tuned "
            "from."
        )
    return first


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
    for module in model.modules():
        for name in ("lora_B", "lora_embedding_B"):
            for part in (getattr(module, name, None) or {}).values():
                for value in [part] if isinstance(part, Tensor) else part.parameters():
                    value.mul_(weight)
        # a wrapper of peft around a module that is trained whole; seen with peft 0.21
        if hasattr(module, "modules_to_save") and hasattr(module, "original_module"):
            for part in module.modules_to_save.values():
                blend(part, module.original_module.state_dict(), weight)
