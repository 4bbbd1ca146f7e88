import shutil

from repair_hf.analysis.grids import draw_grids
from repair_hf.cli import main as cli


def test_a_page_in_the_folder_of_the_records_by_default(illustrated_folder, tmp_path, capsys):
    folder = shutil.copytree(illustrated_folder, tmp_path / "records")
    assert cli.main(["show", str(folder), "--direction", "i2t", "--n", "2"]) == 0
    assert f"show   2 of 12 records   -> {folder / 'sheet.html'}" in capsys.readouterr().out
    page = (folder / "sheet.html").read_text()
    assert page.count('<article class="card">') == 2 and page.count('<img src="data:') == 2


def test_what_was_dropped_with_its_pictures(illustrated_folder, pairs_folder, tmp_path, capsys):
    page = tmp_path / "dropped.html"
    words = ["show", str(illustrated_folder), "--dropped", "gt_invalid", "--output", str(page)]
    assert cli.main(words) == 0
    assert "--pairs shows them" in capsys.readouterr().out and "<img" not in page.read_text()
    assert cli.main([*words, "--pairs", str(pairs_folder)]) == 0
    shown = capsys.readouterr().out
    assert "show   1 of 1 failures dropped as gt_invalid" in shown and "--pairs shows them" not in shown
    assert page.read_text().count('<img src="data:') == 2


def test_the_training_grid_of_an_anchor(illustrated, illustrated_folder, pairs_folder, tmp_path, capsys):
    """An anchor's hard negatives are what its records confuse it with; edits and annotations that fit them match."""
    pairs, records = illustrated
    confused = {(row["q_id"], row["fp_id"]) for row in records.to_list()}
    page = tmp_path / "grids.html"
    words = ["show", str(illustrated_folder), "--pairs", str(pairs_folder), "--output", str(page), "--anchor"]
    assert cli.main([*words, "any", "--n", "2"]) == 0
    assert "show   2 grids; " in capsys.readouterr().out and page.read_text().count('<table class="grid">') == 2
    sample = draw_grids(records, pairs, n=99, anchor="any")
    assert len(sample.grids) == sample.available > 2
    for grid in sample.grids:
        image, caption = grid.images[0].origin, grid.captions[0].origin
        assert {(image, grid.captions[1].origin), (grid.captions[1].origin, image)} & confused
        assert {(caption, grid.images[2].origin), (grid.images[2].origin, caption)} & confused
        assert [grid.cells[place][place] for place in range(3)] == ["match"] * 3
        assert draw_grids(records, pairs, n=1, anchor=caption).grids[0].images[0].origin == image
    assert {"edit"} < {item.origin for grid in sample.grids for item in (*grid.images, *grid.captions)}
    assert cli.main([*words, "nobody"]) == 2
    assert "`anchor` nobody: no caption has this id" in capsys.readouterr().err
