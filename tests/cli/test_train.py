"""`repair-hf train` from the command line: what it writes, prints and refuses, how it goes on and never repeats."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from repair_hf.cli.main import main
from repair_hf.training.checkpoint_files import DIGESTS


@pytest.fixture
def flags(pairs_folder, clip_folder, records_folder, tmp_path) -> list[str]:
    words = f"train --pairs {pairs_folder} --split all --model {clip_folder} --output {tmp_path / 'out'} --use-cpu"
    words += f" --records {records_folder} --per-device-train-batch-size 4 --max-steps 4 --learning-rate 1e-2"
    return words.split() + ["--cache-folder", str(tmp_path / "cache")]


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_trains_once_and_says_what_comes_next(flags, tmp_path, capsys):
    assert main(flags) == 0
    printed = capsys.readouterr().out
    found = summary(tmp_path / "out")
    assert found["steps"] == 4 and found["grids"]["anchors"] == 24
    full, some = (found["grids"][f"grids_{n}"] for n in (3, 2))
    assert f"{full + some} of 24 captions have a grid ({full} full)" in printed
    assert found["edits_reachable"] == {"i2t": 1.0, "t2i": 1.0}
    assert (
        f"edits   usable in training: 100% i2t ({found['samples_encoded']['i2t']} used in this run), 100% t2i"
        in printed
    )
    assert "next: repair-hf evaluate --pairs" in printed and f"--model {tmp_path / 'out'}" in printed
    weights = tmp_path / "out" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(flags) == 0  # nothing is trained again
    assert (weights.stat().st_mtime_ns, capsys.readouterr().out) == (before, printed)
    assert main([*flags, "--grid-weight", "2"]) == 2
    assert "finished result with other options: grid_weight (0.5 -> 2.0)" in capsys.readouterr().err
    assert AutoModel.from_pretrained(tmp_path / "out").config.model_type == "clip"


def test_a_stopped_run_goes_on_from_its_newest_checkpoint(flags, tmp_path):
    going_on = [*flags, "--save-strategy", "steps", "--save-steps", "3"]
    assert main(going_on) == 0
    whole = AutoModel.from_pretrained(tmp_path / "out").state_dict()
    for name in ("summary.json", "model.safetensors", "trainer_state.json"):  # as if killed between steps 3 and 4
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / "checkpoint-4").rename(tmp_path / "gone")
    assert main(going_on) == 0
    for name, value in AutoModel.from_pretrained(tmp_path / "out").state_dict().items():
        assert value.equal(whole[name]), name


@pytest.mark.parametrize("damage", ["flip", "optimizer.pt", "scheduler.pt"])
def test_a_damaged_checkpoint_does_not_change_the_result(damage, flags, tmp_path, caplog):
    going_on = [*flags, "--save-strategy", "steps", "--save-steps", "2"]
    assert main(going_on) == 0
    out = tmp_path / "out"
    whole = (out / "model.safetensors").read_bytes()
    (out / "summary.json").unlink()  # as if killed before the end
    if damage == "flip":
        weights = bytearray((out / "checkpoint-4" / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (out / "checkpoint-4" / "model.safetensors").write_bytes(weights)
    else:
        (out / "checkpoint-4" / damage).unlink()
    caplog.clear()
    assert main(going_on) == 0
    (line,) = [line for line in caplog.messages if "Left aside" in line]
    assert "checkpoint-4" in line and line.endswith("training resumes from checkpoint-2.")
    assert (out / "model.safetensors").read_bytes() == whole


def test_what_was_begun_goes_on_with_its_own_options_alone(flags, tmp_path, capsys):
    assert main([*flags, "--save-strategy", "steps", "--save-steps", "3"]) == 0
    (tmp_path / "out" / "summary.json").unlink()  # as if killed before the end
    assert main([*flags, "--save-strategy", "steps", "--save-steps", "3", "--grid-weight", "2"]) == 2
    assert "an interrupted run with other options: grid_weight (0.5 -> 2.0)" in capsys.readouterr().err
    faster = ["--chunk-size", "2", "--dataloader-num-workers", "1", "--logging-steps", "2"]  # learns the same
    assert main([*flags, "--save-strategy", "steps", "--save-steps", "3", *faster]) == 0
    assert summary(tmp_path / "out")["steps"] == 4


@pytest.mark.slow  # a start of Python for each kill
@pytest.mark.parametrize(("kills", "extra"), [(20, ""), (2, "--gradient-accumulation-steps 2 --chunk-size 3")])
def test_a_killed_run_continues_the_curve_of_one_that_was_not(kills, extra, flags, tmp_path):
    """Each kill comes when another file of a checkpoint appears; every other one by SIGTERM."""
    steps = f"--learning-rate 1e-4 --max-steps {15 * kills} --save-strategy steps --save-steps 7 --logging-steps 5"
    words = [*flags, "--grids", "paper", "--slot1", "mixed", *steps.split(), *extra.split()]
    python = [sys.executable, "-m", "repair_hf"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # several may add up in another order
    subprocess.run([*python, *words, "--output", str(tmp_path / "whole")], env=one_thread, check=True)
    events = [f"out/checkpoint-*/{name}" for name in ("model.safetensors", "*.pt", "rng*", DIGESTS, "trainer*")]
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
    for one, other in zip(whole[:-1], resumed[:-1], strict=True):  # the last line tells how long it took
        assert [other[name] for name in names] == pytest.approx([one[name] for name in names], rel=1e-5, abs=1e-5)
    assert [line["step"] for line in whole[:4]] == [5, 7, 10, 14]
    weights = [AutoModel.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "out")]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5)


def test_dry_run_counts_the_grids_and_writes_nothing(flags, tmp_path, capsys, caplog):
    assert main([*flags, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "of 24 captions have a grid" in shown
    assert not (tmp_path / "out").exists()
    assert main(flags) == 0
    assert shown.partition("grids")[2] in capsys.readouterr().out  # the very grids that are trained on
    other = [*flags, "--output", str(tmp_path / "other"), "--dry-run"]
    assert main([*other, "--negatives", "none"]) == 0
    assert "0 of 24 captions have a grid (0 full)" in capsys.readouterr().out
    assert main([*other, "--negatives", "grid", "--known-matches", "negative"]) == 0
    assert "negatives are known true pairs; kept as negatives" in capsys.readouterr().out
    assert main([*other, "--grids", "paper", "--counterparts", "annotation"]) == 0
    assert "no edit is used; every match is an original annotation" in capsys.readouterr().out
    few = "Only 0% i2t, 0% t2i of the edits can train. Leave out `--grids paper --counterparts annotation` to "
    assert few in caplog.text


def test_runs_from_before_both_sides_are_recognised_where_they_mean_the_same(flags, tmp_path, capsys):
    """Then all runs trained by the paper's rule, and no folder named it."""
    assert main([*flags, "--grids", "paper"]) == 0
    config = tmp_path / "out" / "config.yaml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith(("grids:", "own_failures_share:"))))
    assert len(lines) == len(config.read_text().splitlines()) + 2
    before = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    assert main([*flags, "--grids", "paper"]) == 0
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == before
    assert (
        main(flags) == 2
        and "other options: negatives (grid -> batch), grids (absent -> both)" in capsys.readouterr().err
    )


