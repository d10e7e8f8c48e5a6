"""Which models a run gets, and how they are opened and closed."""

from pathlib import Path

import msgspec
import pytest
from tests.model.provider_server import open_model_server
from tests.whole.conformance.suites.model import check_failure, check_reply

from cloister.core.errors import OutsideError, UserError
from cloister.core.model_config import ModelEntry, ModelRoutes
from cloister.model.api import Image, Request, Role, UserMessage
from cloister.model.names import Access
from cloister.model.roles import Job, chain, check_roles, chosen, open_models, skipped

pytestmark = pytest.mark.anyio

ROUTES = msgspec.convert(
    {
        "code": ["anthropic:a", "openai:b"],
        "summarise": "google:s",
        "repository": [
            {"match": "*/front*", "code": "openai:front"},
            {"match": "*/front-two", "code": "openai:never"},
        ],
        "kind": {"docs": {"code": "google:docs"}},
    },
    ModelRoutes,
)


def names(role: Role, job: Job) -> tuple[str | None, ...]:
    return chain(ROUTES, role, job)


def test_a_role_takes_its_own_models_and_else_those_of_code() -> None:
    job = Job("/srv/back")
    assert names("code", job) == ("anthropic:a", "openai:b")
    assert names("summarise", job) == ("google:s",)
    assert names("judge", job) == ("anthropic:a", "openai:b")
    assert chain(ModelRoutes(), "judge", job) == (None,), "the machine's default"


def test_the_request_counts_before_the_kind_before_the_repository() -> None:
    front = "https://example.org/team/front-two/"
    assert names("code", Job(front)) == ("openai:front",), "the first that matches"
    assert names("code", Job(front, kind="docs")) == ("google:docs",)
    assert names("code", Job(front, kind="unheard of")) == ("openai:front",)
    assert names("code", Job(front, model="script:x", kind="docs")) == ("script:x",)
    assert names("review", Job(front, model="script:x")) == ("script:x",)
    assert names("summarise", Job(front, model="script:x")) == ("google:s",)


def script(tmp_path: Path, name: str, say: str, expect: str = "") -> str:
    path = tmp_path / f"{name}.toml"
    path.write_text(f'[[reply]]\nsay = "{say}"\nexpect = "{expect}"\n', encoding="utf-8")
    return f"script:{path}"


async def test_models_are_opened_when_they_are_asked_and_shared_by_name(tmp_path: Path) -> None:
    one, two = script(tmp_path, "one", "One."), script(tmp_path, "two", "Two.")
    access = Access(routes=ModelRoutes(code=one, judge="script:/nowhere/at/all.toml"))
    async with open_models(access, Job("/srv")) as models:
        assert (await check_reply(models.role("code"))).text == "One."
        assert (await check_reply(models.named(two))).text == "Two."
        assert (await check_reply(models.instead(two).role("plan"))).text == "Two."
        failure = await check_failure(models.role("judge"))
        assert (failure.code, failure.retryable) == ("bad_request", False)
        with pytest.raises(UserError):
            models.named("unheard-of")


async def test_a_model_that_cannot_see_gets_a_sentence_for_pictures(tmp_path: Path) -> None:
    sees = script(tmp_path, "sees", "I see.", expect="picture: image/png, 3 bytes")
    blind = script(tmp_path, "blind", "I do not.", expect="you cannot see")
    entry = {blind: ModelEntry(sees=False)}
    asked = Request("s", (UserMessage("Look.", (Image(b"png", "image/png"),)),), ())
    async with open_models(Access(routes=ModelRoutes(code=sees, entry=entry)), Job("/srv")) as models:
        assert (await check_reply(models.role("code"), asked)).text == "I see."
        assert (await check_reply(models.named(blind), asked)).text == "I do not."


async def test_the_only_model_for_code_is_opened_at_once_so_that_a_dead_server_fails_early() -> None:
    async with open_model_server() as server:
        url = server.url
    with pytest.raises(OutsideError) as caught:
        async with open_models(Access("compatible", {}, url), Job("/srv")):
            pytest.fail("opened")
    assert caught.value.code == "model_unreachable"


async def test_a_stand_in_makes_a_server_that_is_down_a_failure_like_any_other(tmp_path: Path) -> None:
    async with open_model_server() as server:
        url = server.url
    routes = ModelRoutes(code=("compatible", script(tmp_path, "one", "One.")))
    async with open_models(Access(url=url, routes=routes), Job("/srv")) as models:
        first, second = models.chain("code")
        failure = await check_failure(models.named(first))
        assert (failure.code, failure.retryable) == ("network", True)
        assert (await check_reply(models.named(second))).text == "One."


def test_a_model_without_a_key_is_left_out_of_a_list_that_has_another(tmp_path: Path) -> None:
    usable = script(tmp_path, "one", "One.")
    routes = ModelRoutes(code=("anthropic:claude-x", usable, "compatible:mine"))
    access, job = Access(routes=routes), Job("/srv")
    assert chosen(access, "code", job) == (usable,)
    lacking = skipped(access, "code", job)
    assert list(lacking) == ["anthropic:claude-x", "compatible:mine"]
    assert "ANTHROPIC_API_KEY" in lacking["anthropic:claude-x"]
    assert skipped(Access(routes=ModelRoutes(code=usable)), "code", job) == {}


def test_a_list_without_a_usable_model_is_rejected_with_the_first_reason() -> None:
    access = Access(routes=ModelRoutes(code=("anthropic:claude-x", "openai:gpt-x")))
    with pytest.raises(UserError, match="ANTHROPIC_API_KEY"):
        chosen(access, "code", Job("/srv"))
    typo = Access(keys={"openai": "k"}, routes=ModelRoutes(code=("openai:gpt-x", "unheard-of")))
    with pytest.raises(UserError, match="unheard-of"):
        chosen(typo, "code", Job("/srv"))


def test_a_role_without_a_usable_model_is_rejected_before_a_run() -> None:
    routes = ModelRoutes(code="script:x", review="openai:gpt-x")
    with pytest.raises(UserError) as caught:
        check_roles(Access(routes=routes), Job("repo"))
    assert (caught.value.code, "review" in caught.value.message) == ("no_key", True)
    check_roles(Access(keys={"openai": "k"}, routes=routes), Job("repo"))
    with pytest.raises(UserError, match=r"^There is no model"):
        check_roles(Access(), Job("repo", "nonsense"))
