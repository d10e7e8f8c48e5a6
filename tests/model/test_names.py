"""Which model a name means, and what is said when it means none."""

import sys
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.model.provider_server import Answer, open_model_server
from tests.model.wires import JSON, WIRES, Sent
from tests.whole.conformance.suites.model import check_failure, check_reply

from cloister.app.settings import PROVIDER_KEYS
from cloister.core.errors import OutsideError, UserError
from cloister.model.catalog import CATALOG, FIRST_LISTED, Amazon
from cloister.model.names import Access, choose, open_model
from cloister.model.remote.providers import open_remote
from cloister.model.remote.wire_formats import Endpoint

pytestmark = pytest.mark.anyio

ALL = dict.fromkeys(CATALOG, "k")
URL = "http://localhost:8080/v1"
NOWHERE = (
    "http://[x",
    "http://a:99999999/v1",
    "http://a b/",
    "http://",
    "http:///v1",
    "http://a\x00",
    "http://a:x",
)


def chosen(
    name: str | None, default: str | None = None, keys: dict[str, str] | None = None, url: str | None = None
) -> str:
    return choose(name, Access(default, keys or {}, url))


def refused(*args: object, **kwargs: object) -> UserError:
    with pytest.raises(UserError) as caught:
        chosen(*args, **kwargs)  # pyright: ignore[reportArgumentType]
    return caught.value


def test_the_caller_decides_before_the_setting_before_the_url_before_the_keys() -> None:
    assert chosen("google:gemini-x", "openai", ALL, URL) == "google:gemini-x"
    assert chosen(None, "openai:gpt-x", ALL, URL) == "openai:gpt-x"
    assert chosen(None, None, ALL, URL) == "compatible:default"
    assert chosen(None, None, ALL) == f"anthropic:{CATALOG['anthropic'].model}"
    assert chosen(None, None, {"google": "g", "openai": "o"}) == f"openai:{CATALOG['openai'].model}"
    assert chosen(None, None, {}, URL) == "compatible:default"


def test_a_provider_alone_means_its_usual_model() -> None:
    for kind, provider in CATALOG.items():
        assert chosen(kind, keys=ALL, url=URL) == f"{kind}:{provider.model}"


def test_names_may_hold_colons_of_their_own() -> None:
    assert chosen("compatible:qwen2.5-coder:1.5b", url=URL) == "compatible:qwen2.5-coder:1.5b"
    assert chosen("script:C:/odd.toml") == "script:C:/odd.toml"


def test_without_configuration_the_error_names_the_settings() -> None:
    error = refused(None)
    assert error.code == "no_model"
    assert error.message == (
        "No model is configured: set ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY, MISTRAL_API_KEY, "
        "OPENROUTER_API_KEY or CLOISTER_MODEL_URL, or run `cloister model fetch` and use --model local."
    )


def test_a_provider_without_its_key_names_the_variable() -> None:
    error = refused("openai:gpt-x", keys={"anthropic": "a", "openai": ""})
    assert error.code == "no_key"
    assert "OPENAI_API_KEY" in error.message


@pytest.mark.parametrize("name", ["gpt-x", "misty:large", ":", "script:", "script", "anthropic-x:y"])
def test_a_name_that_means_nothing_is_refused(name: str) -> None:
    assert refused(name, keys=ALL, url=URL).code == "unknown_model"


@pytest.mark.parametrize("key", ["sk-1\n", "sk 1", "sk-\u00e9", "sk-\x00"])
async def test_a_key_that_no_header_can_carry_is_rejected_and_not_shown(key: str) -> None:
    error = refused("mistral:m", keys={"mistral": key})
    assert error.code == "no_key"
    assert "MISTRAL_API_KEY" in error.message
    assert key.strip() not in error.message
    # Were one to get through, what the provider's client says of it is still shown without it.
    async with open_model_server() as server, open_remote(Endpoint("mistral", "m", server.url, key)) as model:
        failure = await check_failure(model)
    assert "sk" not in failure.message.removeprefix("mistral:m ")


@pytest.mark.parametrize("name", ["x?key=1", "a/../b", "..", "x#y", "x\ny", "x\x1b[31m", "n" * 301, "a\\b"])
def test_a_name_that_would_lead_elsewhere_is_refused(name: str) -> None:
    error = refused(f"google:{name}", keys=ALL)
    assert error.code == "unknown_model"
    assert error.message.isprintable()
    assert len(error.message) < 400


@pytest.mark.parametrize(
    "name",
    [
        "hf.co/unsloth/Qwen3-4B-GGUF:Q4_K_M",
        "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude",
        "qwen/qwen3-4b@q4_k_m",
        "/srv/models/My Model.gguf",
        "ft:gpt-x:org::id",
        "with..dots",
    ],
)
def test_names_as_servers_have_them_are_taken(name: str) -> None:
    assert chosen(f"compatible:{name}", url=URL) == f"compatible:{name}"


