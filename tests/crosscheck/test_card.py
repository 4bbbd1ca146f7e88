"""The snippets of a model card run as they are, against a Hub on loopback, and both libraries agree."""

import re

import numpy as np
import pytest
from hub_server import Client, Hub
from PIL import Image

from repair_hf.encoder.dual_encoder import DualEncoder

pytest.importorskip("sentence_transformers", reason="`make crosscheck` runs this in an environment of its own")
TOKEN = "hf_goodgoodgoodgoodgood"
CAPTIONS = ["a dog on a beach", "two cats on a sofa"]


@pytest.mark.slow
def test_each_snippet_of_the_card_runs(clip_folder, tmp_path):
    # nothing to resize: with torchvision installed, transformers resizes differently
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    picture.save(tmp_path / "photo.jpg")
    encoder = DualEncoder.from_pretrained(clip_folder, device="cpu")
    ours = encoder.embed_images([Image.open(tmp_path / "photo.jpg")]) @ encoder.embed_texts(CAPTIONS).T
    with Hub({TOKEN: "me"}) as hub:
        client = Client(hub, tmp_path / "home", TOKEN)
        code, _, complaint = client.main("push", "model", clip_folder, "--repo", "me/clip")
        assert code == 0, complaint
        card = hub.files("model", "me/clip")["README.md"].decode()
        snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        by_transformers, by_sentence_transformers = snippets
        client.run(f"os.chdir({str(tmp_path)!r})")
        scale = client.run(f"{by_transformers}\nresult = model.logit_scale.exp().item()")
        found = client.run(f"{by_transformers}\nresult = found.logits_per_image.tolist()")
        np.testing.assert_allclose(np.array(found) / scale, ours, atol=1e-5)
        found = client.run(f"{by_sentence_transformers}\nresult = model.similarity(images, texts).tolist()")
        np.testing.assert_allclose(found, ours, atol=1e-5)
        client.close()
