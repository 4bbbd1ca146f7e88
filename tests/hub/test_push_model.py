"""Pushes of models to a Hub on loopback, training from that Hub and the snippets of the card included."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.hub.files import pack_model
from repair_hf.runtime.options import UserError


@pytest.mark.slow
def test_trains_from_the_hub_alone_and_pushes_what_it_trained(
    hub, client, push, folder, clip_folder, pairs_folder, tmp_path
):
    """Pairs, records and model by id; no language model; the result on the Hub, loaded and measured from there."""
    push(folder, "me/photos-repair", "--tag", "round-1")
    shutil.copytree(clip_folder, tmp_path / "clip")
    assert client.main("push", "model", tmp_path / "clip", "--repo", "me/clip")[0] == 0
    client.run(
        f"""
from datasets import Dataset, Features, Image, List, Value
from repair_hf.pairs.dataset import load_pairs
pairs = load_pairs({str(pairs_folder)!r}, split="all")
rows = {{"image": list(pairs.images["image"]), "image_id": pairs.images["image_id"][:],
        "caption": [[pairs.captions[c]["caption"] for c in pairs.captions_of(i)] for i in range(len(pairs.images))]}}
features = Features({{"image": Image(), "image_id": Value("string"), "caption": List(Value("string"))}})
Dataset.from_dict(rows, features=features).push_to_hub("me/photos")
"""
    )
    words = f"train --pairs me/photos --split all --model me/clip --use-cpu --output {tmp_path / 'out'}"
    words += " --records me/photos-repair --records-revision round-1"
    words += " --per-device-train-batch-size 4 --max-steps 2"
    code, _, error = client.main(*words.split())
    assert code == 0, error
    hub.requests.clear()
    push_words = ["push", "model", tmp_path / "out", "--repo", "me/clip-repair", "--private"]
    code, printed, error = client.main(*push_words)
    assert code == 0, error
    assert ", revision " in printed and f"-> {hub.url}/me/clip-repair" in printed
    assert hub.count("POST /api/models/me/clip-repair/commit") == 1
    sent = hub.files("model", "me/clip-repair")
    assert hub.repos["model", "me/clip-repair"].private
    assert "training_args.bin" not in sent and str(tmp_path) not in sent["config.yaml"].decode()
    assert sent["model.safetensors"] == (tmp_path / "out" / "model.safetensors").read_bytes()
    card = sent["README.md"].decode()
    assert "base_model: me/clip" in card and "- me/photos-repair" in card and str(tmp_path) not in card
    assert client.main(*push_words, "--license", "mit")[0] == 0
    assert hub.count("POST /api/models/me/clip-repair/commit") == 2
    assert "license: mit" in hub.files("model", "me/clip-repair")["README.md"].decode()
    words = "evaluate --pairs me/photos --split all --model me/clip-repair --output"
    code, _, error = client.main(*words.split(), tmp_path / "measured")
    assert code == 0, error
    digests = f"""
