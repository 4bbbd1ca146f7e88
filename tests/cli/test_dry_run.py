"""`repair-hf synthesize --dry-run`: the price, what filters save, and models that are switched off."""

import re

import pytest

from repair_hf.cli.main import main
from repair_hf.synthesis import estimate


def synthesize(*words: str) -> int:
    return main(["synthesize", *words])


def test_a_dry_run_prints_the_price_and_touches_nothing(inputs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "none")
    words = [*inputs, "--llm", "gemini/gemini-2.5-flash", "--editor", "gemini/gemini-2.5-flash-image"]
    words += ["--candidates", "4"]
    assert synthesize(*words, "--output", str(tmp_path / "new"), "--dry-run") == 0
    shown = capsys.readouterr().out
    rows = {tuple(row[:2]): row for row in map(str.split, shown.splitlines()) if len(row) in (7, 8)}
    assert rows["edit", "T2I"][2:5] == ["4", "0", "16"] and rows["edit", "T2I"][7] == "$0.62"
    assert rows["edit", "I2T"][2:5] == ["16", "64", "0"]
    assert rows["all", "20"][1:4] == ["20", "124", "16"]
    assert synthesize(*words, "--no-audited", "--output", str(tmp_path / "new"), "--dry-run") == 0
    shown = capsys.readouterr().out
    rows = {tuple(row[:2]): row for row in map(str.split, shown.splitlines()) if len(row) in (7, 8)}
    assert rows["all", "20"][1:4] == ["20", "104", "16"] and "none is audited" in shown
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("llm", "editor", "price"),
    [
        ("gemini/gemini-3.5-flash-lite", "world", r"\$(0\.\d\d): 108 answers by gemini/gemini-3.5-flash-lite \$\1, "
         r"12 images by world \$0.00 and the time of your machine"),
        ("world/oracle", "gemini/gemini-2.5-flash-image", r"\$0.47: 108 answers by world/oracle \$0.00 and the time "
         r"of your machine, 12 images by gemini/gemini-2.5-flash-image \$0.47"),
        ("openai/mine", "world", r"unknown: 108 answers by openai/mine unknown, 12 images by world \$0.00 and .*"),
        ("openai/mine --llm-base-url http://127.0.0.1:1", "openai/mine --editor-base-url http://127.0.0.1:1",
         r"\$0.00: 108 answers by openai/mine \$0.00 and the time of your machine, 12 images by openai/mine .*"),
        ("openai/mine --price 1 2", "openai/mine --editor-price 1 2", r"\$(0\.\d\d): 108 answers by openai/mine .*, "
         r"12 images by openai/mine \$0.03"),
    ],
)  # fmt: skip
def test_a_dry_run_ends_with_the_price_of_llm_and_images(llm, editor, price, inputs, tmp_path, capsys, monkeypatch):
    for name in ("GEMINI_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "none")
    words = f"--llm {llm} --editor {editor} --output {tmp_path / 'new'} --dry-run".split()
    assert synthesize(*inputs, *words) == 0
    assert re.fullmatch(rf"Whole price: {price}\.", capsys.readouterr().out.splitlines()[-1])


def test_filters_save_dollars_and_a_limit_takes_some_of_each_direction(inputs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "none")
    words = [*inputs, "--llm", "gemini/gemini-2.5-flash", "--editor", "gemini/gemini-2.5-flash-image"]
    words += ["--output", str(tmp_path / "new"), "--dry-run"]
    totals = []
    rehearsals, whole = [], estimate.rehearse
    monkeypatch.setattr(estimate, "rehearse", lambda *args: rehearsals.append(1) or whole(*args))
    for more in (["--limit", "100"], ["--limit", "3"]):
        assert synthesize(*words, *more) == 0
        shown = capsys.readouterr().out
        totals.append(next(line.split() for line in shown.splitlines() if line.split()[:1] == ["all"]))
    assert (totals[0][1], totals[1][1]) == ("20", "6")
    in_full, kept = (float(row[-1].removeprefix("$")) for row in totals)
    saved, of = (float(word.strip("$;")) for word in shown.split("Saved: ")[1].split()[:3:2])
    assert of == pytest.approx(in_full, abs=1e-3) and saved == pytest.approx(in_full - kept, abs=1e-3)
    assert "6 of 20 failures: `limit` leaves out 14" in shown and len(rehearsals) == 2  # one for each command
    assert synthesize(*words, "--max-score", "-1") == 2
    assert "No failure of 20 is left: `--max-score` leaves out 20." in capsys.readouterr().err
