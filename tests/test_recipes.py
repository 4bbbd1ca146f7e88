"""Every recipe is parsed by the command that it is named after."""

import importlib
from pathlib import Path

import pytest

from repair_hf.cli import COMMANDS
from repair_hf.options import parse

RECIPES = Path(__file__).parents[1] / "recipes"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipe_parses(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(COMMANDS[path.stem][0])
    options = parse(module.OPTIONS, ["--config", str(path)], f"repair-hf {path.stem}")
    assert len(options) == len(module.OPTIONS)


def test_every_recipe_folder_says_what_it_yields():
    for folder in {path.parent for path in RECIPES.glob("*/*.yaml")}:
        assert (folder / "README.md").is_file(), f"{folder} has no README.md."