from transformers import AutoModel, AutoProcessor
from repair_hf.encoder.dual_encoder import DualEncoder
AutoModel.from_pretrained("me/clip-repair"), AutoProcessor.from_pretrained("me/clip-repair")
result = [DualEncoder.from_pretrained(f).digest for f in ("me/clip-repair", {str(tmp_path / "out")!r})]
"""
    there, here = client.run(digests)
    assert there == here
    assert json.loads((tmp_path / "measured" / "metrics.json").read_text())["n_images"] == 12


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.yaml", "summary.json"])
def test_a_link_out_of_the_folder_is_not_sent(clip_folder, tmp_path, name):
    shutil.copytree(clip_folder, tmp_path / "clip")
    (private := tmp_path / "private").write_bytes(
        (clip_folder / name).read_bytes() if (clip_folder / name).is_file() else b"{}"
    )
    (tmp_path / "clip" / name).unlink(missing_ok=True)
    (tmp_path / "clip" / name).symlink_to(private)
    with pytest.raises(UserError, match=rf"clip/{name} cannot be pushed: .* lies outside the folder of its data"):
        pack_model(tmp_path / "clip", "me/clip", scratch=tmp_path / "scratch")


@pytest.mark.slow
def test_an_adapter_is_pushed_alone_or_with_a_base_that_is_not_on_the_hub(
    hub, client, clip_folder, pairs_folder, tmp_path, caplog
):
    assert client.main("push", "model", shutil.copytree(clip_folder, tmp_path / "clip"), "--repo", "me/clip")[0] == 0
    words = f"train --pairs {pairs_folder} --split all --use-cpu --per-device-train-batch-size 4 --max-steps 2"
    words += " --lora-rank 2"
    out = tmp_path / "out"
    code, _, error = client.main(*words.split(), "--model", "me/clip", "--model-revision", "main", "--output", out)
    assert code == 0, error
    assert client.main("push", "model", out, "--repo", "me/clip-lora")[0] == 0
    sent = hub.files("model", "me/clip-lora")
    assert "model.safetensors" not in sent
    assert sent["adapter_model.safetensors"] == (out / "adapter_model.safetensors").read_bytes()
    config = json.loads(sent["adapter_config.json"])
    assert config["base_model_name_or_path"] == "me/clip" and len(config["revision"]) == 40
    card = sent["README.md"].decode()
    assert "library_name: peft" in card and "base_model: me/clip" in card and "The weights here are an adapter" in card
    shown = f"""
from transformers import AutoModel, AutoProcessor
from repair_hf.encoder.dual_encoder import DualEncoder
AutoModel.from_pretrained("me/clip-lora"), AutoProcessor.from_pretrained("me/clip-lora")
result = [DualEncoder.from_pretrained(f).digest for f in ("me/clip-lora", {str(out)!r}, "me/clip")]
"""
    there, here, base = client.run(shown)
    assert there == here != base
    local = [*words.split(), "--model", tmp_path / "clip", "--output", tmp_path / "local"]
    code, _, error = client.main(*local)
    assert code == 0, error
    assert client.main("push", "model", tmp_path / "local", "--repo", "me/clip-lora")[0] == 0
    sent = hub.files("model", "me/clip-lora")
    assert {"model.safetensors", "config.json"} <= sent.keys() and not any("adapter" in name for name in sent)
    assert "library_name: transformers" in sent["README.md"].decode()
    there, here, _ = client.run(shown.replace(str(out), str(tmp_path / "local")))
    assert there == here
    pack_model(tmp_path / "local", "me/clip-lora", scratch=tmp_path / "scratch")
    assert f"The adapter's base, {tmp_path / 'clip'}, is not on the Hub; base and adapter are pushed as" in caplog.text


@pytest.mark.slow
def test_each_snippet_of_the_card_runs_and_both_libraries_agree(hub, client, clip_folder, tmp_path):
    pytest.importorskip("sentence_transformers")
    # nothing to resize: with torchvision installed, transformers resizes differently
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    picture.save(tmp_path / "photo.jpg")
    encoder = DualEncoder.from_pretrained(clip_folder, device="cpu")
    captions = ["a dog on a beach", "two cats on a sofa"]
    ours = encoder.embed_images([Image.open(tmp_path / "photo.jpg")]) @ encoder.embed_texts(captions).T
    assert client.main("push", "model", clip_folder, "--repo", "me/clip-of-snippets")[0] == 0
    card = hub.files("model", "me/clip-of-snippets")["README.md"].decode()
    by_transformers, by_sentence_transformers = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    client.run(f"before = os.getcwd()\nos.chdir({str(tmp_path)!r})")
    scale = client.run(f"{by_transformers}\nresult = model.logit_scale.exp().item()")
    scores = client.run(f"{by_transformers}\nresult = found.logits_per_image.tolist()")
    np.testing.assert_allclose(np.array(scores) / scale, ours, atol=1e-5)
    scores = client.run(f"{by_sentence_transformers}\nresult = model.similarity(images, texts).tolist()")
    np.testing.assert_allclose(scores, ours, atol=1e-5)
    client.run("os.chdir(before)")
