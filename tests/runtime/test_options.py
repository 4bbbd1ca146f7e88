from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from repair_hf.runtime.command_line import parse
from repair_hf.runtime.options import (
    SEEDS,
    Bounded,
    PairsOptions,
    StageOptions,
    UserError,
    changed,
    fill,
    flags,
    need,
    opt,
)
from repair_hf.synthesis.options import SynthesizeOptions


@dataclass
class Options(Bounded):
    _argument_group_name = "kitchen"

    dish: str = need("What to cook.")
    k_mine: int = opt(100, "How far to look.", least=1)
    rate: float = opt(0.5, "A share.", above=0, most=1)
    sizes: list[int] = opt([1, 5], "Several numbers.", least=1)
    share: float = opt(0.5, "Another.", least=0, most=1)
    salted: bool = opt(True, "Salt it.")
    unsalted: bool = opt(False, "No salt.")
    limit: int | None = opt(None, "At most so many.", least=1)
    slot: Literal["anchor", "mixed"] = opt("anchor", "Which.")

    seed: int = opt(0, "Of the draws.", least=0, most=SEEDS - 1)
    words: list[str] = opt([], "Several words.")
    spice: bytes | None = opt(None, "What no word can express.")
    letter: Literal["a", "b", "c", "d", "e", "f", "g", "h", "i"] = opt("a", "One of many.")

    def __post_init__(self):
        super().__post_init__()
        if self.dish == "stones":
            raise ValueError("`dish` must be food, got stones.")


def filled(*argv: str) -> Options:
    return parse((Options,), argv, "repair-hf cook")[0]


@pytest.fixture
def recipe(tmp_path):
    def write(text: str) -> str:
        (tmp_path / "recipe.yaml").write_text(text)
        return str(tmp_path / "recipe.yaml")

    return write


def test_a_flag_beats_the_recipe_and_the_recipe_beats_the_default(recipe):
    path = recipe("dish: soup\nk_mine: 7\nrate: 0.25\nsizes: [2, 3, 4]\n")
    options = filled("--k-mine", "9", "--config", path, "--sizes", "8")
    assert (options.dish, options.k_mine, options.rate, options.sizes) == ("soup", 9, 0.25, [8])


@pytest.mark.parametrize(
    "line, expected",
    [
        ("rate: 1e-4", {"rate": 1e-4}),  # YAML itself takes this for a word
        ("salted: false", {"salted": False}),
        ("limit: null", {"limit": None}),
        ("limit: 4", {"limit": 4}),
        ("sizes: []", {"sizes": []}),
        ("slot: mixed", {"slot": "mixed"}),
        ("dish: --fish", {"dish": "--fish"}),
        ("words: [-a, '3', 4]", {"words": ["-a", "3", "4"]}),
        ("words: one", {"words": ["one"]}),
        ("# nothing said", {}),
    ],
)
def test_values_of_a_recipe_get_the_type_of_the_field(recipe, line, expected):
    dish = [] if "dish" in expected else ["soup"]  # the first word is the first thing that is needed
    assert filled(*dish, f"--config={recipe(line)}") == Options(**({"dish": "soup"} | expected))
    assert Options("soup").sizes is not Options("soup").sizes


def test_a_path_may_begin_at_home(recipe, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert filled("--config", recipe("dish: ~/soup")).dish == "/home/me/soup"
    assert [filled(f"--dish={word}").dish for word in ("~", "~me/soup", "a~/b")] == ["/home/me", "~me/soup", "a~/b"]


@pytest.mark.parametrize(
    "line, message",
    [
        ("kmine: 5", r"unknown keys \['kmine'\]. Did you mean `k_mine` for `kmine`\? Known: dish, k_mine, letter"),
        ("spice: hot", r"unknown keys \['spice'\]"),
        ("dish: stones", "`dish` must be food, got stones"),
        ("k_mine: 0", "`k_mine` must be greater than or equal to 1, got 0"),
        ("sizes: [3, 0]", "`sizes` must be greater than or equal to 1, got 0"),
        ("rate: 0", "`rate` must be greater than 0, got 0"),
        ("share: 2", "`share` must be less than or equal to 1, got 2"),
        ("rate: .nan", "`rate` must be a finite number, got nan"),
        ("dish: no", "`dish` must be a valid string, got False. In a recipe, write words such as no and off in"),
        ("slot: first", "`slot` must be 'anchor' or 'mixed', got 'first'"),
        ("k_mine: many", "`k_mine` must be a valid integer, unable to parse string as an integer, got 'many'"),
        ("limit: [1, 2]", r"`limit` must be a valid integer, got \[1, 2\]"),
        ("dish:", "required: --dish"),
        ("k_mine:", "`k_mine` must be a valid integer, got None"),
    ],
)
def test_what_is_wrong_in_a_recipe_stops_the_run(recipe, line, message):
    with pytest.raises(UserError, match=message):
        filled("--config", recipe(line), *([] if "dish" in line else ["--dish", "soup"]))


def test_a_value_in_python_gets_the_type_of_its_field():
    options = Options("soup", salted="no", k_mine=2.0, limit="7", words=(Path("runs/a"),))
    assert (options.salted, options.k_mine, options.limit, options.words) == (False, 2, 7, ["runs/a"])
    assert isinstance(options.k_mine, int)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"slot": "ancor"}, "`slot` must be 'anchor' or 'mixed', got 'ancor'"),
        ({"rate": "1.5"}, "`rate` must be less than or equal to 1, got '1.5'"),
        ({"k_mine": 2.5}, "`k_mine` must be a valid integer, got a number with a fractional part, got 2.5"),
        ({"words": "runs/a"}, "`words` must be a valid list, got 'runs/a'"),
        ({"salted": "perhaps"}, "`salted` must be a valid boolean"),
    ],
)
def test_a_wrong_value_in_python_is_an_error_too(values, message):
    with pytest.raises(UserError, match=message):
        Options("soup", **values)


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "required: --dish"),
        (["--dish", "soup", "--kmine", "5"], r"unknown flags \['--kmine'\]. Did you mean `--k-mine`"),
        (["--dish", "soup", "--km", "5"], r"unknown flags \['--km'\]. Did you mean `--k-mine` for `--km`"),
        (["--dis", "soup"], r"unknown flags \['--dis'\]"),  # an abbreviation is not guessed at
        (["--dish", "soup", "stew"], r"unknown words \['stew'\]; see `repair-hf cook --help`"),
        (["--dish", "soup", "--k-mine", "many"], "must be a valid integer, unable to parse .*, got 'many'"),
        (["--dish", "soup", "--seed", "-1"], "`seed` must be greater than or equal to 0, got '-1'"),
        (["--config"], "argument --config: expected one argument"),
        (["--config", "absent.yaml"], "absent.yaml, which does not exist"),
    ],
)
def test_what_is_wrong_on_the_command_line_stops_the_run(argv, message):
    with pytest.raises(UserError, match=message):
        filled(*argv)


