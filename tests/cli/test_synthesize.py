"""`repair-hf synthesize` from the command line: records, cost, resuming, other models, errors."""

import asyncio
import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from chat_server import ChatServer, Response
from datasets import Dataset
from ledgers import answers, ledger_in, pay, rows
from provider_server import ImageServer, error, png
from scripted import shown_in

from repair_hf.cli.main import main
from repair_hf.cli.synthesize import _suggest
from repair_hf.llm.ledger import Topic
from repair_hf.records.dataset import load_dropped, load_records
from repair_hf.runtime.options import PairsOptions
from repair_hf.runtime.stage import claim
from repair_hf.toyworld import oracle
from repair_hf.toyworld.errors import LLMS, errors_of

WORLD = ["--llm", "world/oracle", "--editor", "world"]
NOISY = ["--llm", "world/oracle?keeps_bad=0.3&rejects_good=0.3"]


def synthesize(*words: str) -> int:
    return main(["synthesize", *words])


@pytest.fixture(scope="module")
def output(inputs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("output") / "records"
    assert synthesize(*inputs, *WORLD, "--output", str(folder), *NOISY) == 0
    return folder


def test_leaves_a_folder_that_explains_itself(output):
    summary = json.loads((output / "summary.json").read_text())
    assert {way: found["mined"] for way, found in summary["directions"].items()} == {"t2i": 4, "i2t": 16}
    assert len(load_records(output)) == sum(found["kept"] for found in summary["directions"].values())
    for part in ("llm", "paid"):  # by this run; by all runs in the folder
        assert sum(use["calls"] for use in summary[part]) == answers(output)
    assert summary["images"]["made"] == len(list((output / "candidates").rglob("*.png")))
    assert {"config.yaml", "command.txt", "versions.json", "README.md"} <= {path.name for path in output.iterdir()}


@pytest.mark.slow
def test_the_oracle_over_http_makes_the_same_records(inputs, output, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # LiteLLM requires one
    with ChatServer(partial(oracle.answer_to, errors=errors_of(NOISY[1], LLMS))) as server:
        words = ["--llm", "openai/o", "--llm-base-url", server.base_url, "--editor", "world"]
        assert synthesize(*inputs, *words, "--output", str(tmp_path / "r")) == 0
    columns = ["direction", "q_id", "fp_id", "edit_text", "edit_instruction", "fp_reason", "candidate"]
    here, there = (load_records(folder).select_columns(columns).to_list() for folder in (output, tmp_path / "r"))
    assert here == there and len(here) > 0


def test_a_finished_run_is_reported_and_priced_again_and_not_made_again(inputs, output, capsys):
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()}
    assert synthesize(*inputs, *WORLD, *NOISY, "--output", str(output), "--dry-run") == 0
    assert f"already holds {answers(output)} answers and images, for $0.00" in capsys.readouterr().out
    assert synthesize(*inputs, *WORLD, "--output", str(output), *NOISY, "--concurrency", "2", "--batch-size", "7") == 0
    shown = capsys.readouterr().out
    assert all(
        word in shown
        for word in ("mined", "kept", "fp too similar", "Count", "$0.00", "already finished, nothing was done")
    )
    assert not any(word in shown for word in ("new answers", "images: ", "took", "assumed", "no answer"))
    assert shown.splitlines()[-1].startswith("next: repair-hf train --pairs ")
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "models",
    [
        "--llm openai/unlisted --llm-base-url http://127.0.0.1:1 --editor world",
        "--llm world/oracle --editor openai/unlisted --editor-base-url http://127.0.0.1:1",
    ],
)
def test_a_dry_run_refuses_a_ceiling_that_the_run_could_not_keep(models, inputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    for words in (["--dry-run"], []):
        assert synthesize(*inputs, *models.split(), "--output", str(tmp_path / "out"), "--max-usd", "1", *words) == 2
        assert "no list price is known for 'openai/unlisted'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("worst", "said"),
    [
        (0.25, "$0.25 of it is assumed: the highest price of 1 requests without an answer"),
        (0.0, "1 requests have no answer, such as those in flight when a run was killed. They may be billed."),
    ],
)
def test_what_is_assumed_to_be_paid_is_said(worst, said, inputs, output, tmp_path, capsys):
    folder = Path(shutil.copytree(output, tmp_path / "out"))
    with ledger_in(folder) as ledger:  # closed with a request in flight
        asyncio.run(ledger.reserve("in flight", Topic("audit", "i2t", "m"), worst))
    assert synthesize(*inputs, *WORLD, *NOISY, "--output", str(folder)) == 0
    assert said in capsys.readouterr().out


