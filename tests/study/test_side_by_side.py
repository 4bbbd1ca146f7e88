"""Two processes make the products of one study side by side: a server counts what they ask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from datasets import Dataset
from ledgers import answers
from provider_server import KEY

from repair_hf.cli.main import main
from repair_hf.llm.ledger_file import paid_by
from repair_hf.study.spending import products_in
from repair_hf.toyworld import oracle
from repair_hf.toyworld.server import ChatServer

MAKER = """
import sys
from functools import partial
from repair_hf.cli.subcommands import run_command
from repair_hf.runtime.command_line import parse
from repair_hf.cli.study import OPTIONS
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.products import Products
from repair_hf.study.setting import Knobs, settle

_, options, *others = parse(OPTIONS, sys.argv[1:], "study")
products = Products(settle(options, *others, run_command))
parts = {name: partial(products.of, load_methods()[name], Knobs(1e-4, 1.0)) for name in options.methods}
products.setting.sharing.run_all(parts)
"""


class Counted:
    """The oracle; counts what it has answered. `before` is called with the kind and the number of each question."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.before: Callable[[str, int], object] = lambda kind, number: None
        self._lock = threading.Lock()

    def __call__(self, body: dict) -> list[str]:
        kind = "rewrite" if "rewrit" in str(body["messages"][0]).lower() else "negative"
        with self._lock:
            self.kinds[kind] += 1
            number = self.kinds[kind]
        self.before(kind, number)
        self.answered[json.dumps(body, sort_keys=True)] += 1
        return oracle.answer_to(body)


@pytest.fixture
def served() -> Iterator[tuple[Counted, str]]:
    answer = Counted()
    with ChatServer(answer) as server:
        yield answer, server.base_url


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("side") / "world"
    assert main(["world", "build", "--output", str(folder), "--train", "6", "--validation", "2", "--test", "2"]) == 0
    return folder


@pytest.fixture
def start(world, clip_folder):
    """Starts a process that makes the products of some methods."""
    running = []

    def begin(output: Path, url: str, *words: str) -> subprocess.Popen:
        given = (
            f"--pairs {world} --model {clip_folder} --output {output} --llm openai/gpt-4o-mini --llm-base-url {url}"
        )
        command = [sys.executable, "-c", MAKER, *given.split(), "--editor", "world", "--methods", *words]
        env = os.environ | {"OPENAI_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def samples(output: Path, maker: str) -> list[dict]:
    rows = Dataset.from_file(str(output / "products" / maker / "samples.arrow")).to_list()
    return [row | {"edit_image": (image := row["edit_image"]) and Path(image["path"]).name} for row in rows]


@pytest.mark.slow  # six processes
def test_two_processes_pay_for_different_products_under_one_ceiling(start, served, tmp_path):
    """Each kind of question is answered once both kinds have come: no process could do that by itself."""
    (answer, url), (alone, both) = served, (tmp_path / "alone", tmp_path / "both")
    methods = ["laclip", "tripletclip", "sugarcrepe"]
    assert start(alone, url, *methods).wait(600) == 0
    by_one, answer.answered = answer.answered, Counter()

    answer.kinds.clear()
    together = threading.Event()

    def wait_for_both(kind: str, number: int) -> None:
        if len(answer.kinds) == 2:
            together.set()
        assert together.wait(400)

    answer.before = wait_for_both
    ceiling = by_one.total() // 2
    for process in [start(both, url, *methods, "--max-calls", str(ceiling)) for _ in range(2)]:
        assert "The study's limit is reached" in process.communicate(timeout=600)[1]
    assert answer.answered.total() == paid_by(products_in(both / "products"))[1] == ceiling
    for process in [start(both, url, *methods) for _ in range(2)]:
        assert process.wait(600) == 0, process.communicate()[1]
    assert answer.answered == by_one and max(by_one.values()) == 1
    assert [samples(both, name) for name in methods] == [samples(alone, name) for name in methods]


@pytest.mark.slow  # two processes
def test_what_a_killed_process_was_making_another_ends(start, served, tmp_path):
    """It dies in `tripletclip`, which asks what `sugarcrepe` asks too; the other makes `sugarcrepe` first."""
    answer, url = served
    reached = threading.Event()

    def hang(kind: str, number: int) -> None:
        if number > 10:
            reached.set()
            threading.Event().wait(600)

    answer.before = hang
    first = start(tmp_path, url, "tripletclip", "--max-usd", "1")
    assert reached.wait(400)
    first.kill()
    first.wait()
    kept = answers(tmp_path / "products" / "tripletclip")
    assert kept > 0
    known = +answer.answered
    answer.before = lambda kind, number: None
    second = start(tmp_path, url, "sugarcrepe", "tripletclip", "--max-usd", "1")
    assert second.wait(600) == 0, second.communicate()[1]
    assert sum(answer.answered.values()) - len(answer.answered) <= known.total() - kept
    assert samples(tmp_path, "tripletclip") and samples(tmp_path, "sugarcrepe")
