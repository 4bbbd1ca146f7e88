import numpy as np
import pytest
from matplotlib.offsetbox import TextArea
from matplotlib.text import Text
from PIL import Image

from repair_hf.analysis import charts
from repair_hf.analysis.charts import DPI, EM, WIDTH, caption, fit, page, save, wrap, write
from repair_hf.analysis.pages import ROLES
from repair_hf.analysis.record_sample import compare

TEXT = "Two small dogs\nchase a  ball that rolls down the hill behind the old farmhouse in the evening sun"
LETTERS = [
    TEXT,
    "see https://example.org/a/long/address",
    "a" * 300,
    "NOTHING BUT CAPITALS HERE",
    "犬と遊ぶ二人の子供" * 9,
]


@pytest.mark.parametrize("text", LETTERS)
@pytest.mark.parametrize("width", [90, 200, 5000])
def test_lines_hold_every_letter_and_stay_in_the_box(text, width):
    lines = wrap(text, 18, width, 99)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert max(map(len, lines)) <= max(width / (18 * EM), 4)
    with page(3000) as (figure, axes):
        write(axes, 0, 0, [line for line in lines if line.isascii()], 18)
        figure.draw_without_rendering()
        measured = [text.get_window_extent().width * 72 / DPI for text in axes.texts]
    assert max(measured, default=0) <= 1.1 * width


@pytest.mark.parametrize("text", [TEXT, "a" * 300])
@pytest.mark.parametrize("most", [1, 2])
def test_what_does_not_fit_ends_in_an_ellipsis(text, most):
    lines = wrap(text, 18, 160, most)
    assert len(lines) <= most and lines[-1].endswith("…") and max(map(len, lines)) <= 160 / (18 * EM)
    assert wrap("", 18, 120, 2) == [""]


def test_a_long_text_is_set_smaller_and_a_short_one_is_not():
    assert [fit(text, (26, 20, 14), 300, 140)[1] for text in ("a dog", TEXT)] == [26, 20]
    lines, size = fit(TEXT * 9, (26, 20, 14), 300, 120)
    assert size == 14 and lines[-1].endswith("…")


def draw_caption(before: str, after: str) -> list[Text]:
    """The texts of a caption with its removed words marked."""
    with page(100) as (figure, axes):
        caption(axes, (0, 0, WIDTH, 90), compare(before, after)[0], ROLES["fp"])
        return [area.get_children()[0] for area in figure.findobj(TextArea)]


def test_removed_words_are_bold_and_keep_their_order():
    texts = draw_caption("A red dog runs home", "A blue dog runs")
    assert [text.get_text() for text in texts] == ["A", "red", "dog runs", "home"]
    assert [text.get_weight() == "bold" for text in texts] == [False, True, False, True]
    assert [text.get_color() == ROLES["fp"] for text in texts] == [False, True, False, True]


def draw_letters(path, text: str) -> int:
    """Draw large letters, and count their dark pixels."""
    with page(100) as (figure, axes):
        write(axes, 10, 10, text, 60, "black")
        save(figure, path)
    return int((np.asarray(Image.open(path).convert("L")) < 128).sum())


def test_letters_that_no_font_has_are_a_warning(monkeypatch, tmp_path, caplog):
    monkeypatch.setitem(charts.LOOK, "font.family", ["DejaVu Sans"])
    assert draw_letters(tmp_path / "boxes.png", "a 犬") > 0
    (message,) = caplog.messages
    assert "犬" in message and "a" not in message.split(":")[0].split()
    caplog.clear()
    draw_letters(tmp_path / "none.png", "a dog, كلب")
    assert not caplog.records
