"""`repair-hf train` from the command line: what it writes, prints and refuses, how it goes on and never repeats."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from PIL import Image
from training_runs import curve
from transformers import AutoModel

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import DROPPED_FEATURES, save_records

WRONG = (("text", "caption"), ("image", "image"))


@pytest.fixture
def flags(pairs_folder, clip_folder, records_folder, tmp_path) -> list[str]:
    words = f"train --pairs {pairs_folder} --split all --model {clip_folder} --output {tmp_path / 'out'} --use-cpu"
    words += f" --records {records_folder} --per-device-train-batch-size 4 --max-steps 4 --learning-rate 1e-2"
    return words.split()


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_trains_once_and_says_what_comes_next(flags, tmp_path, capsys):
    assert main(flags) == 0
    printed = capsys.readouterr().out
    found = summary(tmp_path / "out")
    assert found["steps"] == 4 and found["fill"]["anchors"] == 24
    assert "loss    batch: it compares all pairs of a batch\n" in printed
    beside = [f"beside {found['fill'][f'beside_{kind}']} a wrong {name}" for kind, name in WRONG]
    assert f"pairs   24 captions with their images; {', '.join(beside)}\n" in printed
    used = found["edits_encoded"]
    assert f"edits   4 steps use {used['i2t']} of 12 I2T edits and {used['t2i']} of 12 T2I edits: " in printed
    assert f"T2I edits: {(used['i2t'] + used['t2i']) / 24:.1%} of all\n" in printed
    *_, plain, measured = printed.splitlines()
    out = tmp_path / "out"
    assert plain.startswith("next: repair-hf train --pairs") and "--records" not in plain and "--max-steps 4" in plain
    assert f"--split all --model {flags[6]} " in plain and plain.endswith(f" --output {out}-plain")
    evaluate = f"evaluate {flags[6]} {out}-plain {out} --pairs {flags[2]} --split validation"
    assert measured == f"next: repair-hf {evaluate} --output {out}-validation"
    weights = tmp_path / "out" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(flags) == 0  # nothing is trained again
    assert (weights.stat().st_mtime_ns, capsys.readouterr().out) == (before, printed)
    assert main([*flags, "--seed", "2"]) == 2
    assert "finished result with other options: seed (42 -> 2)" in capsys.readouterr().err
    assert AutoModel.from_pretrained(tmp_path / "out").config.model_type == "clip"


def test_what_was_begun_goes_on_with_its_own_options_alone(flags, tmp_path, capsys, caplog):
    going_on, other = [*flags, "--save-strategy", "steps", "--save-steps", "3"], ["--seed", "2"]
    assert main(going_on) == 0
    (tmp_path / "out" / "summary.json").unlink()  # as if killed before the end
    caplog.clear()
    for more in ([], ["--dry-run"]):
        assert main([*going_on, *other, *more]) == 2
        assert "is of another run: seed (42 -> 2)" in capsys.readouterr().err
    assert "other options" not in caplog.text
    faster = ["--chunk-size", "2", "--dataloader-num-workers", "1", "--logging-steps", "2"]  # learns the same
    assert main([*going_on, *faster]) == 0
    assert summary(tmp_path / "out")["steps"] == 4
    (tmp_path / "out" / "summary.json").unlink()
    for checkpoint in (tmp_path / "out").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    assert main([*flags, *other]) == 0  # nothing is there to go on from
    (line,) = [line for line in caplog.messages if "was started with other options" in line]
    assert "seed (42 -> 2)" in line and "save_s" in line
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["seed"] == 2


@pytest.mark.slow  # a start of Python for each kill
@pytest.mark.parametrize(("kills", "extra"), [(20, ""), (2, "--gradient-accumulation-steps 2 --chunk-size 3")])
def test_a_killed_run_continues_the_curve_of_one_that_was_not(kills, extra, flags, tmp_path):
    """Each kill comes when another file of a checkpoint appears; every other one by SIGTERM."""
    steps = f"--learning-rate 1e-4 --max-steps {15 * kills} --save-strategy steps --save-steps 7 --logging-steps 5"
    words = [*flags, "--fill", "paper", "--loss", "both", *steps.split(), *extra.split()]
    python = [sys.executable, "-m", "repair_hf"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # several may add up in another order
    subprocess.run([*python, *words, "--output", str(tmp_path / "whole")], env=one_thread, check=True)
    events = [f"out/checkpoint-*/{name}" for name in ("model.safetensors", "*.pt", "rng*", "trainer*")]
    killed = 0
    while killed < kills or not (tmp_path / "out" / "summary.json").is_file():
        if (tmp_path / "out" / "summary.json").is_file():  # through before it was killed so often: once more
            shutil.rmtree(tmp_path / "out")
            killed = 0
        with (tmp_path / "said").open("a") as said:
            process = subprocess.Popen([*python, *words], env=one_thread, stderr=said)
        event, before = events[killed % len(events)], set(tmp_path.glob("out/checkpoint-*"))
        while process.poll() is None and killed < kills and {each.parent for each in tmp_path.glob(event)} <= before:
            time.sleep(0.001)
        if killed < kills and process.poll() is None:
            number = signal.SIGTERM if killed % 2 else signal.SIGKILL
            process.send_signal(number)
            assert process.wait() in (-number, 128 + number, 0)  # 0 if it was just done
            killed += 1
        process.wait()
    assert killed == kills
    said = (tmp_path / "said").read_text()
    assert "leaked semaphore" not in said and "Traceback" not in said
    states = [json.loads((tmp_path / name / "trainer_state.json").read_text()) for name in ("whole", "out")]
    whole, resumed = (state["log_history"] for state in states)
    names = ("step", "loss", "loss_global", "loss_grid", "logit_scale", "grad_norm", "learning_rate")
    for one, other in zip(whole[:-1], resumed[:-1], strict=True):  # the last line says how long it took
        assert [other[name] for name in names] == pytest.approx([one[name] for name in names], rel=1e-5, abs=1e-5)
    assert {5, 7, 10, 14} <= {line["step"] for line in whole}
    weights = [AutoModel.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "out")]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5)


def test_a_dry_run_says_what_is_trained_takes_two_steps_and_writes_nothing(flags, tmp_path, capsys):
    assert main([*flags, "--dry-run", "--save-strategy", "steps", "--save-steps", "1"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert not (tmp_path / "out").exists()
    assert [line.split()[0] for line in shown] == ["world", "loss", "pairs", "edits", "steps", "time", "memory"]
    assert re.fullmatch(r"steps   4   4 training pairs each: \d+ images and \d+ captions to encode", shown[4])
    assert re.fullmatch(r"time    \S+ s per step on this machine: 0:00:0\d \(h:mm:ss\) in all, .*", shown[5])
    assert re.fullmatch(r"memory  \d+\.\d GiB at the peak of two steps", shown[6])
    assert main(flags) == 0
    assert capsys.readouterr().out.splitlines()[:4] == shown[:4]  # what is trained
    other = [*flags, "--output", str(tmp_path / "other"), "--dry-run"]
    assert main([*other, "--loss", "none"]) == 0
    plain = capsys.readouterr().out
    assert "loss    none: " in plain and "pairs   24 captions with their images\n" in plain and "edit" not in plain
    assert main([*other, "--paper"]) == 0
    paper = capsys.readouterr().out
    assert "loss    grid: " in paper and re.search(r"; beside \d+ a wrong caption, beside \d+ a wrong image\n", paper)


# Grids of two rows are slow here: training/test_step.py compares the loss of either size.
@pytest.mark.parametrize(("directions", "side"), [("i2t t2i", 3), pytest.param("t2i", 2, marks=pytest.mark.slow)])
def test_zero_logits_give_the_papers_grid_loss_whatever_share_has_a_grid(
    directions, side, flags, clip, clip_folder, repaired, tmp_path
):
    """Few anchors have grids, so some batches of four have one or two, and the others none."""
    queries = ["green_square.png", "green_square.png#1"]
    records = repaired.filter(lambda row: row["direction"] in directions and row["q_id"] in queries)
    records = records.filter(lambda row: row["fp_id"] != "green_circle.png#1")  # fits the image beside it: masked
    save_records(tmp_path / "records", records, Dataset.from_dict(dict.fromkeys(DROPPED_FEATURES, [])))
    shutil.copytree(clip_folder, tmp_path / "clip")
    (zero := deepcopy(clip)).logit_scale.data.fill_(-30)
    zero.save_pretrained(tmp_path / "clip")
    places = ["--model", str(tmp_path / "clip"), "--records", str(tmp_path / "records")]
    rest = "--paper --max-steps 6 --learning-rate 1e-9 --logging-steps 1".split()
    assert main([*flags, *places, *rest]) == 0
    lines = curve(tmp_path / "out")
    grid_losses = {round(line["loss_grid"], 5) for line in lines}
    assert 0 in grid_losses and len(grid_losses) > 1
    assert all(math.log(2) <= value + 1e-5 and value <= math.log(side) + 1e-5 for value in grid_losses - {0})
    for line in lines:
        assert line["loss"] == pytest.approx(line["loss_global"] + 0.5 * line["loss_grid"], abs=1e-4)


def test_declared_near_duplicates_are_masked(clip_folder, tmp_path, capsys):
    """The first loss is that of a matrix without the four cells in which two copies of a photograph stand."""
    folder = tmp_path / "photos"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(256, size=(5, 30, 40, 3), dtype=np.uint8)
    pictures = [Image.fromarray(values) for values in noise]
    pictures.append(pictures[0].copy())
    pictures[5].putpixel((20, 15), (0, 0, 0))  # the first again, but for a pixel
    for number, picture in enumerate(pictures):
        picture.save(folder / f"{number}.png")
    lines = [json.dumps({"image": f"{number}.png", "captions": [f"red circle {number}"]}) for number in range(6)]
    (folder / "captions.jsonl").write_text("\n".join(lines))
    encoder = DualEncoder.from_pretrained(clip_folder, device="cpu")
    images, texts = map(torch.from_numpy, encoder.embed_pairs(load_pairs(folder, split="all")))
    alike = (images @ images.mT).fill_diagonal_(-1)
    of_copy, others = alike[0, 5].item(), alike.index_fill(0, torch.tensor([0, 5]), -1)
    assert of_copy > others.max()
    mask, losses = torch.zeros(6, 6, dtype=torch.bool), {}
    mask[0, 5] = mask[5, 0] = True
    logits = encoder.model.logit_scale.exp().detach() * images @ texts.mT
    for name, seen in (("all", logits), ("masked", logits.masked_fill(mask, -torch.inf))):
        own = torch.arange(6)
        losses[name] = sum(torch.nn.functional.cross_entropy(each, own).item() for each in (seen, seen.mT)) / 2
    words = f"train --pairs {folder} --split all --model {clip_folder} --use-cpu --output {tmp_path / 'out'}"
    words += " --per-device-train-batch-size 6 --max-steps 1 --near-duplicates"
    share = max(alike[0, 1:5].max().item(), alike[5, 1:5].max().item())
    assert main([*words.split(), str((of_copy + share) / 2)]) == 0
    assert summary(tmp_path / "out")["loss"] == pytest.approx(losses["masked"], rel=1e-4)
    assert losses["masked"] < losses["all"] - 1e-3
    assert main(words.split()[:-1]) == 2
    assert "finished result with other options: near_duplicates (" in capsys.readouterr().err


def test_evaluation_is_on_the_validation_split(flags, tmp_path, capsys):
    assert main([*flags, "--split", "train", "--eval-strategy", "epoch", "--validation-split", "all"]) == 0
    assert summary(tmp_path / "out")["eval_n_images"] == 12
    assert "eval    R@1 I2T" in capsys.readouterr().out
