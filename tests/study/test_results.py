"""The file of results: what is kept, who may read it, and that processes add to it side by side."""

import numpy as np
import pytest

from repair_hf.runtime.options import UserError
from repair_hf.study.results import BASE, Cell, Results, Settings
from tests.study.made_rows import row

CELL = Cell("tiny", "repair", "test", 1, Settings(1e-4, 0.2, "edits", "both", 0.5, "samples=8"))


def test_a_row_is_read_as_it_was_written(tmp_path):
    file = tmp_path / "deep" / "results.parquet"
    written, base = row(CELL, 0.5), row(Cell("tiny", BASE, "test"), 0.2, near_i2t=None, near_t2i=None)
    written.ranks["i2t"][0] = 100_000
    Results(file).add(written.values | {"i2t_ranks": np.minimum(written.ranks["i2t"], 2**16 - 1).tolist()})
    Results(file).add(base.values)
    found = Results(file)
    one = found.find(CELL, options="x", content="y")
    assert one.cell == CELL and len(found) == 2 and one["commit"] == "z"
    assert one.ranks["i2t"].tolist()[1:] == written.ranks["i2t"].tolist()[1:] and one.ranks["i2t"][0] == 65_535
    assert one.near.keys() == written.near.keys() and one.metrics["t2i_MRR"] == written.metrics["t2i_MRR"]
    assert found.find(Cell("tiny", BASE, "test"), options="x").near == {}
    assert found.find(Cell("tiny", BASE, "validation"), options="x") is None


def test_two_readers_add_rows_to_one_file(tmp_path):
    first, second = (Results(tmp_path / "results.parquet") for _ in range(2))
    for number, results in enumerate((first, second, first)):
        results.add(row(Cell("tiny", "vanilla", "test", number)).values)
    second.read()
    assert len(first) == len(second) == 3
    first.add(row(Cell("tiny", "vanilla", "test", 0), 0.9).values)  # in place of the old one
    assert len(Results(first.file)) == 3


@pytest.mark.parametrize(
    ("wanted", "says"),
    [({"options": "o"}, "with other options"), ({"options": "x", "content": "c"}, "from other data")],
)
def test_rows_of_other_options_or_data_are_errors(wanted, says, tmp_path):
    results = Results(tmp_path / "results.parquet")
    results.add(row(CELL).values)
    with pytest.raises(UserError, match=f"`repair` on `tiny` made {says}"):
        results.find(CELL, **wanted)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "results.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match="cannot be read as the results of a study"):
        Results(tmp_path / "results.parquet")
