"""`repair-hf annotate`: what it draws, refuses and sends. The page itself is tested in a browser."""

import json
import sys

from repair_hf.analysis.people import space
from repair_hf.analysis.people.space import space_files
from repair_hf.cli.main import main


def task(folder):
    (folder / "shown" / "pictures").mkdir(parents=True)
    (folder / "shown" / "pictures" / "p.webp").write_bytes(b"picture")
    (folder / "shown" / "items.jsonl").write_text(json.dumps({"item": "a", "direction": "i2t", "cells": {}}) + "\n")
    (folder / "task.json").write_text(json.dumps({"task": "qc", "size": 1, "seed": 0}))
    (folder / "items.csv").write_text("item,record_id,dataset,direction,accepted,population\na,,w,i2t,True,1\n")
    (folder / "answers").mkdir()
    (folder / "answers" / "ann.jsonl").write_text("{}\n")
    return folder


def test_a_space_holds_what_is_shown_and_nothing_that_must_not_be_known(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "version", lambda name: "6.31.0")
    files = space_files(task(tmp_path))
    assert set(files) == {"app.py", "README.md", "task.json", "shown/items.jsonl", "shown/pictures/p.webp"}
    assert b"sdk_version: 6.31.0" in files["README.md"]
    own = [line for line in files["app.py"].decode().splitlines() if line.startswith(("import", "from"))]
    assert not [line for line in own if "repair_hf" in line]  # the Space has Gradio and nothing of ours


def test_without_gradio_it_says_what_to_install(repaired, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["annotate", "edits", str(tmp_path)]) == 2
    assert "pip install -e '.[ui]'" in capsys.readouterr().err
