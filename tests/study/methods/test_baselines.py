"""Every baseline from its samples to a trained step."""

import pytest
from training_runs import curve, weights

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.records.dataset import build
from repair_hf.study.methods.method import Baseline
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.methods.samples import SAMPLES, Samples
from repair_hf.training.config import RepairConfig
from repair_hf.training.finetune import train

BASELINES = {name: method for name, method in load_methods().items() if isinstance(method, Baseline)}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_a_method_trains_on_what_it_made(name, made, pairs, clip_folder, tmp_path, two_steps):
    """From random weights: on four pictures `world/base` has nothing left to learn."""
    method = BASELINES[name]
    for package in method.needs:
        pytest.importorskip(package, reason=f"{name} needs {package}: pip install 'repair-hf[study]'")
    rows = {part: made(maker.name).rows for part, maker in method.parts.items()}
    fill = Samples(pairs, {part: build(some, tmp_path / f"{part}.arrow", SAMPLES) for part, some in rows.items()})
    assert all(fill.report()[f"samples_{part}"] == len(some) > 0 for part, some in rows.items())
    encoder = DualEncoder.from_pretrained(clip_folder, device="cpu")
    before = weights(encoder.model)
    config = RepairConfig(**two_steps, learning_rate=1e-4, loss=method.loss)
    objective = method.objective and method.objective(encoder, fill, config)
    callbacks = [objective] if name == "simclr" else []
    train(encoder, pairs, None, config, fill=fill, objective=objective, callbacks=callbacks)
    lines = curve(tmp_path / "out")
    extra = {"simclr": {"loss_views"}, "stablerep": {"loss_images"}}.get(name, set())
    for line in lines:
        parts = {key for key in line if key.startswith("loss_")}
        assert parts == {"loss_global"} | extra
        assert line["loss"] == pytest.approx(sum(line[key] for key in parts), rel=1e-3) and 0.1 < line["loss"] < 20
    assert len(lines) == 2
    after = weights(encoder.model).items()
    assert not any(value.equal(before[key]) for key, value in after if "embeddings" not in key)
