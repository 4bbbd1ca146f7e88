"""Options and loading of the compositional benchmarks: from files, from the Hub, or made from the evaluated pairs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from repair_hf.evaluation.words import MODEL
from repair_hf.runtime.options import SEEDS, PairsOptions, UserError, opt

if TYPE_CHECKING:
    from repair_hf.evaluation.cases import Cases
    from repair_hf.pairs.dataset import Pairs

DEFAULTS = {  # source without a path; None: a path is needed
    "world": "",
    "order": MODEL,
    "sugarcrepe": None,
    "sugarcrepe++": None,
    "winoground": "facebook/winoground",
    "vg_relation": "gowitheflow/ARO-Visual-Relation",
    "vg_attribution": "gowitheflow/ARO-Visual-Attribution",
}
ORDER = {"coco": "coco", "coco30k": "coco", "flickr30k": "flickr30k"}  # the test split of COCO30K is that of COCO


@dataclass
class CompositionalOptions:
    """Benchmarks in which a caption must beat others that are almost right."""

    _argument_group_name = "compositional"

    compositional: list[str] = opt(
        [],
        "Benchmarks: sugarcrepe=FOLDER, sugarcrepe++=FOLDER, winoground, vg_relation, vg_attribution, order "
        "(or order=PARSER), world. See docs/evaluation.md.",
        main=True,
    )
    compositional_images: list[str] = opt([], "Folders of the benchmarks' photographs, such as COCO's val2017.")
    compositional_subset: bool = opt(
        False, "Evaluate only cases whose photographs are found, under the name NAME_subset."
    )
    order_seeds: list[int] = opt([1], "Seeds of the shuffled captions of `order`; ARO's authors average over five.")

    def __post_init__(self) -> None:
        named, seeds = self.sources(), self.order_seeds
        if not seeds or len(set(seeds)) < len(seeds) or not 0 <= min(seeds) <= max(seeds) < SEEDS:
            raise UserError(f"`order_seeds` takes one or more different numbers from 0 to {SEEDS - 1}, got {seeds}.")
        if "order" not in named and seeds != [1]:
            raise UserError(f"`order_seeds` {seeds} is for `compositional` order; give it, or leave them out.")
        if named.keys() <= {"order", "world"} and (self.compositional_images or self.compositional_subset):
            raise UserError(
                "`compositional_images` and `compositional_subset` are for benchmarks of photographs, such as "
                "sugarcrepe=FOLDER; add one to `compositional`, or leave them out."
            )

    def sources(self) -> dict[str, str]:
        """Return the path or Hub id of each benchmark.

        Raises:
            UserError: If a benchmark is unknown or named twice, or lacks a path, or takes none.
        """
        found: dict[str, str] = {}
        for word in self.compositional:
            name, _, path = word.partition("=")
            if name not in DEFAULTS:
                raise UserError(f"`compositional` takes {', '.join(DEFAULTS)}, got {name!r}.")
            if name == "world" and path:
                raise UserError(f"`compositional` world is made from the pairs and takes no path, got {path}.")
            if (source := path or DEFAULTS[name]) is None:
                raise UserError(f"`compositional` {name} needs the folder of its files: {name}=FOLDER.")
            if name in found:
                raise UserError(f"`compositional` names {name} twice; evaluate each by itself.")
            found[name] = source
        return found


def load_benchmarks(options: CompositionalOptions, pairs: Pairs, pairs_options: PairsOptions) -> list[Cases]:
    """Load or make the benchmarks that the options name.

    `pairs_options` belong to the pairs: only a benchmark's test split gives an order test of its name.
    """
    from repair_hf.evaluation.aro import load_visual_genome
    from repair_hf.evaluation.sugarcrepe import load_sugarcrepe
    from repair_hf.evaluation.toyworld import load_world
    from repair_hf.evaluation.winoground import load_winoground

    folders, subset, sets = list(map(Path, options.compositional_images)), options.compositional_subset, []
    for name, source in options.sources().items():
        if name == "world":
            sets.append(load_world(pairs))
        elif name == "order":
            sets.append(_order(source, options, pairs, pairs_options))
        elif name in ("sugarcrepe", "sugarcrepe++"):
            sets.append(load_sugarcrepe(Path(source), folders, subset=subset, is_pp=name == "sugarcrepe++"))
        elif name == "winoground":
            sets.append(load_winoground(source, folders, subset=subset))
        else:
            sets.append(load_visual_genome(name, source, folders, subset=subset))
    return sets


def _order(parser: str, options: CompositionalOptions, pairs: Pairs, pairs_options: PairsOptions) -> Cases:
    from repair_hf.evaluation.order import load_order
    from repair_hf.evaluation.words import load_parser, load_tokenizer
    from repair_hf.toyworld.parsing import build_parser

    benchmark = "order"
    if pairs_options.benchmark is not None and pairs_options.split == "test":
        benchmark = f"{ORDER[pairs_options.benchmark]}_order"
    tokenize = load_tokenizer()
    nlp = build_parser() if parser == "world" else load_parser(parser)
    return load_order(pairs, nlp, tokenize, benchmark=benchmark, seeds=options.order_seeds)
