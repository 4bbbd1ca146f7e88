"""Which compositional benchmarks are asked for, and where their files are.

In:  the options: `NAME=PATH` of each benchmark, folders of photographs.
Out: the `Cases` of each, ready to be put to an encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from repair_hf.options import UserError, opt

if TYPE_CHECKING:
    from repair_hf.evaluation.cases import Cases

DEFAULTS = {  # Hub id where none is given; None: its files must be named
    "sugarcrepe": None,
    "sugarcrepe++": None,
    "winoground": "facebook/winoground",
    "vg_relation": "gowitheflow/ARO-Visual-Relation",
    "vg_attribution": "gowitheflow/ARO-Visual-Attribution",
}


@dataclass
class CompositionalOptions:
    """Benchmarks in which a caption must beat others that are almost right."""

    _argument_group_name = "compositional"

    compositional: list[str] = opt(
        [],
        "Benchmarks, each NAME or NAME=PATH: sugarcrepe=FOLDER, sugarcrepe++=FOLDER, and winoground, vg_relation and vg_attribution (of "
        "ARO) with a folder or, without a path, from the Hub.",
    )
    compositional_images: list[str] = opt(
        [], "Folders of the photographs that these benchmarks' files name, such as COCO's val2017."
    )
    compositional_subset: bool = opt(
        False, "Evaluate the cases whose photographs are there, under the name NAME_subset."
    )

    def __post_init__(self) -> None:
        self.sources()

    def sources(self) -> dict[str, str]:
        """Benchmark -> path or Hub id.

        Raises:
            UserError: If a benchmark is unknown, or wants a path.
        """
        found: dict[str, str] = {}
        for word in self.compositional:
            name, _, path = word.partition("=")
            if name not in DEFAULTS:
                raise UserError(f"`compositional` takes {', '.join(DEFAULTS)}, got {name!r}.")
            if not (source := path or DEFAULTS[name]):
                raise UserError(f"`compositional` {name} needs the folder of its files: {name}=FOLDER.")
            found[name] = source
        return found


def load_benchmarks(options: CompositionalOptions) -> list[Cases]:
    """Read the benchmarks that are asked for; see their modules for what each wants."""
    from repair_hf.evaluation.aro import load_visual_genome
    from repair_hf.evaluation.sugarcrepe import load_sugarcrepe, load_sugarcrepe_pp
    from repair_hf.evaluation.winoground import load_winoground

    folders, subset, sets = list(map(Path, options.compositional_images)), options.compositional_subset, []
    for name, source in options.sources().items():
        if name == "sugarcrepe":
            sets.append(load_sugarcrepe(Path(source), folders, subset=subset))
        elif name == "sugarcrepe++":
            sets.append(load_sugarcrepe_pp(Path(source), folders, subset=subset))
        elif name == "winoground":
            sets.append(load_winoground(source, folders, subset=subset))
        else:
            sets.append(load_visual_genome(name, source, folders, subset=subset))
    return sets
