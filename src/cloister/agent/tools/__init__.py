"""The tools of a model, one file each (`read`, `write` and `edit` share one)."""

from cloister.agent.tools.api import AnyTool
from cloister.agent.tools.bash import BASH
from cloister.agent.tools.files import EDIT, READ, WRITE
from cloister.agent.tools.recall import FINISH, RECALL
from cloister.agent.tools.search import SEARCH

TOOLS: dict[str, AnyTool] = {tool.name: tool for tool in (BASH, READ, WRITE, EDIT, SEARCH, RECALL, FINISH)}
