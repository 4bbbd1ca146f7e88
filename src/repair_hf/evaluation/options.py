"""The options of `repair-hf evaluate`. Nothing here loads torch."""

from __future__ import annotations

from dataclasses import dataclass

from repair_hf.runtime.options import Bounded, EmbeddingOptions, UserError, need, opt

DEFAULTS = {  # source without a path; None: a path is needed
    "order": None,
    "sugarcrepe": None,
    "sugarcrepe_pp": None,
    "winoground": "facebook/winoground",
    "vg_relation": "gowitheflow/ARO-Visual-Relation",
    "vg_attribution": "gowitheflow/ARO-Visual-Attribution",
}


@dataclass(kw_only=True)
class EvaluateOptions(EmbeddingOptions):
    """Which retrievers are measured."""

    model: list[str] = need(
        "Retrievers: Hub id or folder of a dual encoder or SentenceTransformer, or world/base. Several are compared "
        "with the first."
    )
    contrast: str | None = opt(
        None,
        "Contrast set of `repair-hf contrast`, folder or Hub id: are true captions nearer than changed ones?",
        main=True,
    )
    also: list[str] = opt(
        [],
        "Further pairs, folders or Hub ids, to rank by themselves: what does a tuned model forget?",
        main=True,
    )
    also_split: str = opt("test", "Split of the further pairs of --also; `all` uses every split.")
    blends: list[float] = opt(
        [],
        "Weights from 0 (the base) to 1 (the tuned model): measure blends of the first model with each other one.",
        least=0,
        most=1,
    )
    blend_split: str | None = opt(
        None, "Split of the pairs on which each model's best blend is chosen, such as validation. Default: none is."
    )
    resamples: int = opt(2000, "Bootstrap resamples of the images, for the 95% intervals.", main=True, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blends and (len(self.model) < 2 or len(set(self.blends)) < len(self.blends)):
            raise UserError(
                "`blends` takes different weights, for two models or more: the base and those that were tuned from "
                f"it; got {self.blends} for {len(self.model)} models."
            )
        if self.blend_split is not None and not self.blends:
            raise UserError(f"`blend_split` {self.blend_split} chooses among `blends`, and there are none: give both.")


@dataclass
class CompositionalOptions(Bounded):
    """Benchmarks in which a caption must beat others that are almost right."""

    _argument_group_name = "compositional"

    compositional: list[str] = opt(
        [],
        "Benchmarks: sugarcrepe=FOLDER, sugarcrepe_pp=FOLDER, winoground, vg_relation, vg_attribution, order=FILE.",
        main=True,
    )
    compositional_images: list[str] = opt([], "Folders of the benchmarks' photographs, such as COCO's val2017.")

    def __post_init__(self) -> None:
        super().__post_init__()
        has_photographs = bool({"sugarcrepe", "sugarcrepe_pp"} & self.sources().keys())
        if self.compositional_images and not has_photographs:
            raise UserError(
                "`compositional_images` are the photographs of sugarcrepe=FOLDER or sugarcrepe_pp=FOLDER; add one to "
                "`compositional`, or leave them out."
            )

    def sources(self) -> dict[str, str]:
        """Return the path or Hub id of each benchmark.

        Raises:
            UserError: If a benchmark is unknown or named twice, or lacks a path.
        """
        sources: dict[str, str] = {}
        for word in self.compositional:
            name, _, path = word.partition("=")
            if name not in DEFAULTS:
                raise UserError(f"`compositional` takes {', '.join(DEFAULTS)}, got {name!r}.")
            source = path or DEFAULTS[name]
            if source is None:
                kind = "file of benchmarks/aro_order.py: order=FILE" if name == "order" else f"folder: {name}=FOLDER"
                raise UserError(f"`compositional` {name} needs a {kind}.")
            if name in sources:
                raise UserError(f"`compositional` names {name} twice; evaluate each by itself.")
            sources[name] = source
        return sources
