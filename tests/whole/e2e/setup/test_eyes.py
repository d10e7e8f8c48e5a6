"""A run looks at a page in the template with the browser, before and after its change."""

from typing import Any

import pytest
from tests.whole.e2e.setup.test_environments import registry
from tests.whole.e2e.test_continue import CHECK, FIX, bash, finish, repository, script

PAGE = "<!DOCTYPE html><title>shop</title><body style='background: red'>Total: 12</body>\n"
LOOK = 'calls = [{ tool = "look", page = "page.html", width = 400, height = 300 }]\n'
SCRIPT = f"""\
[[reply]]
{LOOK}
[[reply]]
expect = "Attached picture: page-html-400x300.png"
calls = [{{ tool = "edit", path = "page.html", old = "red", new = "blue" }}]

[[reply]]
{LOOK}
[[reply]]
expect = "Attached picture"
calls = [{{ tool = "finish", summary = "The page is blue" }}]
"""


def test_pages_that_cannot_be_pictured_are_named_and_the_change_arrives(cloister: Any) -> None:
    repo = repository(cloister)
    (repo / ".cloister").mkdir()
    (repo / ".cloister/config.toml").write_text('pages = ["page.html"]\n')
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "a page")
    model = cloister.script(script(bash(FIX), finish("Add adds.")))
    done = cloister("run", "Fix add", "--repo", str(repo), "--model", model, *CHECK)
    assert "✓ proven" in done.stdout
    assert "took no picture of page.html: the environment has no browser" in done.stdout, done.stdout
    (taken,) = [event["body"] for event in cloister.events() if event["body"]["type"] == "PagesPictured"]
    assert (taken["before"], taken["after"], len(taken["problems"])) == ([], [], 2)
    assert cloister.git(repo, "branch", "--list", "cloister/*")
    assert "has looked at no page" in cloister("diff", "last", "--pictures", "x", code=2).stderr


@pytest.mark.long(only=True)
def test_the_pictures_of_a_page_before_and_after_are_saved(cloister: Any) -> None:
    registry("debian")
    repo = cloister.ledger()
    (repo / "page.html").write_text(PAGE)
    (repo / ".cloister").mkdir(exist_ok=True)
    (repo / ".cloister/config.toml").write_text('pages = ["page.html"]\n')
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", "a page")
    run = ("run", "Make it blue", "--repo", str(repo), "--template", "browser", "--check", "true")
    model = cloister.script(SCRIPT)
    done = cloister(*run, "--accept", "unbroken", "--model", model, seconds=900)
    both = (
        "page-html-400x300.png, page-html-1280x800.png: cloister diff r-"  # of the tool, and of the settings
    )
    assert both in done.stdout, done.stdout
    assert [event for event in cloister.kinds() if event == "ConnectionDecided"] == []
    cloister("diff", "last", "--pictures", str(cloister.cwd / "pictures"))
    for size in ("400x300", "1280x800"):
        before, after = (
            (cloister.cwd / "pictures" / f"{when}-page-html-{size}.png").read_bytes()
            for when in ("before", "after")
        )
        assert before.startswith(b"\x89PNG")
        assert after.startswith(b"\x89PNG")
        assert before != after
