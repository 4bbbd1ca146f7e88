"""Text of strangers on the terminal: shown, and without power over it."""

import re

import pytest

from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES, save_records

EVIL = "\x1b]0;owned\x07\x1b[2J \u202egpj.exe \u2028 \x9b31m [/bold] :dog: [red]"
COMMANDS = {
    "show": "show {run} --output {out}/sheet.html",
    "show-unknown": "show {run} --error-type {evil}x",
    "analyze": "analyze {run} --output {out}/report",
    "push": "push records {run} --repo me/x --dry-run",
}


@pytest.fixture(scope="module")
def run(illustrated, tmp_path_factory):
    """A folder of records all of whose texts try to command a terminal."""
    from datasets import Dataset

    texts = [name for name, kind in FEATURES.items() if getattr(kind, "dtype", "") == "string" and name != "direction"]
    rows = [row | dict.fromkeys(texts, EVIL) | {"error_types": [EVIL]} for row in illustrated[1]]
    rows = [row | {f"edit_{'image' if row['direction'] == 'i2t' else 'text'}": None} for row in rows]
    reason = {"reason": "no_op", "detail": EVIL, "direction": "i2t", "q_id": EVIL}
    dropped = Dataset.from_list([dict.fromkeys(DROPPED_FEATURES) | reason], features=DROPPED_FEATURES)
    folder = tmp_path_factory.mktemp("evil")
    save_records(folder, Dataset.from_list(rows, features=FEATURES), dropped)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_sends_an_escape_code(command, run, tmp_path, capfd):
    from repair_hf.cli.main import main

    words = [word.format(run=run, out=tmp_path, evil=EVIL) for word in COMMANDS[command].split()]
    assert main(words) == (2 if "unknown" in command else 0)
    shown = "".join(capfd.readouterr())
    assert shown and not re.findall(r"[^\x20-\x7e\n–−→…×·]", shown)
    if command == "show-unknown":
        assert r"\x1b[2J \u202egpj.exe" in shown and r"[/bold] :dog: [red]" in shown


def test_a_table_shows_markup_as_it_is(capsys):
    from repair_hf.cli.subcommands import print_table

    print_table(["model [/bold]"], [["[red]x[/red] :dog:"]])
    assert "[/bold]" in capsys.readouterr().out.replace("\n", " ")
