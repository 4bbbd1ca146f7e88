"""The rooms of the package: a room imports only from the rooms below it, and no room holds an import cycle."""

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "repair_hf"

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\d) \| `(\w+)/` \| .+ \|$", re.MULTILINE)
ROOMS = {name: int(floor) for floor, name in ROW.findall(PAGE)}  # room -> floor
# Rooms that a lower floor would allow, and that stay closed all the same: between these stages lies a dataset on disk.
CLOSED = {"training": {"mining", "llm", "synthesis"}}
# The one import upwards: a Trainer of transformers pushes itself, so `RepairTrainer.push_to_hub` imports `push_model`.
UPWARDS = ("training.trainer", "hub.push")


def parse_modules() -> dict[str, ast.Module]:
    """Return every module below `repair_hf` by its dotted name; a folder's `__init__` goes by the folder's name."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        trees[name.removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return {name: tree for name, tree in trees.items() if name not in ("__init__", "__main__")}


TREES = parse_modules()


def imported(tree: ast.Module) -> set[str]:
    """Return the modules of ours that a module imports anywhere; `repair_hf` alone is the package's lazy surface."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole.removeprefix("repair_hf.") in TREES else node.module or "")
            names |= {"relative"} if node.level else set()
    ours = {name for name in names if name.split(".")[0] in ("repair_hf", "relative")}
    return {name.removeprefix("repair_hf.") for name in ours}


IMPORTS = {name: imported(tree) for name, tree in TREES.items()}


def room(name: str) -> str:
    return name.split(".")[0]


def faults(name: str) -> Iterator[str]:
    """Yield what is wrong with the imports of a module."""
    here = room(name)
    for other in IMPORTS[name]:
        if other in ("repair_hf", "relative"):  # `from repair_hf import __version__`, or a public name
            if other == "relative" or here != "cli":
                yield f"{name} has a relative import or one of the surface: import from the file, by its full name"
        elif (name, other) != UPWARDS and room(other) != here and ROOMS[room(other)] >= ROOMS[here]:
            yield f"{name} (floor {ROOMS[here]}) imports {other} (floor {ROOMS[room(other)]})"
        elif room(other) in CLOSED.get(here, ()):
            yield f"{name} imports {other}; {here} stays apart from that room"


def test_layers():
    entries = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert entries == {*ROOMS, "__init__.py", "__main__.py", "py.typed"}
    assert [fault for name in TREES for fault in faults(name)] == []
    lower, higher = UPWARDS  # the import stands in a function, so that the lower room loads without the higher one
    top = ast.Module([node for node in TREES[lower].body if isinstance(node, ast.ImportFrom)], [])
    assert higher in IMPORTS[lower] - imported(top)
    for here in ROOMS:  # raises CycleError, which names the cycle
        inside = {name: {other for other in IMPORTS[name] if room(other) == here != other}
                  for name in TREES if room(name) == here}  # fmt: skip
        graphlib.TopologicalSorter(inside).prepare()
    for path in PACKAGE.glob("*/**/__init__.py"):
        statements = ast.parse(path.read_text(encoding="utf-8")).body
        assert all(isinstance(node, ast.ImportFrom | ast.Expr) for node in statements), f"{path}: move it to a file"


WAYS = {  # section of the page -> how a file stands in it, at most how many, where it begins, and its last file
    "one failure": (r"^\d+\. `([\w/]+)\.py`: ", 35, (), "pairs.truth"),
    "one question": (r"^\| `([\w/]+)\.py` \|", 6, ("synthesis.synthesize", "synthesis.loop"), "llm.ledger"),
    "a table": (r"^\| `([\w/]+)\.py` \|", 5, ("pairs.dataset",), "pairs.images"),
    "a training step": (r"^\| `([\w/]+)\.py` \|", 7, ("training.trainer",), "pairs.truth"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_files_of_a_way_are_few_and_each_is_imported_by_an_earlier_one(way):
    pattern, most, start, last = WAYS[way]
    section = PAGE.partition(f"## The way of {way}\n")[2].partition("\n## ")[0]
    names = [name.replace("/", ".") for name in re.findall(pattern, section, re.MULTILINE)]
    assert most / 2 < len(names) == len({*names}) <= most and names[-1] == last
    reached = {*start}.union(*(IMPORTS[name] for name in start))
    for name in names:
        assert name in reached or (room(name) == "cli" and not start), name
        reached |= IMPORTS[name]
    if not start:  # the files of a training are all of the way from the command to the loss
        assert len(names[names.index("cli.train") :]) <= 8
