"""Every limit that is not a setting, with its unit, in one place."""

PROMPT_BYTES = 262_144
"""Longest prompt or message a run takes."""

EVENT_BYTES = 8_388_608
"""Largest encoded event; whoever builds one bounds its texts first."""

REPLY_BYTES = 1_048_576
"""Largest reply of a model, with the arguments of its calls."""

IMAGE_BYTES = 3_932_160
"""Largest image a model is shown: what every provider takes, also after its encoding as text."""

IMAGES = 16
"""Images of one message."""

RUN_RULES = 200
"""Rules that a request for a run may bring along."""

CHECKS = 8
"""Checks of one run; that many diagnoses fit into one event."""

ASKED = 100
"""Tests that one run may be asked for by name."""

OBSERVATION_CHARS = 12_000
"""What a model sees of one tool result; head and tail are kept."""

OUTPUT_BYTES = 8_388_608
"""What one command may print before it is killed with `killed="output"`."""

ENDLESS_BYTES = 1_125_899_906_842_624
"""What a command may print when somebody takes it as it comes: who takes slowly slows it down."""

COMMAND_SECONDS = 120.0
CHECK_SECONDS = 600.0
GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""

FILE_BYTES = 268_435_456
"""Largest file read into memory by the host."""

FRAME_BYTES = 65_536
"""Largest payload of one guest frame, either way."""

WINDOW_BYTES = 262_144
"""Unacknowledged output per command; a command that is not read stops here."""

WIDE_BYTES = 1_048_576
"""What the guest may let the host send beyond that, on a few channels that carry much."""

CONCURRENT_COMMANDS = 64
"""Live commands, file operations and relayed connections per sandbox."""

CALL_TOKENS = 1_000_000_000_000
"""What one call to a model may be said to have taken; who says more does not count."""

BUDGET_MAX = 1_000_000_000_000_000
"""Steps or tokens of the largest budget."""

RUN_SECONDS_MAX = 604_800.0
"""Largest time budget."""

COMMANDS_KEPT = 128
"""Background commands that are over and still on record, with what is kept of their output."""

ATTEMPTS = 8
"""Largest `--n`."""

HINT_CHARS = 20_000
"""What one attempt may be told besides the task."""

SEARCH_NODES = 16
"""Attempts of one run with all that search and rewinding add."""

SEARCH_DEPTH = 6
"""Forks of forks."""

TTL_SECONDS = 3_600.0
"""How long a sandbox lives when nobody says otherwise."""

TTL_SECONDS_MAX = 86_400.0

FORKS = 64
"""Most forks that are asked for at once."""

SNAPSHOT_SECONDS = 1_209_600.0
"""How long a snapshot without a name is kept."""

SNAPSHOTS_BYTES = 107_374_182_400
"""All snapshots of a machine together; beyond it the oldest go, those without a name first."""

TESTS_KEPT = 5_000
DIAGNOSTICS_KEPT = 200
"""What one diagnosis stores; counts are always exact."""

DIAGNOSIS_BYTES = 655_360
"""The encoded tests and diagnostics of one diagnosis; a passing test over it is counted, not named."""

JUNIT_BYTES = 33_554_432
"""Largest JUnit file that is read."""

DOOR_CONNECTIONS = 256
"""Live connections through the door per sandbox; the guest relays as many."""

DOOR_BYTES = 107_374_182_400
"""What one sandbox may move through the door in its life, both ways together."""

DOOR_CONNECTION_SECONDS = 21_600.0
"""How long one connection through the door may last."""

DOOR_REQUESTS_PER_SECOND = 100.0
DOOR_REQUESTS_AT_ONCE = 1_000
"""New connections and requests of one sandbox: so many at once, and so many more each second."""

DOOR_REQUESTS_RECORDED = 2_000
"""Requests of one sandbox that are in the log one by one; connections always are."""

DOOR_DECISIONS = 50_000
"""Connections of one sandbox that are decided and recorded in its life, made or refused; then the door is shut."""

DOOR_SANDBOXES = 4_096
"""Sandboxes without a connection whose use of one door is remembered."""

DOOR_HEAD_BYTES = 16_384
"""Longest request head, and longest TLS ClientHello, the door reads."""

DOOR_HEAD_SECONDS = 10.0
DOOR_DIAL_SECONDS = 15.0
"""Resolving and connecting, each."""

DOOR_IDLE_SECONDS = 300.0
"""A connection through the door on which nothing moves either way ends after this."""

GIT_SECONDS = 120.0
"""One git command on this machine."""

FETCH_SECONDS = 1_800.0
"""Bringing a whole repository in."""

GIT_MEMORY_BYTES = 2_147_483_648
"""What git on this machine may take while it reads a guest's objects."""

HISTORY_BYTES = 209_715_200
"""Packed history that goes into a sandbox; a longer one is cut off at an older commit."""

CHANGE_BYTES = 134_217_728
"""Packed size of what one save may bring out of a sandbox."""

DIFF_BYTES = 4_194_304
"""What is shown of one diff."""

ENDPOINT_CALLS = 16
"""Requests of programs in one sandbox to their model at a time."""

ENDPOINT_FAILURES = 500
"""Calls of programs in one sandbox that may fail at the provider; then nothing more is asked for them."""

ENDPOINT_BODY_BYTES = 33_554_432
"""One request of a program inside to the run's model; pictures are in it."""

ENDPOINT_HELD_BYTES = 67_108_864
"""All requests of one sandbox that are served at a time."""

FILE_CLOCK_NANOSECONDS = 20_000_000
"""More than the clock of any filesystem stands still: a file changed since then may change again unseen."""
