import socket
import time

import datasets
import pytest
from hub_server import Hub
from huggingface_hub import constants

from repair_hf.cli import main as cli
from repair_hf.runtime import hub_access
from repair_hf.runtime.hub_access import settle_hub


@pytest.fixture
def online(monkeypatch):
    """Undoes that tests are offline, and points at a Hub of the test's own."""

    def point(endpoint: str) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)

    hub_access.try_once.cache_clear()
    yield point
    hub_access.try_once.cache_clear()


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def is_offline() -> list[bool]:
    return [constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE]


def test_a_hub_that_answers_is_asked_once_and_used(online, caplog, monkeypatch):
    monkeypatch.setattr(hub_access, "PATIENCE", 60)
    with Hub({}) as hub:
        online(hub.url)
        settle_hub("me/clip")
        settle_hub("me/photos")
        assert len(hub.requests) == 1
    assert is_offline() == [False, False] and not caplog.records


def test_without_a_hub_what_is_cached_is_used(online, nobody, caplog):
    online(nobody)
    settle_hub("me/clip")
    settle_hub("me/photos")
    assert is_offline() == [True, True]
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        f"The Hub at {nobody} cannot be reached"
    ]


def test_what_is_no_id_asks_nothing(online, nobody, tmp_path):
    online(nobody)
    for name in (tmp_path, "runs/demo/wrld", "./photos", "/absent"):
        settle_hub(name)
    assert is_offline() == [False, False]


def test_a_mistyped_folder_is_reported_without_waiting(online, nobody, monkeypatch, capsys):
    online(nobody)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"waited for {seconds} s"))
    assert cli.main(["show", "runs/rceords"]) == 2
    assert "runs/rceords holds no records, and is no folder here" in capsys.readouterr().err
