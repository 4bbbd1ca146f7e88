"""A disk that is really full: one line with the folder and the space needed; with more space the command goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from chat_server import ChatServer
from provider_server import KEY
from small_world import World, saved

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.toyworld import oracle
from repair_hf.toyworld.errors import LLMErrors


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own, in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("this system has no `mount`")
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, left: int) -> Path:
    """Write a file that leaves so many bytes."""
    filler = disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - left))
    return filler


def ends_in_one_line(words: list[str], out: Path, capsys) -> None:
    capsys.readouterr()
    assert main([*words, "--output", str(out)]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("repair-hf ")]
    assert len(said) == 1 and f"{out}: its disk is full. At least " in said[0], said
    assert said[0].endswith("are free. Free some space; the same command resumes from here.")


def test_train_goes_on_from_its_last_whole_checkpoint(disk, pairs_folder, clip_folder, tmp_path, capsys):
    words = f"train --pairs {pairs_folder} --split all --model {clip_folder} --use-cpu --max-steps 4".split()
    words += "--per-device-train-batch-size 4 --save-strategy steps --save-steps 1 --no-cache-images".split()
    assert main([*words, "--output", str(tmp_path / "whole")]) == 0
    size = sum(path.stat().st_size for path in (tmp_path / "whole" / "checkpoint-1").iterdir())
    filler = fill(disk, 5 * size // 2)
    ends_in_one_line(words, disk / "out", capsys)
    assert (disk / "out" / "checkpoint-1").is_dir() and not (disk / "out" / "summary.json").exists()
    filler.unlink()
    assert main([*words, "--output", str(disk / "out")]) == 0
    one, other = (folder / "model.safetensors" for folder in (tmp_path / "whole", disk / "out"))
    assert one.read_bytes() == other.read_bytes()


def test_synthesize_asks_again_only_what_was_in_flight(disk, clip_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    encoder = DualEncoder.from_pretrained(str(clip_folder))
    world = World.build(
        tmp_path / "world", encoder, 10, keep=lambda row: row["direction"] == "i2t" or row["q"] % 8 == 0
    )
    log, words = tmp_path / "log.jsonl", [*world.command(clip_folder), "--llm", "openai/world", "--editor", "world"]
    with ChatServer(
        lambda body: oracle.answer(body["messages"], body["seed"], LLMErrors()), latency=0.02, log=log
    ) as server:
        words += ["--llm-base-url", server.base_url, "--concurrency", "8"]
        assert main([*words, "--output", str(tmp_path / "whole")]) == 0
        needed = len(log.read_text().splitlines())
        log.unlink()
        filler = fill(disk, 384 * 1024)
        ends_in_one_line(words, disk / "out", capsys)
        asked = len(log.read_text().splitlines())
        assert 0 < asked < needed
        filler.unlink()
        assert main([*words, "--output", str(disk / "out")]) == 0
    digests = [json.loads(line)["digest"] for line in log.read_text().splitlines()]
    assert len(set(digests)) == needed and len(digests) <= needed + 8  # those that were on their way
    assert saved(disk / "out") == saved(tmp_path / "whole")