@pytest.mark.parametrize("url", [None, "", "localhost:8080", "file:///etc/passwd", *NOWHERE])
def test_a_compatible_model_needs_the_url_of_a_server(url: str | None) -> None:
    assert refused("compatible:x", url=url).code == "no_model_url"


def test_the_catalog_and_the_settings_agree_on_the_variables() -> None:
    assert {kind: provider.key_variable for kind, provider in CATALOG.items()} == PROVIDER_KEYS


async def test_the_usual_models_are_ones_the_library_knows() -> None:
    from pydantic_ai.models import known_model_names

    known = set(known_model_names())
    # It has no list for OpenRouter, and calls both of OpenAI's APIs the same.
    usual = {
        f"{kind.removesuffix('-responses')}:{provider.model}"
        for kind, provider in CATALOG.items()
        if provider.model != FIRST_LISTED and kind != "openrouter"
    }
    assert usual <= known


async def test_a_script_is_opened_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.script.toml"
    path.write_text('[[reply]]\nsay = "Hi."\n', encoding="utf-8")
    async with open_model(f"script:{path}", Access(None, {}, None)) as model:
        assert model.name == f"script:{path}"
        assert (await check_reply(model)).text == "Hi."


async def test_a_bad_script_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        async with open_model(f"script:{tmp_path}/none.toml", Access(None, {}, None)):
            pass
    assert caught.value.code == "bad_script"


async def test_every_provider_opens_and_closes_without_a_word_on_the_network() -> None:
    for kind, provider in CATALOG.items():
        if provider.model != FIRST_LISTED:
            async with open_model(kind, Access(None, ALL, None, amazon=Amazon("eu-west-1"))) as model:
                assert model.name == f"{kind}:{provider.model}"


async def test_a_compatible_server_is_asked_for_its_model_and_gets_no_other_key() -> None:
    async with open_model_server() as server:
        server.say(
            Answer(200, JSON, (b'{"object": "list", "data": [{"id": "qwen"}, {"id": "llama"}]}',)),
            WIRES["compatible"].reply(Sent(text=("Hi.",))),
        )
        async with open_model(None, Access("compatible", {"openai": "secret"}, server.url)) as model:
            assert model.name == "compatible:qwen"
            await check_reply(model)
        assert [asked.path for asked in server.asked] == ["/models", "/chat/completions"]
        assert server.asked[1].json()["model"] == "qwen"
        assert not any("secret" in value for asked in server.asked for value in asked.headers.values())


@pytest.mark.parametrize(
    "answer", [Answer(404), Answer(200, JSON, (b"[]",)), Answer(200, JSON, (b'{"data": []}',))]
)
async def test_a_compatible_server_without_a_list_gets_a_stand_in_name(answer: Answer) -> None:
    async with open_model_server() as server:
        server.say(answer)
        async with open_model("compatible", Access(None, {"compatible": "k"}, server.url)) as model:
            assert model.name == "compatible:default"
        assert server.asked[0].headers["authorization"] == "Bearer k"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, JSON, (b'{"data": [', *(b'{"id": "x"},' * 80_000 for _ in range(5))), hold=True),
        Answer(200, {**JSON, "content-encoding": "gzip"}, (b"\x1f\x8b",)),
    ],
    ids=["endless", "packed"],
)
async def test_a_list_of_models_has_an_end(answer: Answer) -> None:
    async with open_model_server() as server:
        server.say(answer)
        with anyio.fail_after(20), pytest.raises(OutsideError) as caught:
            async with open_model("compatible", Access(url=server.url)):
                pass
    assert caught.value.code == "model_unreachable"


@pytest.mark.parametrize("name", ["", "x\ny", "n" * 400])
async def test_a_server_cannot_use_an_unprintable_name(name: str) -> None:
    async with open_model_server() as server:
        server.say(Answer(200, JSON, (msgspec.json.encode({"data": [{"id": name}]}),)))
        async with open_model("compatible", Access(url=server.url)) as model:
            assert model.name == "compatible:default"


def test_a_url_with_a_password_is_refused_and_not_shown() -> None:
    error = refused("compatible:x", url="http://ann:s3cret@localhost:8080/v1")
    assert error.code == "no_model_url"
    assert "s3cret" not in error.message
    assert chosen("compatible:x", url="http://localhost:8080/@v1") == "compatible:x"


async def test_a_compatible_server_that_is_not_there_is_named() -> None:
    async with open_model_server() as server:
        url = server.url
    with pytest.raises(OutsideError) as caught:
        async with open_model("compatible", Access(None, {}, url)):
            pass
    assert caught.value.code == "model_unreachable"
    assert url in caught.value.message


async def test_importing_the_seam_the_script_and_the_registry_loads_no_sdk() -> None:
    program = (
        "import sys, cloister.model.api, cloister.model.scripted, cloister.model.names, cloister.model.api\n"
        "heavy = {'pydantic_ai', 'pydantic', 'openai', 'anthropic', 'google', 'httpx', 'httpx2'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    with anyio.fail_after(60):
        done = await anyio.run_process([sys.executable, "-c", program])
    assert done.stdout.decode().strip() == "[]"
