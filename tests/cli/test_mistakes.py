"""A mistake on a command line is reported in one line, and nothing is written."""

from dataclasses import fields
from string import Template

import pytest

from repair_hf.cli.main import COMMANDS, main
from repair_hf.cli.subcommands import load_command
from repair_hf.runtime.options import UserError, declaration_of, default_of, is_needed

MINE = "mine --pairs $pairs --split all --model $clip --output $out"
TRAIN = MINE.replace("mine", "train") + " --records $records --use-cpu --per-device-train-batch-size 4 --max-steps 4"
STUDY = "study --output $out"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (f"{MINE} --d-i2t 0 --d-t2i 0", "`d_i2t` and `d_t2i` are both 0, and nothing would be mined"),
        (f"{MINE} --model /nowhere", "`/nowhere` is not a local folder, and cannot be loaded as a dual encoder"),
        (f"{MINE} --model world/bse", "is neither a folder nor the retriever of the toy world: world/base."),
        (f"{MINE} --split dev", "has no image in split `dev`"),
        (f"{MINE} --image-id-column x", "has no column `x`; it has ['image', 'captions']. Set `--image-id-column`."),
        (f"{TRAIN} --epochs 3", "`--num-train-epochs` for `--epochs`"),
        (f"{TRAIN} --records /nowhere", "holds no records"),
        (f"{TRAIN} --output-dir elsewhere", "Did you mean `--output` for `--output-dir`?"),
        (f"{TRAIN} --per-device-train-batch-size 13", "needs as many different images"),
        ("show absent-folder", "absent-folder holds no records"),
        ("show absent-folder --output x.jpg", "`output` must be an .html file, got 'x.jpg'."),
        ("annotate qc $empty", "holds no records"),
        ("analyze no/such-records --output x", "holds no records"),
        ("analyze no/such-run", "no/such-run is not a local folder; give the folder of a run"),
        ("push records $empty --repo me/x", "holds no records to push; give a folder that `repair-hf synthesize` has"),
        ("push model $empty --repo me/x", "holds no model to push; give a folder that `repair-hf train` has finished"),
        ("push model $clip --repo me/x --results $empty", "holds no finished evaluation"),
        ("push model $clip --repo me/x", "HF_HUB_OFFLINE is set, so nothing can be pushed"),
        ("push recipes $empty --repo me/x", "`recipes` is not a word for `repair-hf push`"),
        (f"{STUDY} --methods negclop", "Did you mean `negclip`"),
        (STUDY + ' --budgets {"calls=5":["lackip"]}', "'lackip', which is unknown"),
        (f"{STUDY} --size tiny --pairs x", "`size` tiny is one of the toy world, but `pairs` names x"),
        (f"{STUDY} --batch", "`batch` needs one process and a provider with a batch API, got --llm world/oracle"),
        (STUDY + ' --training {"max_steps":3}', "'max_steps', which the study sets itself"),
        (STUDY + ' --training {"lerning_rate":3}', "'lerning_rate', which `repair-hf train` does not know"),
    ],
)
def test_a_mistake_is_one_line(
    words, complaint, pairs_folder, clip_folder, records_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("HF_TOKEN", "hf_some_token_of_mine")
    (tmp_path / "empty").mkdir()
    places = {"pairs": pairs_folder, "clip": clip_folder, "records": records_folder, "empty": tmp_path / "empty"}
    argv = Template(words).substitute(places, out=tmp_path / "out").split()
    assert main(argv) == 2
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith(f"repair-hf {argv[0]}: error: ") and complaint in error
    assert argv[0] == "train" or not (tmp_path / "out").exists()


def test_every_bound_of_every_command_is_checked_where_its_options_are_made():
    modules = [vars(load_command(name)) for name in COMMANDS]
    groups = [module["OPTIONS"] for module in modules if "OPTIONS" in module]
    groups += [types for module in modules for types, _ in module.get("ACTIONS", {}).values()]
    kinds, count = {each for types in groups for each in types}, 0
    for kind, option in [(each, option) for each in kinds for option in fields(each) if declaration_of(option).bounds]:
        needed = {each.name: ["x"] if "list" in each.type else "x" for each in fields(kind) if is_needed(each)}
        for name, bound in declaration_of(option).bounds.items():
            wrong = bound + 1 if name == "most" else bound - 1
            with pytest.raises(UserError, match=f"`{option.name}` must be "):
                kind(**needed | {option.name: [wrong] if isinstance(default_of(option), list) else wrong})
            count += 1
    assert count > 50
