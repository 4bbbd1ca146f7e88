"""The file of results: what is kept, and that processes add to it side by side."""

import pytest

from repair_hf.runtime.options import UserError
from repair_hf.study.results import BASE, Cell, Results
from tests.study.made_rows import row

CELL = Cell("tiny", "repair", "test", 1, 1e-4, 0.2, "edits", "both", 0.5, "samples=8")


def test_two_readers_add_rows_to_one_file_and_read_them_as_they_were_written(tmp_path):
    first, second = (Results(tmp_path / "deep" / "results.parquet") for _ in range(2))
    written, base = row(CELL, 0.5), row(Cell("tiny", BASE, "test"), 0.2, near_i2t=None, near_t2i=None)
    first.add(row(CELL, 0.9))
    second.add(base)
    first.add(written)  # in place of the old one
    second.read()
    assert first.rows.keys() == second.rows.keys() == {CELL, base.cell}
    one = second.rows[CELL]
    assert one.cell == CELL and one.values == written.values | dict.fromkeys(one.values.keys() - written.values)
    assert one.metrics == written.metrics and "i2t_truth" in one.metrics
    assert "i2t_truth" not in second.rows[base.cell].metrics


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "results.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match="cannot be read as the results of a study"):
        Results(tmp_path / "results.parquet")
