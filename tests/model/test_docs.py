"""The pages about models match the code: scripts load, tables match the catalog and the tests."""

import re
import tomllib
from pathlib import Path

import msgspec
from tests.model.wires import WIRES

from cloister.core.model_config import ModelRoutes
from cloister.model.catalog import CATALOG, FIRST_LISTED
from cloister.model.scripted import load_script

DOCS = Path(__file__).parents[2] / "docs/guide"
MODELS = (DOCS / "models.md").read_text(encoding="utf-8")


def rows(title: str) -> dict[str, list[str]]:
    """First column → the others, of the table below a title."""
    below = MODELS.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in below.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first.strip("`"): rest for first, *rest in cells}


def test_every_script_in_the_documentation_loads(tmp_path: Path) -> None:
    text = (DOCS.parent / "reference" / "scripted-model.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        path.write_text(block, encoding="utf-8")
        assert load_script(path).replies


def test_every_provider_is_in_the_table_with_its_key_its_model_and_its_extra() -> None:
    table = rows("Providers and keys")
    assert set(table) == {*CATALOG, "local", "script"}
    for kind, provider in CATALOG.items():
        _, key, model, extra = table[kind]
        assert f"`{provider.key_variable}`" in key
        assert model == ("the first" if provider.model == FIRST_LISTED else f"`{provider.model}`")
        assert extra == (f"`{provider.extra}`" if provider.extra else "")


def test_the_table_of_features_matches_the_tests() -> None:
    table = rows("Features by API")
    assert set(table) == set(WIRES)
    for kind, wire in WIRES.items():
        told = dict(zip(("fragments", "refused", "reasoning"), table[kind], strict=False))
        assert told == {what: "–" if what in wire.lacks else "yes" for what in told}, kind


def test_every_settings_example_is_valid() -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", MODELS, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    for block in blocks:
        msgspec.convert(tomllib.loads(block)["models"], ModelRoutes)
