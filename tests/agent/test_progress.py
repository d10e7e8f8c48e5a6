"""The progress of an attempt with a growing log."""

from tests.agent.loop_bench import RUN, beginning, turn

from cloister.agent.progress import Progressing, progress
from cloister.core.events import Event, RunClaimed, RunResumed
from cloister.core.log import effective


def test_incremental_progress_equals_the_fold_of_the_whole_log() -> None:
    half = [*turn(3, 10, changed=True)][:-1]  # its checks ran, and it never ended
    bodies = [*beginning(), *turn(1, 10), *turn(2, 10, changed=True), *half]
    bodies += [RunClaimed("o-2", 2), RunResumed(len(bodies)), *turn(4, 10), *turn(5, 10)]
    events = [Event(RUN, seq, seq * 1.5, body) for seq, body in enumerate(bodies, start=1)]
    for stride in (1, 2, 7):
        growing = Progressing(0)
        seen = [(end, growing.over(events[:end])) for end in range(0, len(events) + 1, stride)]
        for end, found in seen:
            assert found == progress(effective(events[:end]), 0), f"after {end} events, {stride} at a time"
    counted, all_of_it = progress(effective(events), 0), progress(events, 0)
    assert counted.comparison != all_of_it.comparison, "what the cut-off turn found does not count"
