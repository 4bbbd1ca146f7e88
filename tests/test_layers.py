"""Each file imports only from files below it, at the top and inside functions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "repair_hf"

# From the ground up. A name ending in `.*` stands for every file of that folder; they may not import one another.
LAYERS = """
    arguments options toyworld.shipped hyperparameters steps reach runs parsing processes storage pairs.problems pairs.images pairs.sources pairs.annotations pairs.benchmarks pairs preprocessing pixels encoder export
    scores seeking screening rankings one_pass retrieval approximate mining seeding
    records.columns records.answers records.joining records
    llm.journal llm.loading llm.tokens llm.cost llm.failures llm.provider llm.local llm.retries llm.answers llm.limits
    llm.budget llm.batch_api llm.batches llm.sending llm.client rounds
    synthesis.prompts synthesis.sources synthesis.audit synthesis.instruct synthesis.captions synthesis.pairing
    synthesis.images synthesis.hosted synthesis.candidates synthesis.inheriting synthesis.selection synthesis.stream synthesis.labelling
    synthesis.rows synthesis.pipeline synthesis.rehearsal
    evaluation.intervals evaluation.retrieval evaluation.ranks evaluation.comparison evaluation.provenance
    evaluation.cases evaluation.judging evaluation.hub evaluation.relations evaluation.aro evaluation.sugarcrepe evaluation.winoground evaluation.order
    sampling grids collation losses gathering objectives encoding config checkpoints callbacks training
    analysis.differences analysis.drawing analysis.html analysis.choosing analysis.tables analysis.measurements analysis.figures analysis.gallery analysis.costs
    analysis.material analysis.charts analysis.findings analysis.funnel analysis.errors analysis.distributions analysis.repairs
    analysis.agreement analysis.people analysis.report analysis.live
    analysis.lettering analysis.cases analysis.margins analysis.grid_figures
    people.page people.sampling people.space people
    markup cards.rendering cards.of_records cards.of_models cards parcels hub
    toyworld.scenes toyworld.captions toyworld.instructions toyworld.variations toyworld.parsing toyworld.renderer toyworld.corpus toyworld.oracle toyworld.batch_api
    toyworld.server
    toyworld.editor toyworld.base toyworld.truth toyworld.compositional evaluation.compositional
    models
    baselines.workshop baselines.samples baselines.choosing baselines.losses baselines.method
    baselines.vanilla baselines.negclip baselines.sugarcrepe baselines.laclip baselines.simclr baselines.stablerep baselines.alia
    baselines.coco_cf baselines.tripletclip baselines.la_sc baselines.cf_al_la baselines.repair baselines.ablations baselines.beyond
    baselines study.options study.turns study.setting study.variants study.products study.estimates study.cells study.tuning study.running study.effort study.tables study.plots study.report study.across study
    architectures measuring
    bench.*
    commands.*
    cli
""".split()


def modules() -> dict[str, Path]:
    """Dotted name below `repair_hf` -> file; a folder's `__init__` goes by the folder's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return {name: path for name, path in found.items() if name not in ("__init__", "__main__")}


def layer(name: str) -> int:
    """The place of a module; a folder's `__init__` stands with the highest of its files."""
    names = (name, f"{name.rpartition('.')[0]}.*")
    places = [place for place, entry in enumerate(LAYERS) if entry in names or entry.startswith(f"{name}.")]
    assert places, f"{name} has no place in LAYERS; put it above everything that it imports."
    return max(places)


def imported(source: str, known: set[str]) -> set[str]:
    """Modules of ours that a source imports anywhere; `repair_hf` alone is the package's lazy surface."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; write it in full."
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole.removeprefix("repair_hf.") in known else node.module)
    ours = {name for name in found if name.split(".")[0] == "repair_hf"}
    return {name.removeprefix("repair_hf.") for name in ours}


@pytest.mark.parametrize("name", modules())
def test_imports_only_from_below(name):
    known, place = modules(), layer(name)
    for other in imported(known[name].read_text(encoding="utf-8"), set(known)):
        if other == "repair_hf":  # `from repair_hf import __version__`, or a public name where a layer is meant
            assert name == "cli", f"{name} imports from the package's surface; import from the file that defines it."
            continue
        is_own_file = other.startswith(f"{name}.")  # a folder's `__init__` may import what lies in it
        assert layer(other) < place or is_own_file, f"{name} imports {other}, which does not lie below it."


def test_finds_every_way_to_import():
    source = """
import repair_hf.pairs as pairs
from repair_hf import runs, Pairs
from repair_hf.llm import cost
from json import loads
def late():
    from repair_hf.training import train
"""
    known = {"pairs", "runs", "llm.cost", "training"}
    assert imported(source, known) == {"pairs", "runs", "repair_hf", "llm.cost", "training"}
