"""Progress without a terminal: the state once a minute, and nothing from other processes."""

import pytest

from repair_hf.runtime import progress
from repair_hf.runtime.progress import Progress


@pytest.mark.parametrize(("every", "title", "is_main", "wanted"), [
    (0, "Embedding images", True, "Embedding images: 100%"),
    (0, "Embedding images", False, ""),
    (0, None, True, ""),
    (60, "Embedding images", True, ""),
])  # fmt: skip
def test_a_state_is_written_once_a_minute_by_the_main_process(every, title, is_main, wanted, monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", every)
    monkeypatch.setattr(type(progress.processes()), "is_main", is_main)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    assert list(Progress(range(3), title, unit=" images", disable=False)) == [0, 1, 2]
    shown = capsys.readouterr().err
    assert wanted in shown and bool(shown) is bool(wanted)
