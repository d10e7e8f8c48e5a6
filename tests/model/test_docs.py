"""The scripts in the documentation are scripts."""

import re
from pathlib import Path

from cloister.model.script import load_script

DOCS = Path(__file__).parents[2] / "docs"


def test_every_script_in_the_documentation_loads(tmp_path: Path) -> None:
    text = (DOCS / "scripted-model.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        path.write_text(block, encoding="utf-8")
        assert load_script(path).replies
