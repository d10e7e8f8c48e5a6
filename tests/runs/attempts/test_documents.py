"""Documents that a model searches, and the notes that it proposes."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.arena import ADD, FINISH, SUB, Arena, bash, of, script

from cloister.app.knowledge.documents import PASSAGE_CHARS, Collection, DocsTool, Library, passages
from cloister.app.knowledge.note_tool import MOST_NOTES, NoteTool, diff_of_notes, with_notes
from cloister.core.errors import UserError
from cloister.core.events import ActionDecided, NoteProposed, ToolReturned
from cloister.core.requests import DocsEntry, Knowledge, check_knowledge
from cloister.forge.plain_git import PlainGit
from cloister.forge.read import read_file
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

DEPLOY = "# Deploying\n\nRun the pipeline.\n\n## Rolling back\n\nCall `undeploy` with the last green build.\n"
ASK = 'calls = [{{ tool = "docs", query = "{}" }}]'


async def no_repository(entry: DocsEntry) -> tuple[Path, str]:
    raise UserError("no_repository", f"{entry.source} cannot be reached.")


async def test_a_model_finds_a_passage_with_its_source_and_the_text_is_untrusted(
    arena: Arena, tmp_path: Path
) -> None:
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "deploy.md").write_text(DEPLOY)
    (folder / "holidays.md").write_text("# Holidays\n\nAsk your lead.\n")
    (folder / "passwd.md").symlink_to("/etc/passwd")
    (folder / os.fsdecode(b"r\xf4le.md")).write_text("# Rollen\n\nWho may start a build.\n")
    entries = (DocsEntry("handbook", str(folder)), DocsEntry("wiki", "https://wiki.example/w.git"))
    arena.tools = (DocsTool(Library(entries, no_repository, tmp_path)),)
    journal = arena.journal(arena.request(script(ASK.format("how to roll back a build"), FINISH)))
    await arena.run(journal)
    seen = of(journal, ToolReturned)[0]
    assert seen.ok
    assert seen.text.startswith(
        "[handbook: deploy.md:5-8] Deploying > Rolling back\n## Rolling back\n\nCall `undeploy`"
    )
    assert "wiki cannot be searched: https://wiki.example/w.git cannot be reached." in seen.text
    assert "[handbook: r\ufffdle.md:1-4] Rollen" in seen.text, "its name is not UTF-8"
    assert "root:" not in seen.text
    assert seen.origin == "server"
    assert of(journal, ActionDecided)[0].action == "docs: how to roll back a build"


async def test_documents_may_be_removed_while_they_are_looked_for(tmp_path: Path) -> None:
    folder, stop = tmp_path / "handbook", threading.Event()
    folder.mkdir()
    files = [folder / f"{number}.md" for number in range(50)]

    def churn() -> None:
        while not stop.is_set():
            for file in files:
                file.touch()
            for file in files:
                file.unlink()

    changing = threading.Thread(target=churn)
    changing.start()
    try:
        entry = DocsEntry("handbook", str(folder))
        for _ in range(300):
            await Library((entry,), no_repository, tmp_path).collection(entry)
    finally:
        stop.set()
        changing.join()


async def test_documents_of_a_repository_are_read_from_its_newest_commit(
    arena: Arena, tmp_path: Path
) -> None:
    repo = SampleRepo(tmp_path / "docs-repository")
    repo.write("docs/deploy.md", DEPLOY)
    repo.write("other/deploy.md", DEPLOY)
    repo.commit("docs")
    bare = tmp_path / "docs.git"

    async def fetch(entry: DocsEntry) -> tuple[Path, str]:
        return bare, (await PlainGit().fetch(entry.source, entry.ref, bare)).commit

    entry = DocsEntry("handbook", str(repo.path), ref="HEAD", below="docs", trusted=True)
    arena.tools = (DocsTool(Library((entry,), fetch, tmp_path)),)
    journal = arena.journal(arena.request(script(ASK.format("undeploy"), ASK.format("unheard"), FINISH)))
    await arena.run(journal)
    first, second = of(journal, ToolReturned)[:2]
    assert (first.ok, first.origin) == (True, "tool")
    assert "[handbook: docs/deploy.md:" in first.text
    assert "other/" not in first.text
    assert (second.ok, second.text) == (False, "No passage fits: try other words.")


def test_long_documents_are_cut_into_bounded_passages_in_linear_time() -> None:
    text = "Title\n=====\n\n" + "word " * 40_000 + "\n\n" + "line\n" * 20_000
    found = list(passages("a.md", text))
    assert max(len(one.text) for one in found) <= 2 * PASSAGE_CHARS
    assert found[0].heading == "Title"
    assert Collection({"a.md": "# " * 50_000}, "").best("title", 3) == []


def test_settings_of_documents_are_checked() -> None:
    two = (DocsEntry("a", "/x"), DocsEntry("a", "/y"))
    assert (
        check_knowledge(Knowledge(docs=two)) == "two collections of documents have the name 'a': rename one."
    )
    assert "small letters" in (check_knowledge(Knowledge(docs=(DocsEntry("A b", "/x"),))) or "")
    assert "need a folder" in (check_knowledge(Knowledge(docs=(DocsEntry("a", "--upload-pack=x"),))) or "")
    assert check_knowledge(Knowledge(skills=("",))) == "a folder of skills is a path, not an empty text."


# Notes.

NOTED = 'calls = [{ tool = "note", text = "Tests need\\nRedis on port 6379." }]'


async def test_a_note_is_proposed_and_leaves_the_repository_as_it_is(arena: Arena) -> None:
    arena.tools = (NoteTool(),)
    journal = arena.journal(arena.request(script(NOTED, NOTED, bash(f"{ADD}; {SUB}"), FINISH)))
    ended = await arena.run(journal)
    assert of(journal, NoteProposed) == [NoteProposed(0, "Tests need Redis on port 6379.", False)]
    assert await read_file(arena.bare, ended.commit, ".cloister/notes.md") is None


async def test_a_note_is_in_the_change_only_if_the_run_allows_it(arena: Arena) -> None:
    arena.tools = (NoteTool(),)
    wish = arena.request(script(NOTED, bash(f"{ADD}; {SUB}"), FINISH), notes="write")
    journal = arena.journal(wish)
    ended = await arena.run(journal)
    assert ended.outcome == "proven"
    assert of(journal, NoteProposed)[0].written
    text = await read_file(arena.bare, ended.commit, ".cloister/notes.md")
    assert text is not None
    assert text.endswith(b"- Tests need Redis on port 6379.\n")


async def test_notes_can_be_turned_off_and_are_few(arena: Arena) -> None:
    arena.tools = (NoteTool("off"),)
    journal = arena.journal(arena.request(script(NOTED, FINISH)))
    await arena.run(journal)
    assert "There is no tool `note`." in of(journal, ToolReturned)[0].text
    many = [f'calls = [{{ tool = "note", text = "Fact {n}." }}]' for n in range(MOST_NOTES + 1)]
    arena = replace(arena, tools=(NoteTool(),))
    journal = arena.journal(arena.request(script(*many, FINISH)))
    await arena.run(journal)
    assert len(of(journal, NoteProposed)) == MOST_NOTES


async def test_the_proposed_diff_applies_to_a_repository_with_and_without_notes(tmp_path: Path) -> None:
    for before in ("", "# Ours\n\n- Old.\n", "# No newline at the end"):
        repo = SampleRepo(tmp_path / f"r{len(before)}")
        repo.write("a.txt", "a")
        if before:
            repo.write(".cloister/notes.md", before)
        repo.commit("base")
        patch = diff_of_notes(before, ["Old.", "New."])
        repo.git("apply", "--check", "-", stdin=patch.encode())
        repo.git("apply", "-", stdin=patch.encode())
        assert (repo.path / ".cloister/notes.md").read_text() == with_notes(before, ["Old.", "New."])
    assert diff_of_notes("- Old.\n", ["Old."]) == ""
