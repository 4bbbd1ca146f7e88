"""The list of all methods, in the order of the tables. A new method is a file of this folder and a line here."""

from __future__ import annotations

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
from repair_hf.study.methods.method import Method, Records

METHODS: tuple[Method, ...] = (
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
)


def load_methods(swaps: Iterable[str] = ()) -> dict[str, Method]:
    """Return all methods by name, in the order of the paper's table; each swap is one, too.

    Raises:
        UserError: If a swap has the name of another method.
    """
    found = {method.name: method for method in METHODS}
    for name in swaps:
        if name in found:
            raise UserError(f"`swaps` has {name!r}, which is another method, too; choose another name.")
        found[name] = repair.variant(name, Records(name))
    return found
