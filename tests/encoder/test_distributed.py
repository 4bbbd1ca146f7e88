"""Two processes, as `accelerate launch` starts them, give the results of one; what launchers may not do."""

import argparse
import atexit
import json
import logging
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env
from children import launch
from safetensors.torch import load_file

from repair_hf.cli.main import main
from repair_hf.encoder import dual_encoder, embedder, pixel_store
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import check_launch, processes
from repair_hf.training.batches import OneCaptionPerImage
from repair_hf.training.config import RepairConfig

logger = logging.getLogger(__name__)
ACCELERATE = Path(__file__).parents[2] / "recipes" / "accelerate"
PAIRS_PER_STEP = 8


def work(commands: list[list[str]], mining: list[str], data: dict[str, str]) -> None:
    """What each of two processes does. At its end it names its threads: one of gloo may abort an interpreter."""
    threads = Path("/proc/self/task")
    atexit.register(
        lambda: logger.warning("threads at exit: %s", [each.read_text() for each in threads.glob("*/comm")])
    )
    torch.set_num_threads(1)
    for words in (*commands, mining):
        assert main(words) == 0
    assert main([*mining, "--search", "ivf"]) == 2
    embed(data["model"], data["pairs"], data["output"], processes().index)
    processes().gather(None)


def embed(model: str, source: str, output: str, index: int) -> None:
    """Save the vectors and pixels that one process gets, computed by all in shares of a few items."""
    pairs, folder = load_pairs(source, split="all"), Path(output)
    dual = dual_encoder.DualEncoder.from_pretrained(model, device="cpu", batch_size=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedder, "CAPTIONS_AT_ONCE", 3)
        patch.setattr(pixel_store, "IMAGES_AT_ONCE", 3)
        images, texts = dual.embed_pairs(pairs)
        kept = dual.embed_pairs(pairs, cache_folder=folder / "kept")
        store = pixel_store.PixelStore(pairs.images, "image", dual.preprocessor, folder / "kept")
    np.savez(folder / f"seen-by-{index}", images, texts, *kept, store[:])


RUNS = {
    "default": "",
    "resumed": "",
    "grid": "--paper --max-steps 4 --gradient-accumulation-steps 2",
    "part": "--max-steps 4 --lora-rank 2",
}


@pytest.fixture(scope="module")
def runs(pairs_folder, clip_folder, siglip_folder, records_folder, tmp_path_factory) -> dict[int, Path]:
    """Number of processes -> folder of their runs. Two processes make some in chunks, which changes nothing."""
    folder = tmp_path_factory.mktemp("runs")
    shared = f"train --pairs {pairs_folder} --split all --records {records_folder} --use-cpu --max-steps 9"
    shared += " --learning-rate 0.5 --optim sgd --logging-steps 1 --save-strategy steps --save-steps 5"
    for count in (1, 2):
        output, commands = folder / str(count), {}
        mining = f"mine --pairs {pairs_folder} --split all --model {clip_folder} --output {output / 'mined'}".split()
        for name, words in RUNS.items():
            size = PAIRS_PER_STEP // count // (2 if "accumulation" in words else 1)
            model = siglip_folder if name == "part" else clip_folder
            named = f"--model {model} --output {output / name} --per-device-train-batch-size {size} {words}"
            chunks = "--chunk-size 5" if count == 2 and words else ""
            commands[name] = f"{shared} {named} {chunks}".split()
        commands["resumed"] += ["--resume-from-checkpoint", str(output / "default" / "checkpoint-5")]
        if count == 1:
            assert [main(words) for name, words in commands.items() if name != "resumed"] == [0] * 3
            assert main(mining) == 0
            embed(str(clip_folder), str(pairs_folder), str(output), 0)
        else:
            data = {"model": str(clip_folder), "pairs": str(pairs_folder), "output": str(output)}
            said = launch(work, list(commands.values()), mining, data)
            assert "`search` ivf runs in one process, got 2" in said and said.count("next: repair-hf synthesize") == 1
            assert said.count("world size 2   cpu   float32   8 pairs per step") == len(RUNS), said
            assert "find_unused_parameters" not in said
            assert said.count("threads at exit") == 2 and "gloo" not in said
    return {1: folder / "1", 2: folder / "2"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "grid", "part"])
def test_two_processes_make_the_model_of_one_by_the_same_losses(runs, name):
    """Also by accumulation, in chunks, and with adapters and the sigmoid loss."""
    file = "adapter_model.safetensors" if name == "part" else "model.safetensors"
    one, two = (load_file(folder / name / file) for folder in runs.values())
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)
    lines = [curve(folder / name) for folder in runs.values()]
    for mine, theirs in zip(*lines, strict=True):
        assert ("loss_grid" in mine) == (name == "grid")
        for term in {name for name in mine if name.startswith("l")} - {"learning_rate"} | {"grad_norm"}:
            assert theirs[term] == pytest.approx(mine[term], rel=1e-3), term
    for count, folder in runs.items():
        summary = json.loads((folder / name / "summary.json").read_text())
        assert (summary["processes"], summary["steps"]) == (count, len(lines[0]))


