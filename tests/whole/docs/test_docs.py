import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.main import get_command

from cloister.app.checkup import Finding
from cloister.app.settings import FileSettings
from cloister.app.verbs.records import (
    BackgroundCommand,
    EnvironmentInfo,
    Explained,
    ForgeCheck,
    LocalModel,
    MadeToken,
    PolicyVerdict,
    TokenInfo,
    TriggerInfo,
)
from cloister.app.verbs.webhooks import DeadDelivery, MadeWebhook, WebhookInfo
from cloister.cli.entry import app
from cloister.cli.fleet import FleetResult
from cloister.cli.lazy import COMMANDS
from cloister.core.budget import Account
from cloister.core.computer import Entry
from cloister.core.events import ChangeDelivered
from cloister.egress.packages import Meaning
from cloister.environment.api import Plan
from cloister.log.audit.entry import AuditEntry
from cloister.log.audit.verify import Verdict
from cloister.policy.api import Layer
from cloister.runs.attempts.compare import Compared
from cloister.runs.attempts.tree import TreeView
from cloister.runs.delivery import Removal
from cloister.runs.receipt import Receipt
from cloister.sandbox.api import SandboxInfo, SnapshotInfo
from cloister.sandbox.templates.catalog import TemplateInfo
from cloister.sandbox.templates.recipes import BUILT_IN, Packages

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
    for outcome in ("proven", "unbroken", "unproven", "red", "budget", "stopped", "failed"):
        assert f"| `{outcome}` |" in page


def _typed_commands(page: Path) -> list[list[str]]:
    """The words of each `cloister …` in the shell blocks of a page, without what follows it on the line."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line.split("  #")[0] for block in blocks for line in block.splitlines()]
    found = [re.search(r"(?:^|[ (/])cloister ([^)|;&]*)", line) for line in lines]
    return [shlex.split(match[1]) for match in found if match]


def _unknown(words: list[str]) -> str | None:
    """The first word of a command line that is neither a command nor an option of it."""
    at: Any = get_command(app)
    for name in COMMANDS:
        at.get_command(None, name)  # loads it
    options = {"--help", "-h"}
    for word in ("", *words):
        commands: dict[str, Any] = getattr(at, "commands", {})
        if word == "--":
            return None
        if word in commands or not word:
            at = commands.get(word, at)
            options |= {name for each in at.params for name in each.opts}
        elif (word.startswith("-") and word.partition("=")[0] not in options) or (
            commands and word.isalpha()
        ):
            return word
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_typed_command_has_a_known_name_and_known_options(page: Path) -> None:
    wrong = {" ".join(words): word for words in _typed_commands(page) if (word := _unknown(words))}
    assert wrong == {}


def test_the_pages_for_beginners_show_commands() -> None:
    shown = {name: len(_typed_commands(ROOT / name)) for name in ("README.md", "docs/quickstart.md")}
    assert shown["README.md"] >= 3
    assert shown["docs/quickstart.md"] >= 15


RECORDS: dict[str, type[msgspec.Struct]] = {
    "pr": ChangeDelivered,
    "tree": TreeView,
    "compare": Compared,
    "receipt": Receipt,
    "audit show": AuditEntry,
    "audit verify": Verdict,
    "budget": Account,
    "sandbox create": SandboxInfo,
    "sandbox commands": BackgroundCommand,
    "sandbox files": Entry,
    "snapshot show": SnapshotInfo,
    "template show": TemplateInfo,
    "env show": Plan,
    "env check": EnvironmentInfo,
    "model list": LocalModel,
    "policy explain": Explained,
    "policy check": Layer,
    "policy test": PolicyVerdict,
    "policy sets": Meaning,
    "forge check": ForgeCheck,
    "fleet": FleetResult,
    "trigger ls": TriggerInfo,
    "token add": MadeToken,
    "gc": Removal,
    "webhook add": MadeWebhook,
    "webhook ls": WebhookInfo,
    "webhook dead": DeadDelivery,
    "token list": TokenInfo,
    "doctor": Finding,
}
"""Command → the record that it prints with `--json`."""


def test_every_field_that_a_command_prints_as_json_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    table = text[text.index("## JSON") :]
    for command, record in RECORDS.items():
        cells = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
        (fields,) = [cell[2] for cell in cells if f"`{command}`" in cell[1]]
        named = set(re.findall(r"`(\w+)`", fields))
        assert named == set(record.__struct_encode_fields__), command


def test_the_page_about_templates_names_the_packages_of_default() -> None:
    text = " ".join((ROOT / "docs/guide/templates.md").read_text().split())
    said = text.partition("`default` has ")[2].partition(" (`cloister template show default`)")[0]
    recipe = BUILT_IN["default"]
    assert isinstance(recipe, Packages)
    words = {
        "build-essential": "C compiler",
        "python3": "Python",
        "python-is-python3": "Python",
        "ca-certificates": "",
    }
    short = (name.removeprefix("python3-") for name in recipe.packages)
    assert [name for name in short if words.get(name, name) not in said] == []
