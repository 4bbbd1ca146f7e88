"""Image editors at a provider on loopback."""

from repair_hf.llm.ledger import Ledger
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.paid_model import Retries
from repair_hf.synthesis.hosted import HostedEditor

MODELS = {"openai": "openai/gpt-image-1", "gemini": "gemini/gemini-2.5-flash-image"}
SOON = Retries(attempts=4, first_wait=0.01, longest_wait=0.02)


def editor_at(
    server, shape, ledger: Ledger, *, model=None, size=512, concurrency=8, retries=SOON, price=None, **options
) -> HostedEditor:
    options = RequestOptions(**{"timeout": 60.0, "concurrency": concurrency} | options)
    how = {"base_url": server.url(shape), "size": size, "price": price, "options": options, "retries": retries}
    return HostedEditor(model or MODELS[shape], ledger, **how)
