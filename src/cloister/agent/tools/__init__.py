"""The tools of a model, one file each (those about files share one)."""

from cloister.agent.tools.api import AnyTool
from cloister.agent.tools.ask import ASK
from cloister.agent.tools.bash import BASH
from cloister.agent.tools.files import EDIT, READ, SEARCH, WRITE
from cloister.agent.tools.recall import FINISH, RECALL

TOOLS: dict[str, AnyTool] = {
    tool.name: tool for tool in (BASH, READ, WRITE, EDIT, SEARCH, RECALL, ASK, FINISH)
}
