"""The context's fold: a whole log of many steps at once, and one more turn on top of it. Processor time."""

import statistics
import time
from collections.abc import Callable

from cloister.agent.context.messages import Context, Window
from cloister.agent.native.stuck import StuckDetector
from cloister.agent.tools import TOOLS
from cloister.core.events import Event
from cloister.core.requests import Patience
from cloister.testing.loop_bench import RUN, long_log, turn

STEPS = 1_000
SPECS = tuple(tool.spec for tool in TOOLS.values())


def measure(name: str, work: Callable[[], object], goal: str) -> None:
    times: list[float] = []
    for _ in range(25):
        started = time.process_time()
        work()
        times.append((time.process_time() - started) * 1000)
    best, middle = min(times), statistics.median(times)
    print(f"{name:<52} best {best:7.2f} ms   p50 {middle:7.2f} ms   (goal: {goal})")


def main() -> None:
    events = long_log(STEPS)
    window = Window.of(128_000, SPECS)

    def whole() -> Context:
        context = Context(0, window)
        context.update(events)
        context.messages()
        return context

    measure(f"context fold of a {STEPS:,}-step log ({len(events):,} events)", whole, "≤ 20 ms")
    context = whole()
    grown = list(events)
    step = STEPS

    def one_more() -> None:
        nonlocal step
        step += 1
        for body in turn(step, 3_000):
            grown.append(Event(RUN, len(grown) + 1, 1.0, body))
        context.update(grown)
        context.messages()

    measure("one more turn, and its request", one_more, "≤ 5 ms")

    def circles() -> None:
        watch = StuckDetector(0, Patience())
        watch.update(events)
        watch.found()

    measure("looking for circles in the whole log", circles, "≤ 20 ms")


if __name__ == "__main__":
    main()
