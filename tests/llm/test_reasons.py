"""What kind an error is: by status and code, never by words that quote the request; and which message is shown."""

import pytest
from provider_faults import FAULTS
from provider_server import Wire, error

from repair_hf.llm.answers import response_format
from repair_hf.llm.provider import LiteLLM, PassingError, ProviderError, RejectedRequest
from tests.llm.asking import QUESTION as MESSAGES
from tests.llm.asking import Verdict

FORM = response_format(Verdict)


@pytest.mark.parametrize(
    "quoted", ["a credit card on a balance beam", "PerDay", "insufficient_quota", "content_filter"]
)
def test_a_400_that_quotes_the_request_is_the_fault_of_the_request(quoted, send):
    with pytest.raises(RejectedRequest, match="does not accept the request"):
        send("openai", Wire(400, error("openai", 400, f"Cannot read the caption {quoted!r}", "invalid_value")))


SPENT = {
    "prepaid": (429, error("gemini", 429, "Your prepayment credits are depleted. Please go to the console.")),
    "cap": (429, error("gemini", 429, "Your project has exceeded its monthly spending cap.")),
    "code": (400, error("openai", 400, "No.", "billing_hard_limit_reached")),
}


@pytest.mark.parametrize("kind", SPENT)
def test_no_credit_is_said_at_once_and_where(kind, send):
    status, body = SPENT[kind]
    with pytest.raises(ProviderError, match="no credit left.*Every answer so far is kept"):
        send("gemini" if status == 429 else "openai", Wire(status, body))


def test_the_daily_quota_is_named(send):
    with pytest.raises(ProviderError, match=r"its quota is used up \(GenerateRequestsPerDayPerProject.*\)"):
        send("gemini", FAULTS["quota"]("gemini", ""))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "just a text"}, "just a text"),
        ({"detail": "the model is loading"}, "the model is loading"),
        ({"error": {"message": "Provider returned error", "metadata": {"raw": "queue full"}}}, "error: queue full"),
    ],
)
def test_the_message_is_found_wherever_a_server_puts_it(body, message, send):
    with pytest.raises(PassingError) as caught:
        send("openai", Wire(429, body))
    assert str(caught.value).endswith(message) and "{" not in str(caught.value)


def test_a_server_that_answers_500_to_a_schema_is_asked_without_one(provider_and_loop):
    def answer(question) -> Wire | str:
        asked.append("response_format" in question.body)
        return Wire(500, error("openai", 500, "boom")) if asked[-1] else "{}"

    server, runner = provider_and_loop
    server.answer, asked = answer, []
    model = "openai/some-model"
    provider = LiteLLM(model, base_url=server.url("openai"), timeout=60.0)
    request = {"model": model, "messages": MESSAGES, "max_tokens": 50, "response_format": FORM}
    for _ in range(2):
        with pytest.raises(PassingError):
            runner.run(provider(request))
    for _ in range(2):
        assert runner.run(provider(request)).text == "{}"
    assert asked == [True, True, False, False]
