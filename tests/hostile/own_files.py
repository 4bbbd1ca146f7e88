"""Damaged files of our own by name: of trainings, of stages, and of people's judgements."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hostile.inputs import DEEP, Damage, whole

SUMMARIES: dict[str, tuple[Damage, str]] = {
    f"summary.json: {name}": (whole("summary.json", content), "is damaged")
    for name, content in {"cut": b'{"steps', "list": b"[]", "deep": DEEP}.items()
}
COSTS: dict[str, tuple[Damage, str]] = {"summary.json: paid": (whole("summary.json", b'{"paid": 1}'), "is damaged")}


def in_checkpoint(*damages: Damage) -> Damage:
    """Damage the newest checkpoint of a training that has not finished."""

    def damage(folder: Path) -> None:
        (folder / "summary.json").unlink()
        for each in damages:
            each(folder / "checkpoint-2")

    return damage


def gone(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def flipped(name: str) -> Damage:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)

    return damage


STATES, SEAL = ("optimizer.pt", "scheduler.pt", "rng_state.pth"), "repair_run.json"
CHECKPOINTS: dict[str, Damage] = {
    **{f"no {name}": in_checkpoint(gone(name)) for name in (*STATES, "trainer_state.json", SEAL)},
    **{f"a flipped bit of {name}": in_checkpoint(flipped(name)) for name in (*STATES, "model.safetensors")},
    **{f"{SEAL} of {kind}": in_checkpoint(whole(SEAL, content))
       for kind, content in {"brackets": DEEP, "a list": b"[1]", "nothing": b"", "bytes": b"\xff\x00",
                             "less": b'{"run": {}}', "a list of files": b'{"run": {}, "files": [1]}'}.items()},
    "no steps": in_checkpoint(whole("trainer_state.json", b"{}")),
}  # fmt: skip


def checkpoints(words: str) -> dict[str, tuple[Damage, str]]:
    """Each damage of a checkpoint, and words of what is said of it."""
    return {name: (damage, words) for name, damage in CHECKPOINTS.items()}


def judged(folder: Path) -> None:
    """Lay out a task of annotation with two answers in a folder of records."""
    task = folder / "people" / "qc"
    (task / "answers").mkdir(parents=True)
    (folder / "versions.json").write_text(json.dumps({"command": "synthesize", "commit": None, "packages": {}}))
    (task / "task.json").write_text(json.dumps({"task": "qc", "size": 200, "seed": 0}))
    items = [f"{k},,photos,t2i,{k < 2},9" for k in range(3)]
    (task / "items.csv").write_text("\n".join(["item,record_id,dataset,direction,accepted,population", *items]) + "\n")
    lines = [json.dumps({"annotator": "ann", "item": str(k), "verdict": "genuine"}) for k in range(3)]
    (task / "answers" / "ann.jsonl").write_text("\n".join(lines) + "\n")


def answer(content: bytes) -> Damage:
    def damage(folder: Path) -> None:
        with (folder / "people" / "qc" / "answers" / "ann.jsonl").open("ab") as file:
            file.write(content + b"\n")

    return damage


LEFT_OUT = "left out 1 lines that are no answers"
ANSWERS: dict[str, tuple[Damage, str]] = {
    name: (answer(content), LEFT_OUT)
    for name, content in {
        "brackets": DEEP,
        "bytes": b"\xff\xfe",
        "half a pair": b'{"annotator": "ann", "item": "1", "verdict": "\\ud800"}',
        "list": b"[1]",
        "unknown verdict": b'{"annotator": "ann", "item": "1", "verdict": "maybe"}',
        "verdict of a list": b'{"annotator": "ann", "item": "1", "verdict": ["genuine"]}',
        "no verdict": b'{"annotator": "ann", "item": "1"}',
        "item of a number": b'{"annotator": "ann", "item": 1, "verdict": "genuine"}',
    }.items()
}
HEAD = b"item,record_id,dataset,direction,accepted,population\n"
ITEMS: dict[str, tuple[Damage, str]] = {
    f"items.csv: {name}": (whole("people/qc/items.csv", content), "items.csv is damaged")
    for name, content in {
        "empty": b"",
        "bytes": b"\xff\x00\xff",
        "other columns": b"a,b\n1,2\n",
        "text for a number": HEAD + b"1,,photos,t2i,True,x\n",
        "text for a truth": HEAD + b"1,,photos,t2i,x,9\n",
    }.items()
}
TASKS: dict[str, tuple[Damage, str]] = {
    f"task.json: {name}": (whole("people/qc/task.json", content), "task.json is damaged")
    for name, content in {"brackets": DEEP, "list": b"[]", "other": b"{}", "bytes": b"\xff"}.items()
}
