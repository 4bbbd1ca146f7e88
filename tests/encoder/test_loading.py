"""A model whose files are missing, damaged or of another program gives an error of one line that names the folder."""

from __future__ import annotations

import shutil

import pytest

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.runtime.options import UserError
from tests.encoder.broken_models import (
    BROKEN,
    weights,
)


@pytest.mark.parametrize(("damage", "complaint"), BROKEN)
def test_a_broken_model_is_one_line(damage, complaint, clip_folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(clip_folder, tmp_path / "model")
    damage(folder)
    with pytest.raises(UserError, match=complaint) as error:
        DualEncoder.from_pretrained(folder, device="cpu")
    said, shown = str(error.value), capfd.readouterr()
    assert said.startswith(f"`{folder}` ") and said.endswith((".", ")")) and "\n" not in said and len(said) < 520
    assert (shown.out + shown.err).replace("Loading weights", "").strip(" :|0123456789%/?it,\r\n[]<s.█") == ""
    assert not (tmp_path / "attacked").exists()


def test_files_of_other_programs_beside_a_checkpoint_are_no_harm(clip_folder, tmp_path):
    folder = shutil.copytree(clip_folder, tmp_path / "model")
    for name in ("open_clip_config.json", "modules.json"):
        (folder / name).write_text("[]")
    weights(lambda tensors: tensors.update({"text_model.embeddings.old": tensors["logit_scale"].clone()}))(folder)
    assert DualEncoder.from_pretrained(folder, device="cpu").digest
