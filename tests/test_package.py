"""The package builds, the index accepts its description, and it works without a clone; the documentation builds."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pins import pinned

from repair_hf import __version__
from repair_hf.cli.main import main

ROOT = Path(__file__).parents[1]
PARTS = "hub_cards metrics recipes src LICENSE README.md pyproject.toml setup.py".split()


def run(*words: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(words, cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("build")
    for name in PARTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(
            ROOT / name,
            folder / name,
            **({"ignore": shutil.ignore_patterns("*.egg-info")} if copy is not shutil.copy else {}),
        )
    run(sys.executable, "-m", "build", "--no-isolation", cwd=folder)
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, (folder / "dist").iterdir()), cwd=folder)
    return next((folder / "dist").glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_works_without_a_clone(wheel, tmp_path):
    """It holds the recipes and the metric, and no file that its description links to is missing."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    installed = tmp_path / "installed" / "repair_hf"
    for path in [*(ROOT / "recipes").glob("*/*.yaml"), *(ROOT / "metrics").glob("*/*.py")]:
        assert (installed / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    description = next((tmp_path / "installed").glob("*.dist-info/METADATA")).read_text(encoding="utf-8")
    assert "# repair_hf" in description and not re.findall(r"\]\((?!https?:|#)[^)]*\)", description)
    desk, where = tmp_path / "desk", {"cwd": tmp_path / "desk", "PYTHONPATH": str(tmp_path / "installed")}
    desk.mkdir()
    ours = (sys.executable, "-m", "repair_hf")
    with (installed / "recipes" / "toy" / "world.yaml").open("a") as recipe:
        recipe.write("train: 130\nvalidation: 4\ntest: 20\n")
    assert "$ repair-hf mine --pairs" in run(*ours, "run", "toy", "--dry-run", **where)
    run(*ours, "run", "toy", **where)
    assert list((desk / "runs").rglob("model.safetensors"))


def test_a_folder_of_its_name_does_not_hide_the_package(tmp_path):
    """Such as a clone of this repository, seen from the folder above it."""
    (tmp_path / "repair_hf").mkdir()
    assert run(sys.executable, "-c", "import repair_hf; print(repair_hf.__version__)", cwd=tmp_path) == "0.1.0\n"


def test_citation_changelog_and_workflow_are_those_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert citation["preferred-citation"]["title"] in (ROOT / "README.md").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {__version__} (unreleased)\n" in changes and len(changes.splitlines()) <= 60
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert ".ci/run" in [step.get("run") for step in workflow["jobs"]["test"]["steps"]]


@pytest.mark.parametrize(("slow", "tests"), [("", "test"), ("yes", "test-slow")])
def test_continuous_integration_runs_the_slow_tests_if_it_is_asked_to(slow, tests, tmp_path):
    (tmp_path / "make").write_text('#!/bin/sh\necho "$1"\n')
    (tmp_path / "make").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert run(str(ROOT / ".ci" / "run"), cwd=tmp_path, PATH=path, CI_SLOW=slow).split() == ["quality", tests]


def test_floors_are_the_oldest_releases_and_bounds_admit_the_newest_that_were_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras, oldest, newest = (
        project["optional-dependencies"],
        pinned("constraints-oldest.txt"),
        pinned("constraints.txt"),
    )
    tested = [
        each for extra in ("bench", "dev", "docs", "peft", "sentence-transformers", "study") for each in extras[extra]
    ]
    wanted = [each for each in map(Requirement, [*project["dependencies"], *tested]) if each.name != "repair-hf"]
    names = [canonicalize_name(each.name) for each in wanted]
    floors = [each.version for some in wanted for each in some.specifier if each.operator == ">="]
    assert list(map(Version, floors)) == [Version(oldest[name]) for name in names]
    assert [str(each) for each, name in zip(wanted, names, strict=True) if newest[name] not in each.specifier] == []


def test_links_of_the_description_are_absolute_or_gone():
    description = runpy.run_path(str(ROOT / "setup.py"))["description"]
    text = "![a picture](docs/x.png) [a page](docs/x.md#part) [a site](https://x.org) [here](#part)"
    assert description(text, None) == " a page [a site](https://x.org) [here](#part)"
    absolute = description(text, "https://h.org/me/r/")
    assert (
        "![a picture](https://h.org/me/r/raw/main/docs/x.png) [a page](https://h.org/me/r/blob/main/docs/x.md#p"
        in absolute
    )
    assert absolute.endswith(" [a site](https://x.org) [here](#part)")


@pytest.mark.parametrize("named", ["toy", "recipes/toy", str(ROOT / "recipes" / "toy")])
def test_a_recipe_is_found_by_path_or_name(named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", named, "--dry-run"]) == 0
    assert "$ repair-hf mine --pairs runs/toy/world" in capsys.readouterr().out
    assert main(["world", "build", "--config", f"{named}/world.yaml", "--train", "0"]) == 2
    assert "train" in capsys.readouterr().err


def test_a_recipe_of_ones_own_comes_first_and_a_missing_one_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "recipes" / "toy", "toy")
    Path("toy/mine.yaml").write_text(yaml.safe_dump({"model": "mine", "pairs": "p", "output": "runs/toy/o"}))
    assert main(["run", "toy", "--dry-run"]) == 0
    assert "--model mine" in capsys.readouterr().out
    assert main(["run", "tyo", "--dry-run"]) == 2
    assert "tyo lacks mine.yaml" in capsys.readouterr().err


@pytest.mark.slow
def test_the_documentation_builds_without_a_warning(tmp_path):
    build = Path(sys.executable).with_name("sphinx-build")
    run(str(build), "-q", "-W", "--keep-going", "docs", str(tmp_path), cwd=ROOT)
    pages = {path.stem for path in tmp_path.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= pages
