"""Blended weights: between a base and a tuned model, and for adapters."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from peft import LoraConfig, get_peft_model

from repair_hf.encoder.blend import blend, untrained
from repair_hf.runtime.options import UserError

# peft asks by a name of which transformers warns
OLD_NAME = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def moved(model):
    torch.manual_seed(1)
    for value in model.parameters():
        if value.requires_grad:
            value.data += torch.randn_like(value)
    return model


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("by_folder", [True, False])
def test_a_blend_is_the_base_and_a_part_of_the_way(clip, clip_folder, weight, by_folder):
    base, tuned = clip.state_dict(), moved(deepcopy(clip))
    before = {name: value.clone() for name, value in tuned.state_dict().items()}
    blend(tuned, clip_folder if by_folder else base, weight)
    for name, value in tuned.state_dict().items():
        if not value.is_floating_point():
            assert value.equal(base[name])
            continue
        reference = base[name].double() + weight * (before[name].double() - base[name].double())
        torch.testing.assert_close(value.double(), reference, atol=1e-6, rtol=1e-6)
        if weight in (0.0, 1.0):
            assert value.equal(before[name] if weight else base[name])


def test_tied_weights_are_blended_once():
    def tied(value):
        model = torch.nn.ModuleDict({"one": torch.nn.Linear(2, 2), "two": torch.nn.Linear(2, 2)})
        model.two.weight = model.one.weight
        for parameter in model.parameters():
            parameter.data.fill_(value)
        return model

    tuned = tied(1.0)
    blend(tuned, tied(0.0).state_dict(), 0.5)
    assert all((value == 0.5).all() for value in tuned.state_dict().values())


@OLD_NAME
@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_an_adapter_gives_a_part_of_its_update_and_merges_to_it(clip, weight):
    base = {name: value.clone() for name, value in clip.state_dict().items()}
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["visual_projection"])
    adapted = get_peft_model(clip, config)
    assert untrained(adapted) == {}
    tuned = moved(adapted)
    whole = deepcopy(tuned).merge_and_unload().state_dict()
    blend(tuned, {}, weight)
    for name, value in tuned.merge_and_unload().state_dict().items():
        torch.testing.assert_close(value, base[name] + weight * (whole[name] - base[name]), atol=1e-5, rtol=1e-5)
        is_trained = "q_proj.weight" in name or name.startswith("visual_projection")
        assert whole[name].equal(base[name]) != is_trained


def test_what_cannot_be_blended_is_an_error(clip):
    base = clip.state_dict()
    lacks = {name: value for name, value in base.items() if name != "logit_scale"}
    other = base | {"logit_scale": torch.zeros(2)}
    for first, weight, message in (
        (base, 1.5, "from 0 .* to 1 .*1.5"),
        (base, float("nan"), "nan"),
        (lacks, 0.5, "differ in 1 weights or shapes, such as logit_scale None and "),
        (other, 0.5, r"logit_scale \(2,\) and \(\)"),
    ):
        with pytest.raises(UserError, match=message):
            blend(clip, first, weight)


@OLD_NAME
@pytest.mark.parametrize(
    "kind",
    [
        {"use_dora": True},
        {"bias": "lora_only"},
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": "olora"},
        {"trainable_token_indices": {"token_embedding": [3]}},
    ],
)
def test_other_adapters_than_plain_lora_are_refused_before_training(clip, kind):
    """Scaling their update would not give `base + weight * (tuned - base)`."""
    model = get_peft_model(clip, LoraConfig(r=2, target_modules=["q_proj"], **kind))
    with pytest.raises(UserError, match="`blend` below 1 takes plain LoRA adapters, and this one trains "):
        untrained(model)
