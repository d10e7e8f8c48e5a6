"""The program that is killed: claims the run, appends, and says each number once it is durable.

Arguments: the file, the owner, and how often each of its two hands appends (without it: for ever).
"""

import sys
from itertools import count, islice
from pathlib import Path

import anyio

from cloister.core.events import PromptReceived, RunResumed
from cloister.core.ids import OwnerId
from cloister.core.requests import NewRun
from cloister.log.api import Backbone, Fence
from cloister.log.sqlite.backbone import open_backbone


def say(word: str, number: int) -> None:
    sys.stdout.write(f"{word} {number}\n")
    sys.stdout.flush()


async def work(backbone: Backbone, fence: Fence, times: int | None) -> None:
    for number in islice(count(), times):
        added = await backbone.append(fence, [RunResumed(number), RunResumed(number)])
        say("ack", added[-1].seq)


async def talk(backbone: Backbone, fence: Fence, times: int | None) -> None:
    for number in islice(count(), times):
        event = await backbone.append_outside(fence.run, PromptReceived("x" * (number % 9_000), "someone"))
        say("ack", event.seq)


async def main(path: Path, owner: OwnerId, times: int | None) -> None:
    async with open_backbone(path, owner_lives=lambda other: other == owner) as backbone:
        run, _ = await backbone.admit(NewRun(prompt="p", repo="r", key="the run"), "someone")
        fence = await backbone.claim(owner, run)
        assert fence is not None
        say("epoch", fence.epoch)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, backbone, fence, times)
            tasks.start_soon(talk, backbone, fence, times)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), OwnerId(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
