# pyright: basic, reportMissingImports=false
"""One run of mini-swe-agent on given commands, in its own environment: prints what each step took, as JSON.

Arguments: the directory to work in, where to save the trajectory, how many steps, the command.
Its own scripted model is used, without repeating the whole script in each step's settings, which no real model does.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["MSWEA_SILENT_STARTUP"] = "1"

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.test_models import DeterministicModel, make_output

SYSTEM = "You are a helpful assistant that can do anything."


class Model(DeterministicModel):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.asked = []
        self.answering = []

    def query(self, messages, **kwargs):
        started = time.monotonic()
        self.asked.append(started)
        reply = super().query(messages, **kwargs)
        self.answering.append(time.monotonic() - started)
        return reply

    def get_template_vars(self, **kwargs):
        return {"model_name": self.config.model_name}

    def serialize(self):
        return {"info": {"config": {"model": {"model_name": self.config.model_name}}}}


def main() -> None:
    directory, trajectory, steps, command = sys.argv[1:]
    outputs = [make_output("Look.", [{"command": command}], cost=0.0) for _ in range(int(steps))]
    done = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    outputs.append(make_output("Done.", [{"command": done}], cost=0.0))
    model = Model(outputs=outputs, cost_per_call=0.0)
    agent = DefaultAgent(
        model,
        LocalEnvironment(cwd=directory),
        system_template=SYSTEM,
        instance_template="{{task}}",
        output_path=Path(trajectory),
        cost_limit=0,
    )
    agent.run("bench")
    between = [later - earlier for earlier, later in zip(model.asked, model.asked[1:], strict=False)]
    print(json.dumps([wall - own for wall, own in zip(between, model.answering, strict=False)]))


main()
