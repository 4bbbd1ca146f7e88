from __future__ import annotations

import torch

from repair_hf.cli import main as cli


def test_env_tells_versions_and_the_names_of_keys_but_not_the_keys(capsys, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "hunter2")
    assert cli.main(["env"]) == 0
    shown = capsys.readouterr().out
    assert torch.__version__ in shown and "GEMINI_API_KEY" in shown
    assert "hunter2" not in shown
