import random

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.font_manager import fontManager
from PIL import Image

from repair_hf.analysis import fonts
from repair_hf.analysis.charts import DPI, save
from repair_hf.analysis.fonts import OWN
from repair_hf.analysis.sheet import open_sheet
from repair_hf.analysis.typesetting import compare, fit_lines, line_width, marked_words, set_lines, words

TEXT = "Two small dogs\nchase a  ball that rolls down the hill behind the old farmhouse in the evening sun"


def widest(lines, size: float) -> float:
    return max(line_width(line, size) for line in lines)


@pytest.mark.parametrize("text", [TEXT, "see https://example.org/a/long/address", "a" * 300])
@pytest.mark.parametrize("width", [90, 200, 5000])
def test_lines_hold_every_word_and_stay_in_the_box(text, width):
    lines = set_lines(words(text), 18, width, 99)
    assert "".join(word.text for line in lines for word in line) == "".join(text.split())
    assert widest(lines, 18) <= width


@pytest.mark.parametrize("text", [TEXT, "a" * 300])
def test_what_does_not_fit_ends_in_an_ellipsis(text):
    lines = set_lines(words(text), 18, 120, 2)
    assert len(lines) == 2 and widest(lines, 18) <= 120 and lines[-1][-1].text == "…"
    assert set_lines([], 18, 120, 2) == [[]]


def test_a_long_text_is_set_smaller_and_a_short_one_is_not():
    assert [fit_lines(words(text), (26, 20, 14), 300, 120)[1] for text in ("a dog", TEXT)] == [26, 20]
    lines, size = fit_lines(words(TEXT * 9), (26, 20, 14), 300, 120)
    assert size == 14 and lines[-1][-1].text == "…"


def test_changes_are_marked_and_case_and_punctuation_are_no_change():
    before, after = compare("A red dog, runs home.", "a blue dog runs")
    assert before == [("same", "A"), ("out", "red"), ("same", "dog, runs"), ("out", "home.")]
    assert after == [("same", "a"), ("in", "blue"), ("same", "dog runs")]
    assert [word.text for word in marked_words(before) if word.struck] == ["red", "home."]
    assert [word.text for word in marked_words(after) if word.bold] == ["blue"]


def test_each_side_is_its_text():
    rng = random.Random(0)
    for _ in range(200):
        texts = [" ".join(rng.choices("a A b, b c - d", k=rng.randrange(8))) for _ in range(2)]
        for text, runs in zip(texts, compare(*texts), strict=True):
            assert " ".join(run for _, run in runs) == " ".join(text.split())


@pytest.fixture
def installed(tmp_path):
    """A font of this machine with the single letter 犬, a square of half its size."""
    pen = TTGlyphPen(None)
    pen.moveTo((250, 250)), pen.lineTo((250, 750)), pen.lineTo((750, 750)), pen.lineTo((750, 250)), pen.closePath()
    font = FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder([".notdef", "dog"])
    font.setupCharacterMap({ord("犬"): "dog"})
    font.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "dog": pen.glyph()})
    font.setupHorizontalMetrics({".notdef": (1000, 0), "dog": (1000, 250)})
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "Dogs", "styleName": "Regular"})
    font.setupOS2(), font.setupPost(), font.save(tmp_path / "dogs.ttf")
    fontManager.addfont(tmp_path / "dogs.ttf")
    fonts.font_of.cache_clear()
    yield
    fontManager.ttflist[:] = [entry for entry in fontManager.ttflist if entry.name != "Dogs"]
    fonts.font_of.cache_clear()


def dark_pixels(path) -> int:
    return int((np.asarray(Image.open(path).convert("L")) < 128).sum())


def test_a_letter_is_drawn_with_a_font_that_has_it(installed, tmp_path, caplog):
    assert [(font.name, text) for font, text in fonts.runs("a犬b")] == [
        ("DejaVu Sans", "a"),
        ("Dogs", "犬"),
        ("DejaVu Sans", "b"),
    ]
    with open_sheet(100) as sheet:
        sheet.write(10, 10, [words("犬犬", "black", bold=True)], 60)
        save(sheet.figure, tmp_path / "dogs.png")
    assert line_width(words("犬犬"), 60) == 120
    assert dark_pixels(tmp_path / "dogs.png") == pytest.approx(2 * (30 * DPI / 72) ** 2, rel=0.05)
    assert not caplog.records


def test_a_font_that_is_missing_is_named(monkeypatch, tmp_path, caplog):
    own = [font for font in fontManager.ttflist if font.name in (OWN, fonts.BOXES)]
    monkeypatch.setattr(fontManager, "ttflist", own)
    fonts.font_of.cache_clear()
    with open_sheet(100) as sheet:
        sheet.write(10, 10, [words("a dog, كلب, 犬い", "black")], 20)
        save(sheet.figure, tmp_path / "box.png")
    fonts.font_of.cache_clear()
    assert caplog.messages == ["No font of this machine has い犬: install Noto Sans CJK."]
    assert fonts.missing_font("犬ก") == "Noto Sans CJK and Noto Sans Thai"


def test_a_line_in_arabic_begins_at_the_right():
    kept, _ = compare("قطتان نائمتان على كرسي", "كلبان نائمان على كرسي")
    with open_sheet(50) as sheet:
        sheet.write(0, 0, [marked_words(kept)], 10)
    assert [text.get_text() for text in sheet.axes.texts] == ["على كرسي", "قطتان نائمتان"]
