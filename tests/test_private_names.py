"""Our code uses no private name of another library, and changes no class or function of one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "repair_hf"
FILES = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
STANDARD = {"_replace", "_exit", "_get_help_string", "_format_action_invocation"}  # of the standard library
# What is left: `datasets` has no public name for the rows of a selection, whose images would be copied.
PRIVATE = {"pairs/sources.py: _indices"}
# Variables of modules that one may set.
SETTINGS = {"litellm.suppress_debug_info", "constants.HF_HUB_OFFLINE", "datasets.config.HF_HUB_OFFLINE"}


def own_names() -> set[str]:
    """Names with an underscore that our own code defines."""
    pattern = re.compile(r"(?:def|class) (_\w+)|self\.(_\w+)|^ *(_\w+)(?:: .*)?(?: =|$)", re.MULTILINE)
    return {name for text in FILES.values() for names in pattern.findall(text) for name in names if name}


def imported(tree: ast.Module) -> set[str]:
    """Names in a file that come from other libraries."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (
            isinstance(node, ast.ImportFrom) and "repair_hf" not in (node.module or "")
        ):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def test_no_private_name_of_another_library_is_used():
    ours, used = own_names() | STANDARD, set()
    for file, text in FILES.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr) and node.attr not in ours:
                used.add(f"{file}: {node.attr}")
            if isinstance(node, ast.ImportFrom) and "repair_hf" not in (node.module or ""):
                used |= {f"{file}: {alias.name}" for alias in node.names if alias.name.startswith("_")}
    assert used == PRIVATE


def test_nothing_of_another_library_is_replaced():
    replaced = set()
    for text in FILES.values():
        tree = ast.parse(text)
        foreign = imported(tree) - {"self"}
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else ()
            for target in targets:
                root = target
                while isinstance(root, ast.Attribute):
                    root = root.value
                if isinstance(target, ast.Attribute) and isinstance(root, ast.Name) and root.id in foreign:
                    replaced.add(ast.unparse(target))
    assert replaced == SETTINGS
