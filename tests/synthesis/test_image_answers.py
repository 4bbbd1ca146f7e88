"""Each row of the table of images that a provider sends, over HTTP on loopback."""

from __future__ import annotations

import json

import pytest
from ledgers import ledger_in, rows
from provider_server import Wire

from repair_hf.llm.errors import ProviderError
from repair_hf.llm.sending import Retries
from repair_hf.synthesis.sources import open_picture
from tests.llm.answers_table import IMAGE_ROWS, Row
from tests.synthesis.test_hosted import make

# What the usage of each row costs at the list prices: text in, image in, image out, thinking.
PRICES = {"openai": (5e-6, 10e-6, 40e-6, 0.0), "gemini": (0.3e-6, 0.3e-6, 30e-6, 2.5e-6)}


def cost_of(row: Row) -> float:
    text_in, image_in, image_out, thinking = PRICES[row.shape]
    if row.shape == "openai":
        usage = row.wire.body["usage"]
        texts = usage.get("input_tokens_details", {}).get("text_tokens", 0)
        return texts * text_in + (usage["input_tokens"] - texts) * image_in + usage["output_tokens"] * image_out
    usage = row.wire.body["usageMetadata"]
    return 270 * text_in + 1290 * image_out + usage.get("thoughtsTokenCount", 0) * thinking


@pytest.mark.parametrize("row", IMAGE_ROWS, ids=lambda row: f"{row.shape}: {row.sent}")
def test_what_happens_when_an_editor_sends_this(row: Row, serve, sources, tmp_path):
    wire: Wire = row.wire
    server = serve(lambda n: (wire.status, wire.body, {}))
    how = {"count": 1, "retries": Retries(attempts=4, first_wait=0.01)}
    if row.then == "once more, then stop":
        with pytest.raises(ProviderError, match="cannot be read"):
            make(server, row.shape, sources, tmp_path, [(0, "red")], **how)
    else:
        ((path,),), _ = make(server, row.shape, sources, tmp_path, [(0, "red")], **how)
        assert (path is not None) == (row.then == "answered")
        if path is not None:
            assert open_picture(path.read_bytes()).getpixel((0, 0))[0] > 200  # red, as the picture that is no thought
        else:  # the provider's own word is the reason
            word = row.sent.split()[-1] if "finish" in row.sent else "no image: "
            assert all(word in json.loads(call["reply"])[1] for call in rows(tmp_path))
    sends = 1 if row.then in ("answered", "refused") else 2
    assert len(server.asked) == sends
    worst = sum(call["worst"] for state in ("answered", "lost") for call in rows(tmp_path, state))
    with ledger_in(tmp_path) as ledger:
        assert ledger.total == (pytest.approx(worst if row.billed == "highest" else sends * cost_of(row)), sends)
