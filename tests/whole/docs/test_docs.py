import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from cloister.app.settings import FileSettings
from cloister.cli.entry import app

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "guest").glob("*.md")])
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


def test_the_settings_page_shows_a_file_that_is_accepted_with_every_setting() -> None:
    text = (ROOT / "docs/reference/settings.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    table = tomllib.loads(block)
    msgspec.convert(table, FileSettings)
    assert set(table) == set(FileSettings.__struct_fields__)


def test_every_environment_variable_is_on_the_settings_page() -> None:
    source = (ROOT / "src/cloister/app/settings.py").read_text()
    page = (ROOT / "docs/reference/settings.md").read_text()
    names = set(re.findall(r'"((?:CLOISTER|OPENAI|ANTHROPIC|GEMINI)_[A-Z_]+)"', source))
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_every_word_of_the_outcomes_is_explained() -> None:
    page = (ROOT / "docs/concepts.md").read_text()
    for outcome in ("green", "unproven", "red", "budget", "stopped", "failed"):
        assert f"| `{outcome}` |" in page


def test_the_readme_names_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    commands |= {group.name for group in app.registered_groups}
    assert {word for word in re.findall(r"cloister ([a-z]+)", readme) if word not in commands} <= {"by"}
