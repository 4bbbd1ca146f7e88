"""What a study asks of LLM and image editor at most, and how long it trains, before it starts."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from typing import Any

from repair_hf.mining.options import MiningOptions
from repair_hf.runtime.options import UserError
from repair_hf.study.making import Maker
from repair_hf.study.methods import METHODS
from repair_hf.study.plan import Plan
from repair_hf.study.results import BLENDS, Cell
from repair_hf.study.setting import Setting
from repair_hf.synthesis.options import RepairOptions
from repair_hf.toyworld.corpus import CAPTIONS
from repair_hf.training.config import RepairConfig
from repair_hf.training.report import measure_step
from repair_hf.training.trainer import RepairTrainer

HEADS = ("method", "LLM calls", "images")
BESIDE = {"negative": 1, "drawn": 1, "records": 2}  # pairs beside each anchor, at most
FORWARD = 1 / 3  # of a training step: no backward pass


def price(*options: Any) -> tuple[list[tuple[str, int, int]], str]:
    """Return what each method asks at most, rows with `HEADS`, and a note; nothing is paid."""
    setting = Setting(*options)
    plan = Plan(setting)
    setting.check(plan.names, plan.splits)
    images, captions = setting.size_of_data
    note = (
        f"{images:,} images, {captions:,} captions. As if every failure passed the audit, each method for itself; "
        "what several ask is paid once. `--max-usd` is the ceiling of all."
    )
    if setting.world is None:
        note += f"\n{describe_time(setting, plan.trainings({}), len(plan.splits))}"
    return [(name, *asked_by(setting, name)) for name in plan.names], note


def asked_by(setting: Setting, name: str) -> tuple[int, int]:
    """Count a method's LLM calls and images at most: an audit and an instruction of each failure, and its candidates.

    Candidates are captions of the LLM (I2T) or images (T2I).
    """
    images, captions = setting.size_of_data
    most, mining, calls, made = setting.max_queries or captions, MiningOptions(model=""), 0, 0
    for source in setting.sources(name):
        if isinstance(source, Maker):
            calls += source.answers * captions
            made += (source.edits + source.draws) * captions
        else:
            options = RepairOptions(**source.synthesize)
            i2t = min(images, most) * mining.d_i2t * ("i2t" in source.directions)
            t2i = min(captions, most) * mining.d_t2i * ("t2i" in source.directions)
            calls += (i2t + t2i) * (options.audited + 1) + i2t * options.candidates
            made += t2i * options.candidates
    return calls, made


def describe_time(setting: Setting, trainings: Sequence[Cell], splits: int) -> str:
    """Estimate the hours of trainings and their evaluations, from a measured step of plain training."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            config = RepairConfig(output_dir=folder, **setting.training)
            trainer = RepairTrainer(setting.retriever(), config, setting.pairs)
            step = measure_step(trainer)["seconds"]
        except UserError as error:  # such as mixed precision without a GPU
            return f"{len(trainings):,} trainings; no step could be measured here: {error}"
    steps = 0.0  # of plain training, which take as long
    for cell in trainings:
        method = METHODS[cell.method]
        width = 1 + sum(BESIDE.get(part, 0) for part in method.sources) + (method.loss == "views")
        steps += math.ceil(cell.epochs * trainer.sampler.batches) * width
    split, kept = setting.load("test"), setting.size.kept
    items = len(split.images) + len(split.captions) + (1 + CAPTIONS) * kept + 4 * kept  # with a contrast set
    evaluations = len(BLENDS) * len(trainings)
    steps += FORWARD * evaluations * splits * items / (2 * config.step_size)
    hours = f"at most {steps * step / 3600:,.1f} core-hours (a step of `plain` takes {step:.2f} s here)"
    return f"{len(trainings):,} trainings, {hours}."
