"""One's own LLM, image editor and prompts: the same records as by id, and each is asked once."""

from __future__ import annotations

import pytest
import yaml
from datasets import Dataset
from ledgers import answers, rows
from PIL import Image

from repair_hf.hub.files import pack_records
from repair_hf.llm import prompts
from repair_hf.llm.prompts import SHIPPED, Prompts
from repair_hf.records.dataset import load_dropped, load_kept
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.synthesis.synthesize import synthesize
from repair_hf.toyworld import oracle
from repair_hf.toyworld.editor import WorldEditor

ASKED: list[str] = []


def my_llm(request: dict) -> str:
    assert {"messages", "temperature", "max_tokens", "seed", "response_format"} <= request.keys()
    ASKED.append("llm")
    return oracle.answer_to(request)


async def my_later_llm(request: dict) -> str | None:
    return my_llm(request)


def my_editor(image: Image.Image, instruction: str, seed: int) -> Image.Image | None:
    ASKED.append("editor")
    return WorldEditor().edit(image, instruction.split("\n")[0], [seed])[0]


def texts(table) -> list[tuple]:
    return [(row["direction"], row["q_id"], row["fp_id"], row.get("edit_text"), row.get("reason")) for row in table]


@pytest.fixture(scope="module")
def failures(world) -> Dataset:
    """Some of both directions."""
    return Dataset.from_list([*world.of("i2t", 8), *world.of("t2i", 4)])


@pytest.fixture(scope="module")
def by_id(failures, world, encoder, tmp_path_factory):
    """Records by the ids of the same models, and their folder."""
    folder = tmp_path_factory.mktemp("by-id")
    return synthesize(failures, world.pairs, encoder, llm="world/oracle", editor="world", output=folder), folder


@pytest.mark.parametrize("llm", [my_llm, my_later_llm])
def test_a_function_works_where_an_id_does(llm, by_id, failures, world, encoder, tmp_path):
    own = {"llm": llm, "editor": my_editor, "output": tmp_path / "own"}
    wanted, folder = by_id
    ASKED.clear()
    records = synthesize(failures, world.pairs, encoder, **own)
    assert texts(records.to_list()) == texts(wanted.to_list())
    assert texts(load_dropped(own["output"])) == texts(load_dropped(folder))
    assert set(records["llm"]) == {f"python:{__name__}.{llm.__qualname__}"}
    assert set(records["editor"]) == {f"python:{__name__}.my_editor"}
    assert ASKED.count("llm") == answers(own["output"]) and ASKED.count("editor") > 0
    ASKED.clear()
    (own["output"] / "summary.json").unlink()  # as if it had been killed
    assert texts(synthesize(failures, world.pairs, encoder, **own)) == texts(wanted) and not ASKED


def test_one_that_fails_stops_the_run_and_what_is_done_stays(world, encoder, tmp_path):
    edits = []

    def failing(request: dict) -> str:
        edits.append("Edit instruction:" in str(request["messages"]))
        if sum(edits) > 10:
            raise KeyError("weights")
        return my_llm(request)

    words = {"llm": failing, "editor": my_editor, "output": tmp_path, "concurrency": 1}
    with pytest.raises(RunStopped, match="failing failed: KeyError: 'weights'. Every answer so far is kept"):
        synthesize(world.failures, world.pairs, encoder, **words)
    kept, dropped = load_kept(tmp_path), load_dropped(tmp_path)
    assert 0 < len(kept) + len(dropped) < len(world.failures)


@pytest.mark.parametrize(
    ("llm", "editor", "complaint"),
    [
        (lambda request: "", "world", "has no name to keep its answers by"),
        ("python:gone.llm", "world", "is a function of a Python program"),
        (3, "world", "A model is an id or a function, got int"),
        (my_llm, "python:gone.editor", "is a function of a Python program"),
    ],
)
def test_what_is_no_model_is_an_error(llm, editor, complaint, world, encoder, tmp_path):
    with pytest.raises(UserError, match=complaint):
        synthesize(world.failures, world.pairs, encoder, llm=llm, editor=editor, output=tmp_path)
    assert not list(tmp_path.iterdir())


async def ends_too_early(request: dict) -> str:
    return next(iter(()))


@pytest.mark.parametrize(
    ("llm", "editor", "complaint"),
    [
        (lambda request: 3, my_editor, "returned int, not a text or None"),
        (lambda request: next(iter(())), my_editor, "llm failed: StopIteration"),
        (ends_too_early, my_editor, "llm failed: RuntimeError: coroutine raised StopIteration"),
        (my_llm, lambda image, instruction, seed: b"", "returned bytes, not a PIL image or None"),
        (my_llm, lambda image, instruction, seed: next(iter(())), "editor failed: StopIteration"),
    ],
)
def test_what_fails_or_returns_something_else_stops_the_run(llm, editor, complaint, world, encoder, tmp_path):
    for function, name in ((llm, "llm"), (editor, "editor")):
        function.id = name
    with pytest.raises(RunStopped, match=complaint):
        synthesize(world.failures, world.pairs, encoder, llm=llm, editor=editor, output=tmp_path)


def test_half_a_surrogate_in_an_answer_is_a_mark_in_the_record(world, encoder, tmp_path):
    def half(request: dict) -> str:
        answer = my_llm(request)
        return answer.replace('{"answer": "', '{"answer": "\ud800 ')

    models = {"llm": half, "editor": "world", "check_edits": 0}  # the toy world cannot read such a caption
    records = synthesize(world.of("i2t", 6), world.pairs, encoder, **models, output=tmp_path)
    assert len(records) and all(text.startswith("? ") for text in records["edit_text"])


@pytest.mark.parametrize("how", [{"audit": "lenient"}, {"always_instruct": True}])
def test_another_wording_of_ours_is_on_record_too(how, world, tmp_path):
    models = {"llm": "world/oracle", "editor": "world", "output": tmp_path / "out"}
    records = synthesize(world.of("i2t", 6), world.pairs, world.encoder, **models, **how)
    assert set(records["prompt_digest"]) == {Prompts(**how).digest()} != {SHIPPED.digest()}
    files = pack_records(tmp_path / "out", "me/x", scratch=tmp_path).files
    assert how.items() <= yaml.safe_load(files["config.yaml"]).items()


def test_own_prompts_are_on_record_in_ledger_records_and_card(world, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "audit_i2t.md").write_text(f"Judge as a grocer does.\n{prompts._read('audit_i2t')}")
    how = {"prompts": str(tmp_path / "own"), "domain_notes": "Size decides."}
    models = {"llm": "world/oracle", "editor": "world", "output": tmp_path / "out"}
    records = synthesize(world.of("i2t", 6), world.pairs, world.encoder, **models, **how)
    digest = Prompts(tmp_path / "own", "Size decides.").digest()
    assert set(records["prompt_digest"]) == {digest} != {SHIPPED.digest()}
    assert {call["prompts"] for call in rows(tmp_path / "out")} == {digest}
    parcel = pack_records(tmp_path / "out", "me/x", scratch=tmp_path)
    assert digest in parcel.card and b"Size decides." in parcel.files["config.yaml"]
