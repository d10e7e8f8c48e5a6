"""Which rules hold for a run: the organisation's, the project's, its base commit's; and what they take from it."""

from pathlib import Path

import msgspec
import pytest
from tests.model.provider_server import open_model_server
from tests.model.wires import json_answer

from cloister.core.attempts import AttemptWish
from cloister.core.errors import UserError
from cloister.core.model_config import ModelRoutes
from cloister.core.requests import Budget, FurtherRepository, NewRun, Quota, RunRule
from cloister.forge import Forges
from cloister.forge.plain_git import PlainGit
from cloister.model.names import Access
from cloister.model.roles import Job, open_models
from cloister.policy.api import ConnectAction, Layer, Rule, ToolAction
from cloister.policy.decide import decide
from cloister.runs.run_rules import (
    AllowedModels,
    Governed,
    RuleFiles,
    check_allowed,
    check_role,
    govern,
    parts_of,
    run_layer,
)
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

HOST = Layer("host", (Rule("connect:host.example.com", "allow", "config.toml, rule 1"),), may_widen=True)
WORKFLOW = ToolAction("write", ".github/workflows/ci.yml")
DENY_WORKFLOWS = '[[rule]]\naction = "write:.github/**"\neffect = "deny"\n'


class Place:
    """A repository, the files with rules and a run's own bare repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.repo = SampleRepo(root / "repo")
        self.organisation = root / "organisation.toml"
        self.projects: list[tuple[str, Path]] = []

    @property
    def files(self) -> RuleFiles:
        return RuleFiles(self.organisation, False, HOST, tuple(self.projects))

    def project(self, glob: str, text: str) -> None:
        path = self.root / f"project-{len(self.projects)}.toml"
        path.write_text(text)
        self.projects.append((glob, path))

    async def govern(self, request: NewRun | None = None) -> Governed:
        commit = self.repo.commit()
        bare = self.root / "bare.git"
        await PlainGit().fetch(str(self.repo.path), None, bare)
        return await govern(self.files, request or NewRun("p", str(self.repo.path)), Quota(), bare, commit)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_without_any_file_the_rules_are_ours_and_the_hosts(place: Place) -> None:
    governed = await place.govern()

    assert governed.layers == ("built-in", "host (config.toml)")
    assert governed.limited == ()
    assert (governed.request.budget, governed.quota) == (Budget(), Quota())


async def test_every_layer_is_read_and_named_in_order(place: Place) -> None:
    place.organisation.write_text('delegate = ["connect:*.example.com"]')
    place.project(f"{place.root}/*", DENY_WORKFLOWS)
    place.repo.write(".cloister/policy.toml", '[[rule]]\naction = "bash:rm *"\neffect = "ask"\n')
    governed = await place.govern()

    commit = place.repo.head[:12]
    assert governed.layers == (
        "built-in",
        f"organisation ({place.organisation})",
        "host (config.toml)",
        f"project ({place.root}/project-0.toml)",
        f"repository (.cloister/policy.toml@{commit})",
    )
    assert decide(governed.policy, WORKFLOW).rule == (
        f"deny tool:write:.github/** ({place.root}/project-0.toml:2)"
    )
    # Not parsed, so the rule about commands counts.
    assert decide(governed.policy, ToolAction("bash", "x")).effect == "ask"


async def test_the_repositorys_rules_are_those_of_the_base_and_not_of_the_files(place: Place) -> None:
    place.repo.write(".cloister/policy.toml", DENY_WORKFLOWS)
    place.repo.commit()
    governed = await place.govern()
    place.repo.write(".cloister/policy.toml", "")
    again = await govern(place.files, governed.request, Quota(), place.root / "bare.git", place.repo.head)

    assert decide(again.policy, WORKFLOW).effect == "deny"


async def test_a_link_in_place_of_the_repositorys_rules_is_not_followed(place: Place) -> None:
    secret = place.root / "secret.toml"
    secret.write_text("not toml")
    (place.repo.path / ".cloister").mkdir()
    (place.repo.path / ".cloister" / "policy.toml").symlink_to(secret)

    assert len((await place.govern()).layers) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rules = 1", r"^\.cloister/policy\.toml@[0-9a-f]{12}:1: there is no key 'rules' here\.$"),
        ("#" * 300_000, r"a policy file has at most"),
        ("#" * 2_000_000, r"larger than 1 MiB"),
    ],
)
async def test_rules_that_cannot_be_read_end_the_run_with_their_place(
    place: Place, text: str, says: str
) -> None:
    place.repo.write(".cloister/policy.toml", text)

    with pytest.raises(UserError, match=says):
        await place.govern()


async def test_a_repository_cannot_open_the_network_for_itself(place: Place) -> None:
    place.repo.write(".cloister/policy.toml", '[[rule]]\naction = "connect:evil.test"\neffect = "allow"\n')
    evil = ConnectAction("evil.test", 443)
    request = NewRun("p", str(place.repo.path), allow_hosts=("evil.test",))

    governed = await place.govern()
    assert decide(governed.policy, evil).effect == "deny"
    assert decide((*governed.policy, run_layer(request)), evil).effect == "allow"
    place.organisation.write_text("")
    governed = await place.govern()
    assert decide((*governed.policy, run_layer(request)), evil).effect == "deny"


OPENS = '[[rule]]\naction = "connect:*.evil.test"\neffect = "allow"\n'
EVIL = ConnectAction("www.evil.test", 443)


async def governed_two(place: Place, first: str, second: str) -> Governed:
    """The rules of a run on two repositories with these policies."""
    other = SampleRepo(place.root / "other")
    for repo, text in ((place.repo, first), (other, second)):
        repo.write(".cloister/policy.toml", text)
        repo.commit()
    request = NewRun("p", str(place.repo.path), also=(FurtherRepository(str(other.path)),))
    bare = place.root / "two.git"
    base = await Forges().bring_all(request.repositories, bare)
    return await govern(place.files, request, Quota(), bare, base.commit)


async def test_one_repository_of_several_cannot_give_another_the_right_to_open_hosts(place: Place) -> None:
    gives = 'delegate = ["connect:*.evil.test"]\n'
    assert decide((await governed_two(place, gives, OPENS)).policy, EVIL).effect == "deny"


async def test_what_a_project_opens_is_open_only_if_all_repositories_of_a_run_are_of_it(
    place: Place,
) -> None:
    denies = '[[rule]]\naction = "bash:rm *"\neffect = "deny"\n'
    place.project(f"{place.repo.path}", 'delegate = ["connect:*.evil.test"]\n' + OPENS + denies)
    two = await governed_two(place, "", OPENS)
    assert decide(two.policy, EVIL).effect == "deny"
    assert decide(two.policy, ToolAction("bash", "rm x")).effect == "deny", "what it forbids holds for all"
    place.project(f"{place.root}/*", OPENS)
    assert decide(place.files.above(str(place.repo.path)), EVIL).effect == "allow"
    both = parts_of(two.request)
    assert decide(place.files.above(str(place.repo.path), both), EVIL).effect == "allow"
    with pytest.raises(UserError, match="Only an admin may open hosts"):
        alone = RuleFiles(place.organisation, False, HOST, tuple(place.projects[:1]))
        request = msgspec.structs.replace(two.request, allow_hosts=("evil.test",))
        check_role(alone.above(str(place.repo.path), both), request, "operator")


async def test_run_gets_no_more_than_any_layer_allows_and_records_why(place: Place) -> None:
    place.organisation.write_text("[limits]\nsteps = 20\nattempts = 2\ncpus = 0.5\n")
    place.repo.write(".cloister/policy.toml", "[limits]\nsteps = 30\nseconds = 60\nmemory_bytes = 1000\n")
    governed = await place.govern(NewRun("p", str(place.repo.path), n=5))

    assert governed.request.budget == Budget(steps=20, seconds=60.0)
    assert governed.request.n == 2
    assert governed.quota == Quota(cpus=0.5, memory_bytes=1000)
    assert f"steps: 20 instead of 60 (limits.steps, {place.organisation}:2)" in governed.limited
    assert len(governed.limited) == 5
    assert type(governed.request.budget.steps) is int


async def test_money_is_limited_also_for_a_run_that_set_no_limit(place: Place) -> None:
    place.organisation.write_text("[limits]\ndollars = 2.5\n")
    governed = await place.govern()
    assert governed.request.budget.dollars == 2.5
    assert governed.limited == (f"dollars: 2.5 instead of no limit (limits.dollars, {place.organisation}:2)",)

    less = NewRun("p", str(place.repo.path), budget=Budget(dollars=1.0))
    assert (await place.govern(less)).request.budget.dollars == 1.0


async def test_no_way_of_asking_for_attempts_gets_more_than_the_limit(place: Place) -> None:
    place.organisation.write_text("[limits]\nattempts = 2\n")
    described = NewRun("p", str(place.repo.path), attempts=(AttemptWish(hint="a"),) * 5)
    given = (await place.govern(described)).request
    assert (given.n, len(given.attempts)) == (2, 2)

    searching = NewRun("p", str(place.repo.path), search="beam:6")
    governed = await place.govern(searching)
    assert (governed.request.n, governed.request.search) == (1, "beam:2")
    assert governed.limited[0].startswith("attempts: 2 instead of 6")


def test_a_run_brings_rules_of_its_own() -> None:
    request = NewRun("p", "r", rules=(RunRule("bash:rm *", "deny"), RunRule("connect:a.test", "allow")))
    layer = run_layer(request)

    assert layer.rules == (
        Rule("tool:bash:rm *", "deny", "the run's request, rule 1"),
        Rule("connect:a.test", "allow", "the run's request, rule 2"),
    )
    with pytest.raises(UserError, match=r"^the run's request, rule 1: 'rm': an action is"):
        run_layer(NewRun("p", "r", rules=(RunRule("rm", "deny"),)))


@pytest.mark.parametrize(
    ("glob", "repo", "matches"),
    [
        ("git.example.com/team/*", "https://git.example.com/team/app", True),
        ("git.example.com/team/*", "https://GIT.Example.com/Team/app.git", True),
        ("git.example.com/team/*", "https://user@git.example.com//team/./app/", True),
        ("git.example.com/team/*", "https://git.example.com/te%61m/app", True),
        ("git.example.com/team/*", "https://git.example.com/other/../team/app", True),
        ("git.example.com/team/*", "git@git.example.com:team/app.git", True),
        ("git.example.com/team/*", "ssh://git@git.example.com/team/app", True),
        ("https://git.example.com/team/app.git", "ssh://git@git.example.com/team/app", True),
        ("git.example.com/team/*", "https://git.example.com:443/team/app", True),
        ("git.example.com/team/*", "https://git.example.com./team/app", True),
        ("git.example.com/team/*", "ssh://git@git.example.com:22/team/app", True),
        ("git.example.com/team/*", "ssh://git@git.example.com:2222/team/app", True),
        ("GIT.example.com/Team/*", "https://git.example.com/team/app", True),
        ("git.example.com/team/*", "https://git.example.com/other/app", False),
        ("git.example.com/team/*", "https://evil.test/git.example.com/team/app", False),
        ("git.example.com/team/*", "https://git.example.com.evil.test/team/app", False),
        ("*", "https://git.example.com/x", True),
    ],
)
async def test_a_project_knows_its_repositories_however_they_are_spelled(
    place: Place, glob: str, repo: str, matches: bool
) -> None:
    place.project(glob, DENY_WORKFLOWS)

    assert (decide(place.files.above(repo), WORKFLOW).effect == "deny") == matches


async def test_a_projects_directory_is_known_through_links_and_from_below(place: Place) -> None:
    place.project(str(place.repo.path), DENY_WORKFLOWS)
    below = place.repo.write("src/a.py").parent
    link = place.root / "link"
    link.symlink_to(place.repo.path)

    for spelling in (str(place.repo.path), str(below), str(link), f"file://{link}", f"{link}/../link"):
        assert decide(place.files.above(spelling), WORKFLOW).effect == "deny"


async def test_a_policy_that_was_named_must_be_there(place: Place) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        RuleFiles(place.root / "none.toml", True, HOST).above(None)
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        RuleFiles(place.root, False, HOST).above(None)


async def test_tiers_and_models_that_are_not_allowed_are_refused_with_the_rule(place: Place) -> None:
    place.organisation.write_text('only = ["tier:gvisor", "model:acme:*"]')
    policy = place.files.above(None)

    check_allowed(policy, tier="gvisor", models=("acme:large",))
    check_allowed(policy, tier="auto")
    with pytest.raises(
        UserError, match=rf"not have the tier container: only tier:gvisor \({place.organisation}:1\)"
    ):
        check_allowed(policy, tier="container")
    with pytest.raises(UserError, match="not have the model other:x: only model:acme") as caught:
        check_allowed(policy, models=("other:x",))
    assert caught.value.code == "denied"


async def test_a_model_that_its_server_names_is_refused_by_that_name(place: Place) -> None:
    place.organisation.write_text('[[rule]]\naction = "model:ollama:forbidden*"\neffect = "deny"')
    async with open_model_server() as server:
        server.say(json_answer(200, {"data": [{"id": "forbidden:70b"}]}))
        access = Access("ollama", routes=ModelRoutes(url={"ollama": server.url}))
        async with open_models(access, Job("repo")) as models:
            assert models.chain("code") == ("ollama:default",)
            with pytest.raises(UserError, match="not have the model ollama:forbidden:70b"):
                AllowedModels(models, place.files.above(None)).role("code")
