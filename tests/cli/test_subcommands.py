from __future__ import annotations

from repair_hf.cli.subcommands import suggest


def test_what_comes_next_can_be_typed_as_it_stands(capsys):
    suggest("train", "--pairs", "my photos", "--records", "...")
    assert capsys.readouterr().out == "next: repair-hf train --pairs 'my photos' --records ...\n"
