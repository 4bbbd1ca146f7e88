"""Train a part of a dual encoder: LoRA adapters by peft, or one tower of two."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from repair_hf.encoder.models import ADAPTER, check_peft
from repair_hf.encoder.shipped import RETRIEVERS
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.training.config import RepairConfig

TOWERS = {"image": ("vision_model", "visual_projection"), "text": ("text_model", "text_projection")}
ALPHA = 2  # LoRA's alpha for each rank: the update is scaled by it


def limit_training(model: PreTrainedModel, args: RepairConfig, peft_config: Any = None) -> Any:
    """Make what is trained float32, and freeze the rest: all but the adapters, or the tower that `freeze` names.

    Returns:
        The model to train: with adapters, a `PeftModel` around it.

    Raises:
        UserError: If peft is missing, or the options contradict each other or the model.
    """
    if peft_config is not None or args.lora_rank is not None:
        return _with_adapters(model, _adapter_config(model, args, peft_config), args.seed)
    model.float()
    if args.freeze is not None:
        _check_tower(model, args.freeze)
        for name in TOWERS[args.freeze]:
            if (module := getattr(model, name, None)) is not None:
                module.requires_grad_(False)
    return model


def has_adapters(model: Any) -> bool:
    """Return whether adapters were added to a model, which are not merged yet."""
    return bool(getattr(model, "peft_config", None))


def base_model(model: Any) -> PreTrainedModel:
    """Return the dual encoder inside a `PeftModel`, adapters included; another model itself."""
    return model.get_base_model() if has_adapters(model) else model


def as_json(config: Any) -> dict[str, Any] | None:
    """Return a configuration of peft as JSON, for the record of a run."""
    if config is None:
        return None
    values = {name: sorted(value) if isinstance(value, set) else value for name, value in config.to_dict().items()}
    return json.loads(json.dumps(values, default=str))


def name_base(folder: str | Path) -> None:
    """Name a shipped base in a saved adapter as `world/base`: its folder is another on each machine.

    peft must not see that name when it saves: it would ask the Hub for it.
    """
    path, names = Path(folder) / ADAPTER, {str(place): name for name, place in RETRIEVERS.items()}
    config = json.loads(path.read_text())
    base = config["base_model_name_or_path"]
    write_atomically(path, json.dumps(config | {"base_model_name_or_path": names.get(base, base)}, indent=2) + "\n")


def _adapter_config(model: PreTrainedModel, args: RepairConfig, given: Any) -> Any:
    check_peft("`lora_rank`" if given is None else "`peft_config`")
    from peft import LoraConfig, PeftConfig

    if given is None:
        rank, towers = args.lora_rank or 0, TOWERS if args.lora_towers == "both" else [args.lora_towers]
        return LoraConfig(r=rank, lora_alpha=ALPHA * rank, target_modules=_linear_layers(model, *towers))
    if not isinstance(given, PeftConfig) or given.is_prompt_learning:
        raise UserError(f"`peft_config` takes a configuration such as `LoraConfig`, got {type(given).__name__}.")
    if args.lora_rank is not None or args.freeze is not None:
        raise UserError("`peft_config` names what is trained; leave out `lora_rank` and `freeze`.")
    return given


def _with_adapters(model: PreTrainedModel, config: Any, seed: int) -> Any:
    """Add adapters, and freeze everything else. The seed decides their first weights."""
    from peft import get_peft_model

    if not model.name_or_path:
        raise UserError("An adapter names its base, and this model has no name. Load it from the Hub or a folder.")
    config.revision = config.revision or getattr(model.config, "_commit_hash", None)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            adapted = get_peft_model(model, config)  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"`peft_config` does not fit {type(model).__name__}: {error}") from error
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted


def _check_tower(model: PreTrainedModel, tower: str) -> None:
    if not hasattr(model, TOWERS[tower][0]):
        raise UserError(f"{type(model).__name__} has no `{TOWERS[tower][0]}`; a CLIP- or SigLIP-like model has one.")


def _linear_layers(model: PreTrainedModel, *towers: str) -> str:
    """Return a pattern of the linear layers of attention and MLP in the blocks of some towers."""
    for tower in towers:
        _check_tower(model, tower)
    inside = rf"({'|'.join(TOWERS[tower][0] for tower in towers)})\.(.*\.)?layers?\.\d+\."
    found = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and re.match(inside, name)
    }
    return rf"{inside}(.*\.)?({'|'.join(sorted(found))})"
