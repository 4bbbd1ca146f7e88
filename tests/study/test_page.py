"""The numbers of README and docs/study.md stand in the tables that their paragraphs name, as the rows give them."""

import re
from pathlib import Path

import pandas as pd
import pytest

from repair_hf.study.run import run_study

ROOT = Path(__file__).parents[2]
# Tables of several worlds are named after theirs, tables of one are not.
ROWS = [["small", "small-74ad2c2b", "large-74ad2c2b"], ["large"]]
PAGES = {"README.md": "## When repair helps", "docs/study.md": None}  # the section that has results; None is all
# A table of an earlier commit, and rows of their own
UNCHECKED = ("## How the default was chosen", "## Options of the optimizer")
NAME = re.compile(r"`((?:[a-z]+_)+(?:small|large)|blends|paper\.csv)`")
NUMBER = r"[-+]?\d+\.\d+"
INTERVAL = re.compile(rf"({NUMBER})[^\d\[\]]*\[({NUMBER}), ({NUMBER})\]")
WEIGHTS = {0.8, 0.6}  # of the blends; no results


def sections(page: str) -> dict[str, str]:
    """Split a page at its second-level headings."""
    parts = re.split(r"(?m)^(?=## )", (ROOT / page).read_text())
    return {part.partition("\n")[0]: part for part in parts}


def checked(page: str) -> str:
    wanted = PAGES[page]
    parts = sections(page).items()
    return "".join(
        text for head, text in parts if head.startswith(wanted or "") and not head.startswith(UNCHECKED)
    ).replace("−", "-")


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> dict[str, pd.DataFrame]:
    """Every table by its name, as text, and the paper's figures."""
    files = [[str(ROOT / "docs" / "study-rows" / f"{name}.parquet") for name in names] for names in ROWS]
    made = [each for rows in files for each in run_study(output=tmp_path_factory.mktemp("tables"), table=rows)]
    found = {each.name: each.table.set_index(each.table.columns[0], drop=False) for each in made if each.data is None}
    for each in made:
        if each.data is not None:  # each pair of methods
            points = (100 * each.data[["difference", "low", "high"]]).round(1)
            found[each.name] = points.apply(
                lambda row: f"{row.iloc[0]} [{row.iloc[1]}, {row.iloc[2]}]", axis=1
            ).to_frame()
    return found | {"paper.csv": pd.read_csv(ROOT / "src/repair_hf/study/paper.csv", dtype=str)}


def intervals(text: str) -> set[tuple[float, ...]]:
    """Return differences with their bounds. What is lost may be written without its sign."""
    found = {tuple(map(float, match)) for match in INTERVAL.findall(text)}
    return found | {(-mean, -high, -low) for mean, low, high in found}


def numbers(text: str) -> set[float]:
    return {abs(float(number)) for number in re.findall(NUMBER, text)}


@pytest.mark.parametrize("page", PAGES)
def test_each_number_stands_in_a_table_that_its_paragraph_names(page, tables):
    paragraphs = [line for line in checked(page).splitlines() if not line.startswith(("|", "#", "```", "repair-hf"))]
    with_numbers = [line for line in paragraphs if numbers(line) - WEIGHTS]
    assert len(with_numbers) > 4
    for line in with_numbers:
        cells = "\n".join(tables[name].to_csv(sep="\t") for name in NAME.findall(line))
        assert intervals(line) <= intervals(cells), line
        rounded = {round(number, 1) for number in numbers(cells)}
        assert numbers(line) - WEIGHTS <= numbers(cells) | rounded, line


def test_each_table_of_the_page_is_that_of_the_rows(tables):
    """`<!-- table: NAME -->` stands above a table, and what follows the name is added to the names of its lines."""
    found = re.findall(r"<!-- table: (\S+)( [^-]*)? -->\n((?:\|.*\n)+)", checked("docs/study.md"))
    assert len(found) > 8 and len(re.findall(r"(?m)^\| --- \|", checked("docs/study.md"))) == len(found)
    for name, suffix, text in found:
        head, _, *lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()]
        expected = tables[name]
        shared = [column for column in head[1:] if column in expected.columns]
        assert shared and lines, name
        for cells in lines:
            method = cells[0].strip("`")
            row = expected.loc[method if method in expected.index else f"{method},{suffix.rstrip()}"]
            given = dict(zip(head, cells, strict=True))
            assert [given[column] for column in shared] == [row[column].replace("−", "-") for column in shared], method
