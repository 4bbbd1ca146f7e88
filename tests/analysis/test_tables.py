"""Tables of metrics, of their differences and of costs, as they are printed and written."""

import statistics

from rich.console import Console

from repair_hf.analysis import costs
from repair_hf.analysis.tables import (
    NONE,
    blend_gain_rows,
    cell,
    difference_cell,
    gain_lines,
    gain_rows,
    interval_rows,
    label,
    mean_rows,
    terminal_table,
)
from repair_hf.cli.subcommands import print_table
from repair_hf.llm.cost import Usage, format_dollars, price_per_token


def metrics(recall: float, **others) -> dict[str, float]:
    found = {f"{side}_R@{k}": recall + k / 100 for side in ("i2t", "t2i") for k in (1, 5, 10)}
    return found | {"i2t_MRR": recall, "t2i_MRR": recall / 2, "n_images": 2000, "n_texts": 10000} | others


TRAINED = [metrics(0.5, seconds=59.6, steps=98, seed=0), metrics(0.53, seconds=61.6, steps=98, seed=1)]
ROWS = {"base": [metrics(0.4)], "vanilla_same_compute": TRAINED}


def test_cells():
    values = (0.12345, 12.0, 1.0, 12345, float("nan"), None, "", "a", True)
    assert [cell(value) for value in values] == ["0.123", "12", "1.000", "12,345", "–", "–", "–", "a", "True"]


