import re

import pytest
from tests.whole.clients.integrations.conftest import Try
from tests.whole.clients.integrations.programs import FRAMEWORKS
from tests.whole.e2e.conftest import ROOT

PAGES = ROOT / "docs" / "integrations"
HEAVY = ("crewai", "deepagents-code", "harbor")
"""Hundreds of megabytes each."""


def page_of(name: str) -> str:
    return (PAGES / f"{name.removesuffix('-code')}.md").read_text()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long(only=True)) if name in HEAVY else name for name in FRAMEWORKS],
)
def test_the_framework_works_in_a_sandbox(name: str, attempt: Try) -> None:
    framework = FRAMEWORKS[name]
    example = re.findall(r"```python\n(.*?)```", page_of(name), re.DOTALL)[0]
    imports = "\n".join(line for line in example.splitlines() if line.startswith(("from ", "import ")))
    attempt(framework, f"{imports}\n{framework.program.replace('EXAMPLE', example)}")


def test_each_integration_has_a_page_that_names_what_is_tried() -> None:
    index = (PAGES / "README.md").read_text()
    for name, framework in FRAMEWORKS.items():
        assert f"({name.removesuffix('-code')}.md)" in index
        assert framework.packages[0].replace("==", " ") in page_of(name)