@pytest.mark.slow
def test_two_processes_mine_what_one_does(runs):
    one, two = (pq.read_table(folder / "mined" / "failures.parquet") for folder in runs.values())
    assert two.equals(one) and len(one) > 80


@pytest.mark.slow
def test_the_global_loss_of_a_step_that_is_cut_is_the_mean_over_its_parts(runs, pairs_folder, clip_folder):
    pairs, dual = load_pairs(pairs_folder, split="all"), dual_encoder.DualEncoder.from_pretrained(clip_folder)
    images, texts = map(torch.from_numpy, dual.embed_pairs(pairs))
    step = [anchor for _, anchor in OneCaptionPerImage(pairs.caption_image, PAIRS_PER_STEP, 42)][:PAIRS_PER_STEP]
    losses = []
    for part in (step[:4], step[4:]):
        logits = dual.model.logit_scale.exp().item() * images[pairs.caption_image[part]] @ texts[part].mT
        losses += [torch.nn.functional.cross_entropy(each, torch.arange(4)).item() for each in (logits, logits.mT)]
    assert curve(runs[1] / "grid")[0]["loss_global"] == pytest.approx(sum(losses) / 4, rel=1e-4)


@pytest.mark.slow
def test_a_resumed_run_of_two_processes_ends_where_the_whole_one_does(runs):
    whole, resumed = (load_file(runs[2] / name / "model.safetensors") for name in ("default", "resumed"))
    torch.testing.assert_close(resumed, whole, rtol=1e-5, atol=1e-6)
    assert [line["loss"] for line in curve(runs[2] / "resumed")] == pytest.approx(
        [line["loss"] for line in curve(runs[2] / "default")], rel=1e-5
    )


@pytest.mark.slow
def test_two_processes_embed_and_decode_what_one_does_to_the_bit(runs):
    first, *others = (np.load(file) for file in (runs[1] / "seen-by-0.npz", *sorted(runs[2].glob("seen-by-*.npz"))))
    assert [array.shape for array in first.values()] == [(12, 8), (24, 8), (12, 8), (24, 8), (12, 3, 32, 32)]
    assert len(others) == 2
    for other in others:
        for name, array in first.items():
            np.testing.assert_array_equal(other[name], array)
    assert {file.suffix for file in (runs[2] / "kept").iterdir()} == {".npy"}


# The launcher's environment, as accelerate prepares it


def launched(*words: str) -> argparse.Namespace:
    return _validate_launch_command(launch_command_parser().parse_args([*words, "train.py"]))[0]


STARTED = {"cpu-2": (2, "no"), "one-gpu-fp16": (1, "fp16"), "multi-gpu-fp16": (8, "fp16"), "multi-node": (8, "fp16")}


@pytest.mark.parametrize("name", [path.stem for path in ACCELERATE.iterdir()])
def test_a_config_file_starts_what_it_says(name):
    processes_here, precision = STARTED[name]
    args = launched("--config_file", str(ACCELERATE / f"{name}.yaml"))
    assert args.multi_gpu == (processes_here > 1)
    if args.multi_gpu:
        environment = prepare_multi_gpu_env(args)
        assert int(args.nproc_per_node) == processes_here
    else:
        environment = prepare_simple_launcher_cmd_env(args)[1]
        assert args.num_processes == 1
    assert environment["ACCELERATE_MIXED_PRECISION"] == precision
    assert environment.get("CUDA_VISIBLE_DEVICES") == {"cpu-2": "-1,-1", "one-gpu-fp16": "0"}.get(name)


def test_processes_that_do_not_know_of_one_another_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # as of torchrun; the libraries look for LOCAL_RANK too
    with pytest.raises(UserError, match="The launcher started 2 processes, but they see 1"):
        check_launch(1)


@pytest.mark.parametrize("words", [["run", "recipes/toy"], ["demo"]])
def test_what_runs_its_stages_in_one_process_refuses_to_be_several(monkeypatch, capsys, words):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(words) == 2
    assert "one after the other in one process, and the launcher started 2. Run it without" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ACCELERATE_USE_FSDP", "true", "launcher shards the model.*recipes/accelerate"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "launcher shards the model.*recipes/accelerate"),
        ("ACCELERATE_MIXED_PRECISION", "fp16", "`fp16` needs a GPU"),
    ],
)
def test_launchers_that_shard_the_model_or_need_a_gpu_are_refused(monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=message):
        RepairConfig(report_to="none", use_cpu=True)


def curve(folder: Path) -> list[dict]:
    return [line for line in json.loads((folder / "trainer_state.json").read_text())["log_history"] if "loss" in line]
