import shutil

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
