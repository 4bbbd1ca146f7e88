"""Image editors at a provider on loopback."""

from repair_hf.llm.limits import Limits
from repair_hf.llm.sending import RequestOptions, Retries
from repair_hf.synthesis.hosted import HostedEditor

MODELS = {"openai": "openai/gpt-image-1", "gemini": "gemini/gemini-2.5-flash-image"}
SOON = Retries(attempts=4, first_wait=0.01, longest_wait=0.02)


def editor_at(server, shape, *, size=512, concurrency=8, max_error_rate=0.5) -> HostedEditor:
    options = RequestOptions(60.0, limits=Limits(concurrency), retries=SOON, max_error_rate=max_error_rate)
    return HostedEditor(MODELS[shape], base_url=server.base_url(shape), size=size, options=options)
