"""Documents that a model searches, and the notes that it proposes."""

import os
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.agent.loop_bench import open_bench
from tests.model.provider_server import Answer, open_model_server
from tests.runs.arena import ADD, FINISH, SUB, Arena, bash, of, script

from cloister.agent.tools.toolset import ToolPlace
from cloister.app.knowledge.documents import (
    FRESH_SECONDS,
    PASSAGE_CHARS,
    Collection,
    DocsArgs,
    DocsTool,
    Library,
    passages,
)
from cloister.app.knowledge.note_tool import MOST_NOTES, NoteArgs, NoteTool, diff_of_notes, with_notes
from cloister.core.errors import UserError
from cloister.core.events import ActionDecided, BaseFixed, BasePart, NoteProposed, ToolReturned
from cloister.core.requests import DocsEntry, Knowledge, NewRun, check_knowledge
from cloister.forge.plain_git import PlainGit
from cloister.forge.read import read_file
from cloister.model.meanings import Meanings
from cloister.model.names import Access
from cloister.model.remote.embeddings import embed
from cloister.policy.layers import BUILT_IN
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


def vectors(*rows: tuple[float, ...]) -> Answer:
    data = [{"index": at, "embedding": row} for at, row in enumerate(rows)]
    return Answer(pieces=(msgspec.json.encode({"data": data}),))


async def test_a_passage_is_found_by_its_meaning_and_by_its_words(tmp_path: Path) -> None:
    folder, file = tmp_path / "handbook", tmp_path / "data" / "vectors"
    folder.mkdir()
    (folder / "deploy.md").write_text("# Rolling back\n\nCall `undeploy` with the last green build.\n")
    (folder / "holidays.md").write_text("# Holidays\n\nAsk your lead to return to an earlier plan.\n")
    entry = DocsEntry("handbook", str(folder))
    async with open_model_server() as server:
        access = Access(url=server.url, keys={"compatible": "k-1"})

        def tool() -> DocsTool:
            near = Meanings(lambda texts: embed("compatible:meaning", access, texts), file)
            return DocsTool(Library((entry,), no_repository, tmp_path, near))

        async def found(docs: DocsTool, query: str) -> str:
            return (await docs.search(DocsArgs(query, most=1))).text

        server.say(vectors((1.0, 0.1), (0.0, 1.0)), vectors((0.9, 0.2)))
        docs = tool()
        assert (await found(docs, "revert a release")).startswith("[handbook: deploy.md:1-4] Rolling back")
        first, query = server.asked
        assert first.json() == {
            "model": "meaning",
            "input": [
                f"{one.path}\n{one.heading}\n{one.text}"
                for one in (await docs.library.collection(entry)).passages
            ],
        }
        assert (first.path, first.headers["authorization"]) == ("/embeddings", "Bearer k-1")
        assert query.json()["input"] == ["revert a release"]
        server.say(vectors((0.1, 0.9)))  # after a restart no passage is sent again
        assert (await found(tool(), "revert a release")).startswith("[handbook: holidays.md")
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])  # a disk that was full: what was cut off is sent again
        server.say(vectors((0.0, 1.0)), vectors((0.9, 0.2)))
        assert (await found(tool(), "revert a release")).startswith("[handbook: deploy.md")
        assert len(server.asked) == 5
        assert file.read_bytes() == whole, "and nothing is left of it"


