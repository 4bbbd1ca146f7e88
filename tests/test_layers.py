"""The rooms of the package: a room imports only from the rooms below it, and no room holds an import cycle."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "repair_hf"

PAGE = ROOT / "docs" / "architecture.md"
ROW = re.compile(r"^\| (\d) \| `(\w+)/` \| .+ \|$", re.MULTILINE)
ROOMS = {name: int(floor) for floor, name in ROW.findall(PAGE.read_text(encoding="utf-8"))}  # room -> floor
# Rooms that a lower floor would allow, and that stay closed all the same: between these stages lies a dataset on disk.
CLOSED = {"training": {"mining", "llm", "synthesis"}}
# The one import upwards: a Trainer of transformers pushes itself, so `RepairTrainer.push_to_hub` imports `push_model`.
UPWARDS = {("training.trainer", "hub.push")}


def modules() -> dict[str, Path]:
    """Return every module below `repair_hf` by its dotted name; a folder's `__init__` goes by the folder's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return {name: path for name, path in found.items() if name not in ("__init__", "__main__")}


def imported(source: str, known: set[str]) -> set[str]:
    """Return the modules of ours that a source imports anywhere; `repair_hf` alone is the package's lazy surface."""
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


def room(name: str) -> str:
    return name.split(".")[0]


def test_the_package_holds_the_rooms_and_nothing_else():
    entries = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert entries == {*ROOMS, "__init__.py", "__main__.py", "py.typed"}


@pytest.mark.parametrize("name", modules())
def test_imports_only_from_lower_floors(name):
    known, here = modules(), room(name)
    for other in imported(known[name].read_text(encoding="utf-8"), set(known)):
        if other == "repair_hf":  # `from repair_hf import __version__`, or a public name where a room is meant
            assert here == "cli", f"{name} imports from the package's surface; import from the file that defines it."
            continue
        if (name, other) in UPWARDS:
            continue
        is_below = room(other) == here or ROOMS[room(other)] < ROOMS[here]
        assert is_below, f"{name} (floor {ROOMS[here]}) imports {other} (floor {ROOMS[room(other)]})."
        assert room(other) not in CLOSED.get(here, ()), f"{name} imports {other}; {here} stays apart from that room."


def test_an_import_upwards_stands_in_a_function():
    """So the lower room loads without the higher one."""
    known = modules()
    for name, other in UPWARDS:
        tree = ast.parse(known[name].read_text(encoding="utf-8"))
        top = "\n".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.ImportFrom))
        assert other in imported(ast.unparse(tree), set(known)) and other not in imported(top, set(known))


@pytest.mark.parametrize("here", ROOMS)
def test_no_cycle_inside_a_room(here):
    known = modules()
    inside = {
        name: {
            other for other in imported(path.read_text(encoding="utf-8"), set(known)) if room(other) == here != other
        }
        for name, path in known.items()
        if room(name) == here
    }
    order = list(graphlib.TopologicalSorter(inside).static_order())  # raises CycleError, which names the cycle
    assert set(inside) <= {*order}


def test_an_init_holds_a_docstring_and_re_exports_only():
    for path in sorted(PACKAGE.glob("*/**/__init__.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert is_docstring or isinstance(node, ast.ImportFrom), f"{path}, line {node.lineno}: move it to a file."


def test_architecture_names_at_most_35_files_on_the_way_of_a_failure_each_imported_by_an_earlier_one():
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"^\d+\. `([\w/]+\.py)`: ", text, re.MULTILINE)
    assert 25 < len(named) == len(set(named)) <= 35
    files, reached = modules(), set()
    to_the_loss = named[named.index("cli/train.py") :]
    assert len(to_the_loss) <= 8 and {"training/trainer.py", "training/step.py"} <= set(to_the_loss)
    for name in (each.removesuffix(".py").replace("/", ".") for each in named):
        assert name in files and (room(name) == "cli" or name in reached), name
        reached |= imported(files[name].read_text(encoding="utf-8"), set(files))


def test_the_way_of_a_question_is_at_most_six_files_each_imported_by_an_earlier_one():
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition("## The way of one question")[2].partition("\n## ")[0]
    named = [name.replace("/", ".") for name in re.findall(r"^\| `([\w/]+)\.py` \|", section, re.MULTILINE)]
    assert len(named) <= 6 and named[0] == "synthesis.loop" and named[-1] == "llm.ledger"
    files = modules()
    reached = imported(files["synthesis.synthesize"].read_text(encoding="utf-8"), set(files))
    reached.add("synthesis.synthesize")
    for name in named:
        assert name in reached, name
        reached |= imported(files[name].read_text(encoding="utf-8"), set(files))


@pytest.mark.parametrize(
    ("of", "first", "last", "most"),
    [("a table", "pairs.dataset", "pairs.images", 5), ("a training step", "training.trainer", "pairs.truth", 7)],
)
def test_a_way_of_few_files_is_in_the_order_of_their_imports(of, first, last, most):
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition(f"## The way of {of}\n")[2].partition("\n## ")[0]
    named = [name.replace("/", ".") for name in re.findall(r"^\| `([\w/]+)\.py` \|", section, re.MULTILINE)]
    assert 4 < len(named) == len({*named}) <= most and (named[0], named[-1]) == (first, last)
    files, reached = modules(), {first}
    for name in named:
        assert name in reached, name
        reached |= imported(files[name].read_text(encoding="utf-8"), set(files))
