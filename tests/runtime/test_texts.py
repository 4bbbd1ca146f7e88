"""Readers of text that others wrote: any text gives a value, a reason, or one line; never another error."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from repair_hf.analysis.people.judgements import read_judgements
from repair_hf.llm.answers import AnswerError, read_answer
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.sources import read_source
from repair_hf.records.dataset import load_dropped, load_records
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.options import PairsOptions, UserError
from repair_hf.runtime.redaction import without_secrets
from repair_hf.runtime.texts import UnreadableText, parse_json, parse_yaml

LOTS, SOME = 20_000, 1_000  # deeper than any parser goes, and than ours does: YAML takes a second for lots
HALF = "\ud83d"
MANY = settings(
    max_examples=20,
    deadline=None,  # no test may depend on the speed of the machine
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TEXTS = st.text(st.characters(codec=None), max_size=8) | st.sampled_from([HALF, "\0", "../x.png", "http://h/x.png"])
KEYS = st.sampled_from(
    """image captions split images annotations id file_name image_id caption sentences raw filename filepath annotator
    item verdict pairs strict""".split()
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXTS, inner, max_size=4), max_leaves=12
)
DOCUMENTS = VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60)
DOCUMENTS |= st.sampled_from([b"[" * SOME, b'{"image":' * SOME, b'"\\ud800"', b'["' + b"\xed\xa0\x80" + b'"]'])


class Verdict(BaseModel):
    image: str
    captions: list[str]


@pytest.mark.parametrize(
    ("parse_text", "text", "why"),
    [
        (parse_json, "[" * LOTS, "nested too deeply"),
        (parse_yaml, "[" * SOME, "nested too deeply"),
        *((parse_text, b'["\xff"]', "invalid start byte") for parse_text in (parse_json, parse_yaml)),
    ],
)
def test_what_cannot_be_used_has_a_reason(parse_text, text, why):
    with pytest.raises(UnreadableText, match=why):
        parse_text(text)


def test_reads_what_can_be_used():
    assert parse_json('["\\ud83d\\ude00"]') == ["\U0001f600"]
    assert parse_json("\ufeff[1]".encode()) == parse_json("[1]".encode("utf-16")) == [1]
    assert parse_yaml("a: [1]\nb: &b [2]") == {"a": [1], "b": [2]}
    with pytest.raises(UnreadableText, match="surrogates not allowed"):
        parse_json(f'{{"a": ["\\u{ord(HALF):x}"]}}')


@pytest.mark.parametrize("text", ["a: &a [1]\nb: [*a, *a]", "&a [*a]", "a: &a {x: 1}\nb: {<<: *a}"])
def test_yaml_takes_no_aliases(text):
    """Thirty lines of them can stand for more values than fit into memory."""
    with pytest.raises(UnreadableText, match=r"repeats a value by the alias `\*a`; write it out"):
        parse_yaml(text)


@MANY
@given(DOCUMENTS)
def test_any_bytes_are_a_value_or_unreadable(data):
    for parse_text in (parse_json, parse_yaml):
        try:
            parse_text(data)
        except UnreadableText as error:
            assert str(error) and "\n" not in str(error)


@MANY
@given(st.lists(DOCUMENTS | st.builds(lambda c: json.dumps({"image": "x.png", "captions": c}).encode(), VALUES)))
def test_captions_leave_out_bad_lines(tmp_path, lines):
    (tmp_path / "captions.jsonl").write_bytes(b"\n".join(lines))
    problems = Problems()
    try:
        _, rows, _ = read_source(PairsOptions(str(tmp_path)), None, ("all",), problems)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        n_lines = sum(bool(line.strip()) for line in b"\n".join(lines).split(b"\n"))
        assert len(rows) + sum(problem.count for problem in problems.found()) == n_lines


@MANY
@given(
    DOCUMENTS
    | st.builds(lambda i, a: json.dumps({"images": i, "annotations": a}).encode(), st.lists(VALUES), st.lists(VALUES))
    | st.builds(lambda i: json.dumps({"images": [{"sentences": []}, *i]}).encode(), st.lists(VALUES))
)
def test_caption_files_leave_out_bad_rows_or_are_one_line(tmp_path, data):
    (tmp_path / "x.json").write_bytes(data)
    try:
        options = PairsOptions(str(tmp_path / "x.json"), image_folder=str(tmp_path))
        images, rows, _ = read_source(options, None, ("all",), Problems())
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert set(rows["image"]) <= set(range(len(images)))


@MANY
@given(DOCUMENTS.map(lambda data: data.decode("utf-8", "replace")) | TEXTS)
def test_an_answer_of_a_model_is_an_answer_or_an_error_of_its_kind(text):
    try:
        read_answer(text, "stop", Verdict).model_dump_json().encode()
    except AnswerError as error:
        assert str(error).encode("utf-8", "surrogatepass")


@MANY
@given(DOCUMENTS | st.builds(lambda a: json.dumps({"task": "qc", "annotator": "ann", "answers": a}).encode(), VALUES))
def test_files_of_judgements_are_answers_or_one_line(tmp_path, data):
    (tmp_path / "x.json").write_bytes(data)
    try:
        judged = read_judgements([tmp_path / "x.json"])
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert all({"annotator", "item"} <= set(table.columns) for table in judged.values())


@MANY
@given(DOCUMENTS | st.dictionaries(KEYS, VALUES).map(lambda recipe: yaml.safe_dump(recipe).encode("utf-8", "replace")))
def test_recipes_are_options_or_one_line(tmp_path, data):
    (tmp_path / "x.yaml").write_bytes(data)
    try:
        (options,) = parse((PairsOptions,), ["--config", str(tmp_path / "x.yaml")], "repair-hf x")
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(options, PairsOptions)


@settings(MANY, max_examples=8)
@given(st.binary(max_size=60) | DOCUMENTS, st.sampled_from(["README.md", "records/train-0.parquet"]))
def test_records_are_read_or_one_line(tmp_path, data, name):
    (tmp_path / "records").mkdir(exist_ok=True)
    (tmp_path / "README.md").write_bytes(b"---\nconfigs:\n- config_name: records\n---\n")
    (tmp_path / name).write_bytes(b"---\n" + data + b"\n---\n" if name == "README.md" else data)
    for load in (load_records, load_dropped):
        try:
            assert len(load(tmp_path)) == 0
        except UserError as error:
            assert re.search("holds no records|is damaged", str(error)) and "\n" not in str(error)


def test_a_key_that_stands_twice_is_an_error_also_further_in():
    for text in ("max_usd: 2\nseed: 1\nmax_usd: 20\n", "a: {seed: 1, 'seed': 2}"):
        with pytest.raises(UnreadableText, match="stands there twice"):
            parse_yaml(text)
    assert parse_yaml("a: {seed: 1}\nb: {seed: 1}\n1: x\n'1': y\n")["b"] == {"seed": 1}


@pytest.mark.parametrize(("length", "shown"), [(16, "key: <hidden>"), (15, "key: " + 15 * "k")])
def test_a_value_of_16_characters_is_a_key_and_a_shorter_one_a_placeholder(length, shown, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", length * "k")
    assert without_secrets("key: " + length * "k") == shown