def printed(heads: list[str], rows: list[list[str]], width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(terminal_table(heads, rows))
    return console.export_text()


NAMES = [*(f"{side}_{kind}" for side in ("i2t", "t2i") for kind in ("R@1", "R@5", "R@10", "MRR")), "seconds", "steps"]


def test_methods_have_percent_mrr_and_spread():
    heads, rows = mean_rows("method", ROWS, NAMES)
    found = dict(zip(heads, zip(*rows, strict=True), strict=True))
    assert found["method"] == ("base", "vanilla_same_compute")
    assert found["I2T R@1"] == ("41.0", f"52.5 ±{100 * statistics.stdev([0.51, 0.54]):.1f}")
    assert (found["I2T MRR"], found["T2I MRR"]) == (("0.400", "0.515 ±0.021"), ("0.200", "0.258 ±0.011"))
    assert found["seconds"] == ("–", "61 ±1")
    assert found["steps"] == ("–", "98")  # the same for every seed
    assert mean_rows("method", {"plain": [metrics(0.5), metrics(0.5)]}, ["i2t_R@1"])[1] == [["plain", "51.0 ±0.0"]]
    text = printed(heads, rows)
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert all(each in text for each in ("vanilla_same_compute 52.5", "0.515", "±0.021", "98"))


MEASURED = {
    "base": {"i2t_R@1": 0.1234, "t2i_MRR": 0.2, "i2t_median_rank": 4.5, "world_macro": 0.5, "n_images": 3},
    "mine": {"i2t_R@1": 1.0, "t2i_MRR": 1.0, "i2t_median_rank": 1.0},
}
MEASURED_BY_THE_DEMO = ["i2t_R@1", "t2i_R@1", "contrast_caption", "contrast_picture", "web_i2t_R@1", "web_t2i_R@1"]
MEASURED["base"]["intervals"] = {"i2t_R@1": (0.1, 0.15), "t2i_MRR": (0.19, 0.2105), "i2t_median_rank": (3, 6)}
MEASURED["base"]["intervals"]["world_macro"] = (0, 1)
MEASURED["mine"]["intervals"] = dict.fromkeys(("i2t_R@1", "t2i_MRR", "i2t_median_rank"), (1, 1))


def test_shares_in_percent_mrr_and_ranks_as_they_are():
    heads, rows = interval_rows(MEASURED)
    assert heads == ["", "base", "mine"] and rows == [
        ["I2T R@1", "12.3 [10.0, 15.0]", "100.0 [100.0, 100.0]"],
        ["T2I MRR", "0.200 [0.190, 0.210]", "1.000 [1.000, 1.000]"],
        ["I2T median rank", "4.5 [3, 6]", "1 [1, 1]"],
        ["world macro", "50.0 [0.0, 100.0]", NONE],
    ]


def test_a_number_without_an_interval_stands_alone():
    random = {"i2t_R@1": 0.001, "t2i_MRR": 0.01, "world_macro": 0.5, "intervals": {}}
    assert [row[1] for row in interval_rows({"random": random, **MEASURED})[1]] == ["0.1", "0.010", NONE, "50.0"]


def test_differences_of_blends_name_the_split_that_chose_them():
    gain = {"difference": 0.01, "low": -0.01, "high": 0.02}
    equal = {"model": "repaired@1", "reference": "plain@1", "chosen_on": None}
    equal["summary"] = {"mean_R@1": gain}
    best = equal | {"chosen_on": "validation", "summary": {"mean_R@1": gain, "kept_R@1": gain}}
    heads, rows = blend_gain_rows([equal, best])
    assert heads == ["difference", "mean R@1", "kept R@1"]
    cell = "+1.0 [-1.0, +2.0]"
    assert [[text.strip() for text in row] for row in rows] == [
        ["repaired@1 − plain@1", cell, NONE],
        ["repaired@1 − plain@1, best on validation", cell, cell],
    ]


def test_a_star_where_the_interval_leaves_out_nothing():
    bounds = {"i2t_R@1": (0.1, 0.05, 0.15), "t2i_R@1": (-0.1, -0.2, 0.0), "t2i_MRR": (-0.01, -0.02, -0.005)}
    found = {name: dict(zip(("difference", "low", "high"), each, strict=True)) for name, each in bounds.items()}
    heads, rows = gain_rows({"mine": found, "other": {"t2i_R@1": found["i2t_R@1"]}}, "change from base")
    assert heads == ["change from base", "I2T R@1", "T2I R@1"]
    assert [[text.rstrip() for text in row] for row in rows] == [
        ["mine", "+10.0 [+5.0, +15.0] *", "-10.0 [-20.0, +0.0]"],
        ["other", NONE, "+10.0 [+5.0, +15.0] *"],
    ]
    assert difference_cell("t2i_MRR", found["t2i_MRR"]) == "-0.010 [-0.020, -0.005] *"


def test_nine_models_stand_on_a_line_each():
    gain = {name: {"difference": -0.1234, "low": -0.2345, "high": 0.1234} for name in ("i2t_R@1", "t2i_R@1")}
    names = [f"a-model-of-a-long-name-{n}" for n in range(9)]
    lines = printed(*gain_rows(dict.fromkeys(names, gain), "change from base")).splitlines()
    assert all(sum(line.split()[:1] == [name] and line.count("[") == 2 for line in lines) == 1 for name in names)
    shown = [*gain, "web_i2t_R@1", "web_t2i_R@1", "contrast_caption", "contrast_picture"]
    points = printed(*mean_rows("model", {name: [dict.fromkeys(shown, 0.5)] for name in names}, shown)).splitlines()
    assert all(sum(line.split()[:1] == [name] and line.count("50.0") == 6 for line in points) == 1 for name in names)


def test_no_word_of_a_wide_table_is_broken():
    """The demo's own table: its labels are wrapped where that leaves room for the heads."""
    rows = [[name, *["100.0"] * 6, "1,000", "78"] for name in ("base", "plain, a third of the rate")]
    heads = ["method", *map(label, MEASURED_BY_THE_DEMO), "seconds", "steps"]
    lines = printed(heads, rows).splitlines()
    assert max(map(len, lines)) <= 80
    assert {"contrast", "caption", "picture", "seconds", "plain,", "third", "rate"} <= set(" ".join(lines).split())


def test_a_line_of_differences_breaks_between_them():
    gains = {name: {"difference": -0.1234, "low": -0.2345, "high": 0.1234} for name in MEASURED_BY_THE_DEMO}
    text = gain_lines("Did repair help? repaired − plain:", gains)
    lines = text.splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 80 and all(line.startswith("  ") for line in lines[1:])
    assert all(line.count("[") == line.count("]") > 0 for line in lines)
    one = "-12.3 [-23.4, +12.3]"
    told = ", ".join(f"{label(name)} {one}" for name in gains)
    assert " ".join(text.split()) == f"Did repair help? repaired − plain: {told}."


def test_intervals_go_below_their_numbers_where_a_terminal_is_too_narrow():
    wide = [["I2T R@1", *["+10.0 [+5.0, +15.0] *"] * count] for count in (2, 5)]
    short, long = (printed(["", *"abcde"[: len(row) - 1]], [row]) for row in wide)
    assert "+10.0 [+5.0, +15.0] *" in short and "+10.0 [" not in long
    assert max(map(len, long.splitlines())) <= 80 and "…" not in long


def test_a_narrow_terminal_breaks_no_word_and_no_number(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "30")
    heads = ["round", *(f"{side} R@1 {kind}" for side in ("I2T", "T2I") for kind in ("records", "plain", "+"))]
    row = ["base", *["1,234,567"] * 6]
    print_table(heads, [row])
    shown = capsys.readouterr().out.split()
    assert all(shown.count(word) == " ".join(heads).split().count(word) for word in ("round", "records", "R@1"))
    assert shown.count("1,234,567") == 6
    assert max(map(len, printed(heads, [row], width=30).splitlines())) <= 30  # which breaks them


FLASH = "gemini/gemini-2.5-flash"

# Tokens (in, out) per mined triplet and stage: the paper's means over 1,000 triplets of each direction.
PAPER_TOKENS = {
    "flickr30k": {
        ("audit", "i2t"): (707.3, 80.3),
        ("instruct", "i2t"): (981.4, 61.7),
        ("edit", "i2t"): (597.9, 45.9),
        ("audit", "t2i"): (1064.6, 101.0),
        ("instruct", "t2i"): (279.0, 25.8),
    },
    "coco30k": {
        ("audit", "i2t"): (701.9, 69.5),
        ("instruct", "i2t"): (706.7, 31.1),
        ("edit", "i2t"): (382.2, 25.2),
        ("audit", "t2i"): (1063.3, 95.3),
        ("instruct", "t2i"): (214.9, 20.6),
    },
}


def price(tokens_in: float, tokens_out: float) -> float:
    each_in, each_out = price_per_token(FLASH)
    return tokens_in * each_in + tokens_out * each_out


def test_the_papers_token_table_comes_out_of_its_counts():
    """The paper's sample is 1,000 triplets of each direction."""
    printed = {
        "flickr30k": "2,286.6 187.9 2,474.5  1,343.6 126.8 1,470.4  3,630.2 314.7 3,944.9  $1.88",
        "coco30k": "1,790.8 125.8 1,916.6  1,278.2 115.9 1,394.1  3,069.0 241.7 3,310.7  $1.52",  # the paper: $1.53
    }
    for dataset, numbers in printed.items():
        paid = {}
        for place, (tokens_in, tokens_out) in PAPER_TOKENS[dataset].items():
            tokens = round(1000 * tokens_in), round(1000 * tokens_out)
            paid[place] = Usage(1000, 0, *tokens, price(*tokens))
        rows = {row[:2]: row for row in costs.paid_rows(paid)}
        found = [cell for way in ("i2t", "t2i", "both") for cell in rows["all", way][3:6]]
        assert [*found, rows["all", "both"][6]] == numbers.split()
        assert rows["all", "i2t"][2] == 3000 and ("edit", "t2i") not in rows


def test_answers_without_a_price_make_no_sum():
    paid = {("audit", "i2t"): Usage(2, 0, 10, 1, 0.5), ("audit", "t2i"): Usage(2, 0, 10, 1, 0.0, unpriced=1)}
    rows = {row[:2]: row[6] for row in costs.paid_rows(paid)}
    assert (rows["all", "i2t"], rows["all", "t2i"], rows["all", "both"]) == ("$0.50", "unknown", "unknown")
    assert costs.describe_paid(paid) == "Unknown: 1 of 4 answers have no list price. They used 0.0 K tokens."
    assert costs.describe_paid({("audit", "i2t"): Usage(2, 0, 10, 1, 0.5)}).startswith("$0.50 for 2 answers")
    assert costs.describe_paid({}).startswith("Unknown: there is no ledger")
    assert costs.paid_rows({}) == [("all", "both", 0, "0.0", "0.0", "0.0", "$0.00")]


def test_small_amounts_keep_their_digits():
    shown = [format_dollars(amount) for amount in (None, 0.0, 0.0312, 0.001, 12345.678)]
    assert shown == ["unknown", "$0.00", "$0.03", "<$0.01", "$12,345.68"]
