"""The methods of the study, one file each.

In:  the files of this folder that define `METHODS`.
Out: every method by its name; a refusal of those whose packages are not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable

from repair_hf.runtime.options import UserError
from repair_hf.study import methods
from repair_hf.study.methods.method import Baseline, Method

# Files come in the order of their names; a reader of the table wants the plain method first, and ours last.
FIRST = "vanilla negclip sugarcrepe laclip simclr stablerep alia coco_cf tripletclip la_sc cf_al_la".split()
LAST = "repair ablations beyond".split()


def load_methods() -> dict[str, Method]:
    """All methods, in the order of the paper's table; those of files that it does not know stand between its baselines and RePair."""
    files = {info.name for info in pkgutil.iter_modules(methods.__path__)}
    others = sorted(files - set(FIRST) - set(LAST))
    found = {}
    for name in (*FIRST, *others, *LAST):
        module = importlib.import_module(f"{methods.__name__}.{name}")
        for method in vars(module).get("METHODS", ()):
            found[method.name] = method
    return found


def check_installed(methods: Iterable[Method]) -> None:
    """Refuse methods whose packages are missing, before anything is made, paid or trained.

    Raises:
        UserError: Naming them, and what to install.
    """
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