def test_a_ceiling_stops_a_run_and_counts_all_runs_with_its_ledger(inputs, tmp_path, capsys):
    ledger = tmp_path / "ledger.sqlite"
    for name, most in (("one", "6"), ("two", "10")):
        words = ["--output", str(tmp_path / name), "--ledger", str(ledger), "--max-calls", most]
        assert synthesize(*inputs, *WORLD, *words) == 1
        shown = capsys.readouterr()
        assert f"--max-calls {most} is reached: {most} answers and images are paid" in shown.err
        *_, total = (line.split() for line in shown.out.splitlines() if line.strip())
        assert total[:3] == ["all", "both", {"one": "6", "two": "4"}[name]]  # what each run has paid itself
    assert len(rows(tmp_path)) == 10 and {row["run"] for row in rows(tmp_path)} == {"one", "two"}


def test_a_ceiling_counts_images_that_another_editor_was_paid_for(inputs, tmp_path, capsys, monkeypatch):
    """The folder goes on with an editor of this machine. Nothing is sent: nobody listens at the address."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    claim(tmp_path / "r", "synthesize")
    pay(tmp_path / "r", "an image", 2.0, stage="edit", direction="t2i", model="openai/gpt-image-1")
    words = ["--max-usd", "2", "--llm", "openai/gpt-4o-mini", "--llm-base-url", "http://127.0.0.1:9"]
    assert synthesize(*inputs, *words, "--editor", "world", "--output", str(tmp_path / "r")) == 1
    assert "--max-usd 2 is reached: $2.00 are paid" in capsys.readouterr().err


def test_source_images_may_be_left_out(inputs, tmp_path):
    assert synthesize(*inputs, *WORLD, "--output", str(tmp_path), "--no-embed-source-images", "--limit", "2") == 0
    rows = list(load_records(tmp_path))
    assert all(row["q_image"] is row["gt_image"] is row["fp_image"] is None for row in rows)
    assert sum(row["edit_image"] is not None for row in rows) == sum(row["direction"] == "t2i" for row in rows) > 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--failures", "nowhere"], "--failures nowhere: nowhere does not exist. Make it with `repair-hf mine`."),
        (["--llm", "world/oracle?drift=0.1"], "'drift' is not a rate of this model; it has keeps_bad, rejects_good,"),
        (["--editor", "world?drift=2"], "drift must be a number from 0 to 1, got '2'."),
        (["--split", "test"], "were mined from other pairs"),
        (["--precision", "fp16"], "`precision` fp16 needs a GPU"),
    ],
)
def test_a_mistake_is_one_line(words, complaint, inputs, tmp_path, capsys):
    assert synthesize(*inputs, *WORLD, "--output", str(tmp_path), *words) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("repair-hf synthesize: error: ")]
    assert len(error) == 1 and complaint in error[0]


@pytest.mark.parametrize(
    ("models", "key"),
    [(["openai/gpt-4o-mini", "no/such-editor"], None), (["world/oracle", "openai/gpt-image-2"], "a-key\n")],
    ids=["none of the llm", "a broken one of the editor"],
)
def test_a_key_is_checked_before_anything_is_loaded_and_by_a_dry_run(
    models, key, inputs, tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    words = [*inputs, "--llm", models[0], "--editor", models[1], "--output", str(tmp_path / "new")]
    for more in ([], ["--dry-run"]):
        assert synthesize(*words, *more) == 2
        shown = capsys.readouterr()
        said = "OPENAI_API_KEY begins or ends with" if key else ": set OPENAI_API_KEY (any value for your own server)."
        assert said in shown.err.splitlines()[-1] and "diffusers" not in shown.err
        assert ("Dollars" in shown.out) == bool(more) and not (tmp_path / "new").exists()


def test_unusable_answers_are_asked_for_again_by_more_attempts_and_not_for_ever(inputs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # LiteLLM requires one
    failures = Dataset.from_parquet(f"{inputs[3]}/failures.parquet").filter(lambda row: row["direction"] == "i2t")
    failures.select(range(3)).to_parquet(tmp_path / "failures.parquet")
    useless, good = (lambda body: "As you wish."), oracle.answer_to
    with ChatServer(useless, log=tmp_path / "log") as server:

        def run(answer, *more: str) -> tuple[int, int, list[str]]:
            server.answer, before = answer, lines(tmp_path / "log")
            words = f"--llm openai/o --llm-base-url {server.base_url} --editor world --max-error-rate 1".split()
            where = ["--output", str(tmp_path / "r"), "--failures", str(tmp_path / "failures.parquet")]
            code = synthesize(*inputs, *words, *where, *more)
            return code, lines(tmp_path / "log") - before, capsys.readouterr().err.splitlines()

        third, fourth = (("--answer-attempts", count) for count in "34")
        (code, two, told), (same, nothing, _), (still, one, _) = (run(useless, *words) for words in ((), (), third))
        assert "no record" in told[-1] and "Raise --answer-attempts" in told[-1] and code == same == still == 1
        assert two == 2 * one > nothing == 0 and answers(tmp_path / "r") == two + one
        (healed, again, _), (done, none, _) = (run(good, *fourth) for _ in range(2))
        assert (healed, done, none) == (0, 0, 0) and again > 0 and len(load_records(tmp_path / "r")) > 0


def test_what_an_outage_has_cost_is_asked_again_and_what_is_refused_is_not(inputs, tmp_path, monkeypatch, capsys):
    """The LLM is down for captions, and the editor for two of four images. It refuses a third one."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr("repair_hf.llm.paid_model.Retries.wait_after", lambda *_: 0.0)
    Dataset.from_parquet(f"{inputs[3]}/failures.parquet").select(range(6)).to_parquet(tmp_path / "failures.parquet")
    down, is_down = (500, {"error": {"message": "boom"}}, {}), True
    refusal = 400, error("openai", 400, "no", "content_policy_violation"), {}

    def say(body: dict) -> str | Response:
        is_caption = "Query caption:" not in shown_in(body)
        return Response(*down[:2]) if is_down and is_caption else oracle.answer_to(body)

    def draw(n: int):
        return down if is_down and n > 2 else refusal if n == 2 else png(colour=(n, 0, 0))

    with ChatServer(say, log=tmp_path / "log") as llm, ImageServer(draw) as images:
        words = [*inputs, "--failures", str(tmp_path / "failures.parquet"), "--output", str(tmp_path / "r")]
        words += f"--llm openai/o --llm-base-url {llm.base_url} --max-error-rate 1 --candidates 1".split()
        words += f"--editor openai/gpt-image-1 --editor-base-url {images.url('openai')}".split()
        found, told = [], []
        for is_down_now in (True, False, True):
            is_down = is_down_now
            assert synthesize(*words) == 0
            told.append("4 failures were dropped without a usable answer or image" in capsys.readouterr().out)
            found.append([Counter(load_dropped(tmp_path / "r")["reason"]), lines(tmp_path / "log"), len(images.asked)])
    first, second, third = found
    assert first[0] == {"editor_failed": 3, "llm_failed": 2} and told == [True, False, False]
    assert second[0]["editor_failed"] == 1 and not second[0]["llm_failed"] and third == second
    assert second[2] == first[2] + 2 == 1 + 1 + 2 * 8 + 2


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_what_was_mined_from_a_split_to_measure_on_is_not_suggested_for_training(capsys):
    for split in ("train", "all", "test", "validation"):
        _suggest(PairsOptions("p", split=split), "a/clip", "r")
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next:")]
    words = ["show r", "train --pairs p", "show r", "train --pairs p --split all", "show r", "show r"]
    assert all(line.startswith(f"next: repair-hf {each}") for line, each in zip(shown, words, strict=True))