async def test_if_the_vectors_of_one_collection_fail_all_are_compared_by_words(tmp_path: Path) -> None:
    for name, text in (
        ("good", "# Undeploy\n\nUndeploy stops it.\n"),
        ("bad", "# Cake\n\nHow to bake, undeploy.\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text(text)

    async def embedded(some: Sequence[str]) -> list[tuple[float, ...]]:
        if any("bake" in text for text in some):
            raise UserError("no_vectors", "It is away.")
        return [(1.0, 0.5) for _ in some]

    entries = tuple(DocsEntry(name, str(tmp_path / name)) for name in ("bad", "good"))
    near = Meanings(embedded, tmp_path / "vectors")
    seen = await DocsTool(Library(entries, no_repository, tmp_path, near)).search(DocsArgs("undeploy"))
    assert seen.text.startswith("[good: a.md:1-4] Undeploy"), seen.text
    assert seen.text.endswith("Only words were compared: It is away.")


async def test_a_renamed_document_is_found_under_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FRESH_SECONDS, "folder", 0.0)
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "old.md").write_text(DEPLOY)
    docs = DocsTool(Library((DocsEntry("handbook", str(folder)),), no_repository, tmp_path))
    assert "handbook: old.md:" in (await docs.search(DocsArgs("undeploy"))).text
    (folder / "old.md").rename(folder / "new.md")
    assert "handbook: new.md:" in (await docs.search(DocsArgs("undeploy"))).text


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(401, pieces=(b'{"error": {"message": "no such key"}}',)), "401 no such key"),
        (Answer(pieces=(b"[" * 10_000,)), "its answer cannot be read"),
        (vectors((1.0,)), "it sent other vectors than were asked for"),
        (vectors((1.0,), (1.0, 2.0)), "it sent other vectors than were asked for"),
        (Answer(pieces=(b"x" * 1_000_000,) * 40), "it does not answer"),
    ],
)
async def test_without_vectors_words_are_compared_and_the_answer_says_so(
    tmp_path: Path, answer: Answer, why: str
) -> None:
    (tmp_path / "a.md").write_text("# Deploy\n\nRun it.\n\n# Undeploy\n\nStop it.\n")
    async with open_model_server() as server:
        access = Access(url=server.url)
        near = Meanings(lambda texts: embed("compatible:m", access, texts), tmp_path / "vectors")
        docs = DocsTool(Library((DocsEntry("a", str(tmp_path)),), no_repository, tmp_path, near))
        server.say(answer)
        seen = await docs.search(DocsArgs("undeploy"))
    assert seen.ok
    assert seen.text.startswith("[a: a.md:5-8] Undeploy")
    assert seen.text.endswith(f"Only words were compared: compatible:m gives no embeddings: {why}.")


async def test_a_provider_without_embeddings_is_named() -> None:
    with pytest.raises(UserError, match="has no embeddings"):
        await embed("anthropic:claude", Access(keys={"anthropic": "k"}), ["a"])


async def test_the_nearest_of_very_many_passages_is_found(tmp_path: Path) -> None:
    chance = random.Random(17)
    texts = [f"passage {number}" for number in range(5_000)]
    known = {text: tuple(chance.gauss(0, 1) for _ in range(64)) for text in texts}
    wanted = known["passage 1234"]
    asked = tuple(one + chance.gauss(0, 0.3) for one in wanted)

    async def embedded(some: Sequence[str]) -> list[tuple[float, ...]]:
        return [known.get(text, asked) for text in some]

    near = Meanings(embedded, tmp_path / "vectors")
    assert (await near.nearest("q", texts, 3))[0] == 1_234


def test_settings_of_documents_are_checked() -> None:
    two = (DocsEntry("a", "/x"), DocsEntry("a", "/y"))
    assert (
        check_knowledge(Knowledge(docs=two)) == "two collections of documents have the name 'a': rename one."
    )
    assert "small letters" in (check_knowledge(Knowledge(docs=(DocsEntry("A b", "/x"),))) or "")
    assert "need a folder" in (check_knowledge(Knowledge(docs=(DocsEntry("a", "--upload-pack=x"),))) or "")
    assert "PROVIDER:NAME" in (check_knowledge(Knowledge(embeddings="nomic")) or "")
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


async def test_of_several_repositories_the_note_is_in_the_first(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path, {"shop/calc.py": "", "billing/calc.py": ""})
    parts = tuple(BasePart(folder, folder, bench.base, "main") for folder in ("shop", "billing"))
    bench.journal.add(BaseFixed(bench.base, "main", parts=parts))
    wish = NewRun("p", "r", notes="write")
    place = ToolPlace(0, bench.journal, bench.computer, wish, bench.bare, bench.base, (BUILT_IN,))
    async with NoteTool()(place) as offer:
        done = await offer.tools[0].run(bench.computer, NoteArgs("A fact."), lambda stream, data: None)
    assert done.ok, done.text
    assert (bench.computer.work / "shop/.cloister/notes.md").read_text().endswith("- A fact.\n")
    assert not (bench.computer.work / ".cloister").exists()


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
    for before in (
        "",
        "# Ours\n\n- Old.\n",
        "# No newline at the end",
        "# Odd\u2028\x0c\rlines\r\n- Old.\r\n",
    ):
        repo = SampleRepo(tmp_path / f"r{len(before)}")
        repo.write("a.txt", "a")
        if before:
            repo.write(".cloister/notes.md", before)
        repo.commit("base")
        patch = diff_of_notes(before, ["Old.", "New."])
        repo.git("apply", "--check", "-", stdin=patch.encode())
        repo.git("apply", "-", stdin=patch.encode())
        assert (repo.path / ".cloister/notes.md").read_bytes().decode() == with_notes(
            before, ["Old.", "New."]
        )
    assert diff_of_notes("- Old.\n", ["Old."]) == ""
