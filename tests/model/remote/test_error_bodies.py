"""Error bodies as the providers document them, and the one kind of failure that each is."""

import msgspec
import pytest
from tests.model.provider_server import Answer, open_model_server
from tests.model.wires import JSON, json_answer
from tests.whole.conformance.suites.model import REQUEST, items_of

from cloister.model.api import Failure, FailureCode
from cloister.model.catalog import Amazon
from cloister.model.remote.failures import as_data, kind_told, sentence, wait_told
from cloister.model.remote.providers import open_remote
from cloister.model.remote.wire_formats import Endpoint

pytestmark = pytest.mark.anyio

KEY = "sk-test-0123456789abcdef"


def anthropic(status: int, kind: str, message: str) -> Answer:
    return json_answer(status, {"type": "error", "error": {"type": kind, "message": message}})


def openai(status: int, code: object, message: str, **more: object) -> Answer:
    return json_answer(status, {"error": {"message": message, "code": code, **more}})


def google(status: int, name: str, message: str, *details: object) -> Answer:
    error = {"code": status, "message": message, "status": name, "details": details}
    return json_answer(status, {"error": error})


def bedrock(status: int, name: str, message: str) -> Answer:
    return Answer(status, {**JSON, "x-amzn-errortype": name}, (msgspec.json.encode({"message": message}),))


PER_MINUTE = {"quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"}
PER_DAY = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}
SOON = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "35.5s"}
LIMIT = "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"

DOCUMENTED: tuple[tuple[str, Answer, FailureCode], ...] = (
    ("anthropic", anthropic(400, "invalid_request_error", LIMIT), "context_too_long"),
    (
        "anthropic",
        anthropic(400, "invalid_request_error", "Output blocked by content filtering policy"),
        "refused",
    ),
    (
        "anthropic",
        anthropic(400, "invalid_request_error", "You have reached your specified API usage limits."),
        "quota",
    ),
    ("anthropic", anthropic(400, "invalid_request_error", "Your credit balance is too low."), "quota"),
    ("anthropic", anthropic(403, "permission_error", "No permission."), "auth"),
    ("openai", openai(429, "insufficient_quota", "You exceeded your current quota."), "quota"),
    ("openai", openai(400, "content_policy_violation", "Your request was rejected."), "refused"),
    ("openai", openai(400, "content_filter", "The response was filtered."), "refused"),
    ("openai", openai(400, "context_length_exceeded", "Too long; our safety system."), "context_too_long"),
    ("google", google(400, "INVALID_ARGUMENT", "API key not valid.", {"reason": "API_KEY_INVALID"}), "auth"),
    (
        "google",
        google(429, "RESOURCE_EXHAUSTED", "Exceeded.", {"violations": [PER_MINUTE]}, SOON),
        "rate_limit",
    ),
    ("google", google(429, "RESOURCE_EXHAUSTED", "Exceeded.", {"violations": [PER_DAY]}, SOON), "quota"),
    (
        "mistral",
        json_answer(
            400,
            {
                "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"
            },
        ),
        "context_too_long",
    ),
    ("bedrock", bedrock(400, "ValidationException", f"The model returned: {LIMIT}"), "context_too_long"),
    ("bedrock", bedrock(424, "ModelErrorException", "The model failed."), "overloaded"),
    ("bedrock", bedrock(403, "ExpiredTokenException", "The security token is expired"), "auth"),
    (
        "openrouter",
        openai(403, 403, "Input was flagged", metadata={"reasons": ["violence"], "flagged_input": "…"}),
        "refused",
    ),
    ("openrouter", openai(402, 402, "Insufficient credits"), "quota"),
    (
        "llamacpp",
        openai(400, 400, "the request exceeds the available context size", type="exceed_context_size_error"),
        "context_too_long",
    ),
    ("llamacpp", openai(503, 503, "Loading model", type="unavailable_error"), "overloaded"),
    (
        "lmstudio",
        json_answer(
            400, {"error": "The number of tokens to keep is greater than the context length. Load it anew."}
        ),
        "context_too_long",
    ),
    ("vllm", openai(400, 400, "This model's maximum context length is 4096 tokens."), "context_too_long"),
    ("ollama", openai(404, None, "model 'x' not found"), "bad_request"),
)


async def failure(kind: str, answer: Answer, key: str = KEY) -> Failure:
    amazon = Amazon("us-east-1", "AKIATEST", key) if kind == "bedrock" else None
    async with open_model_server() as server:
        endpoint = Endpoint(kind, "test-model", server.url, None if amazon else key, amazon)
        async with open_remote(endpoint) as model:
            server.say(answer)
            [only] = await items_of(model, REQUEST)
    assert isinstance(only, Failure)
    return only


@pytest.mark.parametrize(("kind", "answer", "code"), DOCUMENTED)
async def test_documented_provider_errors_are_distinguished(
    kind: str, answer: Answer, code: FailureCode
) -> None:
    found = await failure(kind, answer)
    assert found.code == code, found.message
    assert found.retryable == (code in ("rate_limit", "overloaded"))
    assert "{" not in found.message, "a sentence, not a body"


async def test_the_wait_that_google_asks_for_is_in_its_body() -> None:
    found = await failure("google", google(429, "RESOURCE_EXHAUSTED", "Slow down.", SOON))
    assert found.retry_seconds == 35.5


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        "not JSON",
        "[" * 200_000,
        {"error": {"details": [{"retryDelay": "nan"}, {"retryDelay": "1e9s"}, 7, None]}},
        {"error": None},
        {"error": {"details": {"retryDelay": "5s"}}},
        {"message": {"message": {"message": {"message": {"message": {"message": {"message": "deep"}}}}}}},
        [],
        None,
        {"x": object()},
    ],
    ids=(
        "bytes",
        "text",
        "open brackets",
        "bad waits",
        "no error",
        "one detail",
        "deep",
        "list",
        "nothing",
        "odd",
    ),
)
def test_error_body_of_any_shape_is_read_without_an_exception(body: object) -> None:
    data = as_data(body)
    assert kind_told(data) is None
    assert wait_told(data) is None
    assert sentence(data) is None or isinstance(sentence(data), str)
