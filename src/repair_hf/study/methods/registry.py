"""The list of all methods, in the order of the tables. A new method is a file of this folder and a line here."""

from __future__ import annotations

import importlib.util
from collections import Counter
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
from repair_hf.study.methods.method import Baseline, Method
from repair_hf.study.swaps import TOY_SWAPS


def load_methods(swaps: Iterable[str] = TOY_SWAPS) -> dict[str, Method]:
    """Return all methods by name, in the order of the paper's table: baselines first, then RePair and its variants.

    Raises:
        UserError: If a swap has the name of another method.
    """
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
        *(method for name in swaps for method in repair.swapped(name)),
        new_pairs.METHOD,
        new_pairs.IN_GRID,
    )
    if taken := [name for name, count in Counter(method.name for method in methods).items() if count > 1]:
        raise UserError(f"`swaps` has {taken[0]!r}, which is another method, too; choose another name.")
    return {method.name: method for method in methods}


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
