"""The list of all methods, in the order of the tables. A new method is a file of this folder and a line here."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from repair_hf.runtime.options import UserError
from repair_hf.study.methods import (
    alia,
    coco_cf,
    laclip,
    negclip,
    new_pairs,
    repair,
    simclr,
    stablerep,
    sugarcrepe,
    tripletclip,
)
from repair_hf.study.methods.method import Baseline, Maker, Method


def load_methods() -> dict[str, Method]:
    """Return all methods by name, in the order of the paper's table: baselines first, then RePair and its variants."""
    methods: tuple[Method, ...] = (
        repair.VANILLA,
        negclip.METHOD,
        sugarcrepe.METHOD,
        laclip.LACLIP,
        simclr.METHOD,
        stablerep.METHOD,
        alia.METHOD,
        coco_cf.METHOD,
        tripletclip.METHOD,
        laclip.LA_SC,
        laclip.CF_AL_LA,
        *repair.VARIANTS,
        new_pairs.METHOD,
        new_pairs.IN_GRID,
    )
    return {method.name: method for method in methods}


def load_makers() -> dict[str, Maker]:
    """Return the makers of all baselines by name."""
    baselines = [method for method in load_methods().values() if isinstance(method, Baseline)]
    return {maker.name: maker for method in baselines for maker in method.parts.values()}


def check_installed(methods: Iterable[Method]) -> None:
    """Raise a UserError if an optional package of some methods is missing."""
    missing = {
        method.name: package
        for method in methods
        if isinstance(method, Baseline)
        for package in method.needs
        if importlib.util.find_spec(package) is None
    }
    if missing:
        raise UserError(
            f"{', '.join(missing)} need packages that are not installed ({', '.join(sorted(set(missing.values())))}): "
            "pip install 'repair-hf[study]', or leave these methods out."
        )