def test_help_shows_groups_types_defaults_and_what_is_needed(capsys):
    with pytest.raises(SystemExit) as left:
        parse((PairsOptions, StageOptions, Options), ["--help"], "repair-hf cook", epilog="example:\n  a  b")
    text = " ".join(capsys.readouterr().out.split())
    assert left.value.code == 0
    for expected in (
        "usage: repair-hf cook [PAIRS] [--config FILE.yaml] [options]",
        "pairs: --pairs TEXT",
        "kitchen: --dish TEXT What to cook. (required)",
        "--k-mine INT How far to look. (default: 100)",
        "--sizes INT [INT ...] Several numbers. (default: [1, 5])",
        "--letter TEXT One of many. (default: a)",
        "--salted, --no-salted Salt it. (default: True)",
        "--limit INT At most so many. --slot {anchor,mixed}",
        "--config FILE.yaml",
    ):
        assert expected in text
    assert "--k_mine" not in text


@pytest.mark.parametrize(
    "values, line",
    [
        ({"max_queries": 5, "d_i2t": None}, "--max-queries 5"),
        ({"audited": False, "fp16": True}, "--no-audited --fp16"),
        ({"lr_scheduler_kwargs": {"num_cycles": 1}}, '--lr-scheduler-kwargs={"num_cycles": 1}'),
        ({"rates": [0.1, 2]}, "--rates 0.1 2"),
        ({}, ""),
    ],
)
def test_flags_of_values_are_the_words_of_a_command_line(values, line):
    assert " ".join(flags(values)) == line


def test_flags_of_options_fill_the_same_options():
    options = Options("-a soup", rate=0.25, sizes=[2, 3], salted=False, limit=7)
    words = flags(changed(options))
    assert words == ["--dish=-a soup", *"--rate 0.25 --sizes 2 3 --no-salted --limit 7".split()]
    assert filled(*words) == options
    assert flags(changed(Options("soup"))) == ["--dish", "soup"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--k-mine 5 soup", {"k_mine": 5}),
        ("--unsalted soup --limit 3", {"unsalted": True, "limit": 3}),
        ("--unsalted no soup", {"unsalted": False}),
        ("soup --no-salted --unsalted", {"salted": False, "unsalted": True}),
        ("--rate=0.25 soup --no_salted --salted yes", {"rate": 0.25, "salted": True}),
    ],
)
def test_the_first_option_may_stand_anywhere(line, expected):
    assert filled(*line.split()) == Options("soup", **expected)


def test_keywords_of_a_function_fill_the_options_that_declare_them():
    stage, options = fill([StageOptions, Options], {"dish": "soup", "output": "x", "rate": 0.25}, "cook")
    assert (stage, options) == (StageOptions("x"), Options("soup", rate=0.25))
    with pytest.raises(UserError, match=r"`cook` has no option \['dsh'\]. Did you mean `dish`"):
        fill([StageOptions, Options], {"dsh": "soup", "output": "x"}, "cook")


def test_keywords_of_synthesize_get_the_types_of_its_flags():
    named = {"failures": Path("runs/failures"), "model": "m", "audited": "no", "candidates": 2.0}
    (options,) = fill([SynthesizeOptions], named, "synthesize")
    assert (options.failures, options.audited, options.candidates) == ("runs/failures", False, 2)
    for wrong in ({"earlier_rounds": "runs/a"}, {"candidates": 1.5}, {"audited": "perhaps"}):
        with pytest.raises(UserError, match=f"`{next(iter(wrong))}` must be a valid "):
            fill([SynthesizeOptions], named | wrong, "synthesize")
