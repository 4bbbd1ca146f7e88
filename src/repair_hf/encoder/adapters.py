"""Which weights of a dual encoder are trained: all, one tower of two, or LoRA adapters by peft."""

from __future__ import annotations

import json
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from repair_hf.encoder.models import check_peft
from repair_hf.runtime.options import UserError

TOWERS = {"image": ("vision_model", "visual_projection"), "text": ("text_model", "text_projection")}
ALPHA = 2  # LoRA's alpha for each rank: the update is scaled by it


def limit_training(
    model: PreTrainedModel,
    *,
    freeze: str | None = None,
    lora_rank: int | None = None,
    lora_towers: str = "both",
    peft_config: Any = None,
    seed: int = 0,
) -> Any:
    """Make what is trained float32, and freeze the rest: all but the adapters, or one tower with its projection.

    Args:
        model: A dual encoder.
        freeze: The tower to freeze, `image` or `text`.
        lora_rank: Rank of LoRA adapters to train instead of all weights.
        lora_towers: Towers that get them: `both`, `image` or `text`.
        peft_config: Other adapters of peft.
        seed: Decides the adapters' first weights.

    Returns:
        The model to train: with adapters, a `PeftModel` around it.

    Raises:
        UserError: If peft is missing, or the options contradict each other or the model.
    """
    if peft_config is not None and (lora_rank, freeze) != (None, None):
        raise UserError("`peft_config` names what is trained; leave out `lora_rank` and `freeze`.")
    if peft_config is not None or lora_rank is not None:
        check_peft("`lora_rank`" if peft_config is None else "`peft_config`")
        return _with_adapters(model, peft_config or _lora(model, lora_rank or 0, lora_towers), seed)
    model.float()
    if freeze is not None:
        _check_tower(model, freeze)
        for name, module in model.named_children():
            if name in TOWERS[freeze]:
                module.requires_grad_(False)
    return model


def has_adapters(model: Any) -> bool:
    """Return whether adapters were added to a model, which are not merged yet."""
    return bool(getattr(model, "peft_config", None))


def as_json(config: Any) -> dict[str, Any] | None:
    """Return a configuration of peft as JSON, for the record of a run."""
    if config is None:
        return None
    values = {name: sorted(value) if isinstance(value, set) else value for name, value in config.to_dict().items()}
    return json.loads(json.dumps(values, default=str))


def check_model(model: PreTrainedModel, global_loss: str | None) -> bool:
    """Check that a model can be trained, and return whether it is trained with the sigmoid loss.

    Without that loss SigLIP's bias has no effect, and is frozen.

    Raises:
        UserError: If it has no logit scale, adapters already, or not the bias that `global_loss` needs.
    """
    name, parameters = type(model).__name__, dict(model.named_parameters())
    if any("lora_" in parameter for parameter in parameters):
        raise UserError("The model has an adapter. Give the adapter's folder, which is loaded merged into its base.")
    if "logit_scale" not in parameters:
        raise UserError(f"{name} has no `logit_scale`; a CLIP- or SigLIP-like dual encoder has one.")
    has_bias = "logit_bias" in parameters
    if global_loss == "sigmoid" and not has_bias:
        raise UserError(f"`global_loss` sigmoid needs a `logit_bias`, which {name} lacks; leave it out.")
    is_sigmoid = has_bias and global_loss != "softmax"
    if has_bias:
        parameters["logit_bias"].requires_grad_(is_sigmoid)
    return is_sigmoid


def _lora(model: PreTrainedModel, rank: int, towers: str) -> Any:
    """Return LoRA of the linear layers of attention and MLP in the blocks of one tower or both."""
    from peft import LoraConfig

    modules = []
    for tower in TOWERS if towers == "both" else (towers,):
        _check_tower(model, tower)
        modules.append(TOWERS[tower][0])
    inside = re.compile(rf"({'|'.join(modules)})\.(.*\.)?layers?\.\d+\.")
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and inside.match(name) is not None
    ]
    return LoraConfig(r=rank, lora_alpha=ALPHA * rank, target_modules=layers)


def _with_adapters(model: PreTrainedModel, config: Any, seed: int) -> Any:
    """Add adapters, and freeze everything else. The seed decides their first weights."""
    from peft import PeftConfig, get_peft_model

    if not isinstance(config, PeftConfig) or config.is_prompt_learning:
        raise UserError(f"`peft_config` takes a configuration such as `LoraConfig`, got {type(config).__name__}.")
    if not model.name_or_path:
        raise UserError("An adapter names its base, and this model has no name. Load it from the Hub or a folder.")
    config.revision = config.revision or getattr(model, "hub_commit", None)  # from `load_model`
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            with warnings.catch_warnings():  # peft asks by an older name, of which transformers warns
                warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
                adapted: Any = get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"`peft_config` does not fit {type(model).__name__}: {error}") from error
    if Path(model.name_or_path).is_dir():  # as it was typed, it would be another folder elsewhere
        config.base_model_name_or_path = str(Path(model.name_or_path).resolve())
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    # By default peft asks the Hub how many tokens the base has, and warns without an answer. No training changes it.
    adapted.save_pretrained = partial(adapted.save_pretrained, save_embedding_layers=False)
    return adapted


def _check_tower(model: PreTrainedModel, tower: str) -> None:
    if not hasattr(model, TOWERS[tower][0]):
        raise UserError(f"{type(model).__name__} has no `{TOWERS[tower][0]}`; a CLIP- or SigLIP-like model has one.")