def test_a_first_look_trains_on_its_edits(tmp_path):
    world, words = tmp_path / "world", ["--pairs", str(tmp_path / "world"), "--model", "world/base"]
    sizes = "--train 60 --validation 20 --test 20".split()
    assert main(["world", "build", "--output", str(world), *sizes]) == 0
    assert main(["mine", *words, "--max-queries", "8", "--output", str(tmp_path / "failures")]) == 0
    models = ["--llm", "world/oracle", "--editor", "world"]
    mined = ["--failures", str(tmp_path / "failures"), "--output", str(tmp_path / "records")]
    assert main(["synthesize", *words, *models, *mined]) == 0
    short = "--max-steps 20 --per-device-train-batch-size 32 --use-cpu".split()
    trained = ["--records", str(tmp_path / "records"), "--output", str(tmp_path / "out"), *short]
    assert main(["train", *words, *trained, "--cache-folder", str(tmp_path / "cache")]) == 0
    found = summary(tmp_path / "out")
    kept = {way: counts["kept"] for way, counts in summary(tmp_path / "records")["directions"].items()}
    assert found["edits_reachable"] == {"i2t": 1.0, "t2i": 1.0} and min(kept.values()) > 2
    for way, count in found["samples_encoded"].items():
        assert kept[way] / 2 < count <= kept[way]


def test_evaluation_is_on_the_validation_split(flags, tmp_path, capsys):
    assert main([*flags, "--split", "train", "--eval-strategy", "epoch", "--validation-split", "all"]) == 0
    assert summary(tmp_path / "out")["eval_n_images"] == 12
    assert "eval    R@1 I2T" in capsys.readouterr().out


def test_a_stopped_training_has_only_its_checkpoints(monkeypatch, capsys):
    def stop(words):
        raise KeyboardInterrupt

    monkeypatch.setattr("repair_hf.cli.main._run", stop)
    assert main(["train"]) == 130
    assert "resumes from the last checkpoint, if --save-strategy wrote one." in capsys.readouterr().err
