"""`repair-hf data`: fetch a public dataset or benchmark, check it, and name the commands that read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from repair_hf.cli.subcommands import suggest
from repair_hf.runtime.options import StageOptions

EPILOG = """examples:
  repair-hf data coco --output data/coco --dry-run
  repair-hf data coco --output data/coco

A folder that holds parts already is checked and used. An interrupted download is resumed."""


def flickr30k(stage: StageOptions) -> None:
    """Karpathy's Flickr30K splits; the photographs need a form."""
    _get("flickr30k", stage, _karpathy)


def coco(stage: StageOptions) -> None:
    """Karpathy's COCO splits with the photographs of 2014: 20 GB."""
    _get("coco", stage, _karpathy)


def aro(stage: StageOptions) -> None:
    """VG-Relation and VG-Attribution of ARO."""
    _get("aro", stage, _aro)


def sugarcrepe(stage: StageOptions) -> None:
    """SugarCrepe's seven files, with COCO's photographs of val2017: 0.8 GB."""
    _get("sugarcrepe", stage, _sugarcrepe)


def winoground(stage: StageOptions) -> None:
    """Winoground; needs accepted terms and a login on the Hub."""
    _get("winoground", stage, _winoground)


def _get(name: str, stage: StageOptions, check: Callable[[str, Path], str]) -> None:
    from repair_hf.pairs.public_data import SETS, get
    from repair_hf.runtime.disk import readable

    data, folder = SETS[name], Path(stage.output)
    print(f"Terms: {data.terms}")
    for part in data.parts:
        status = "there" if part.is_there(folder) else "missing" if part.step is None else "needs you"
        size = "size unknown" if part.size is None else readable(part.size)
        print(f"{status:<10}{part.name}: {size}, checked by {part.checked_by}, from {part.source}")
    if stage.dry_run:
        for step in dict.fromkeys(part.step for part in data.parts if part.step and not part.is_there(folder)):
            print(f"To do by hand: {step}.")
        return
    for part in sorted(data.parts, key=lambda part: part.step is not None):  # what a person must do comes last
        get(part, folder)
    print(f"data  {check(name, folder)}   -> {stage.output}")


def _karpathy(name: str, folder: Path) -> str:
    from repair_hf.pairs.benchmarks import check_karpathy

    file, images = folder / f"dataset_{name}.json", folder / "flickr30k-images" if name == "flickr30k" else folder
    sizes = check_karpathy(name, file, images)
    named = ("--pairs", str(file), "--image-folder", str(images), "--benchmark", name)
    suggest("mine", *named, "--model", "openai/clip-vit-base-patch32", "--output", f"runs/{name}/failures")
    return ", ".join(f"{split} {count:,}" for split, count in sizes.items()) + " images"


def _aro(name: str, folder: Path) -> str:
    from repair_hf.evaluation.aro import FILES, load_visual_genome

    return _cases({part: len(load_visual_genome(part, str(folder), [])) for part in FILES}, folder)


def _sugarcrepe(name: str, folder: Path) -> str:
    from repair_hf.evaluation.sugarcrepe import load_sugarcrepe

    return _cases({name: len(load_sugarcrepe(folder, []))}, folder)


def _winoground(name: str, folder: Path) -> str:
    from repair_hf.evaluation.winoground import load_winoground

    return _cases({name: len(load_winoground(str(folder), []))}, folder)


def _cases(counts: dict[str, int], folder: Path) -> str:
    named = [f"{benchmark}={folder}" for benchmark in counts]
    suggest("evaluate", "MODEL", "--pairs", "...", "--compositional", *named, "--output", "runs/compositional")
    return ", ".join(f"{benchmark} {count:,}" for benchmark, count in counts.items()) + " cases"


_OPTIONS = (StageOptions,)
ACTIONS = {each.__name__: (_OPTIONS, each) for each in (flickr30k, coco, aro, sugarcrepe, winoground)}
