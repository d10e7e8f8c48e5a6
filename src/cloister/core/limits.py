"""Every limit that is not a setting, with its unit, in one place."""

PROMPT_BYTES = 262_144
"""Longest prompt or message a run takes."""

PROMPT_CHARS_LISTED = 2_000
"""Length of a prompt in a list; event 1 has all of it."""

EVENT_BYTES = 8_388_608
"""Largest encoded event; the texts of an event are bounded before it is built."""

REPLY_BYTES = 1_048_576
"""Largest reply of a model, with the arguments of its calls."""

IMAGE_BYTES = 3_932_160
"""Largest image a model is shown: what every provider takes, also after its encoding as text."""

IMAGES = 16
"""Images of one message."""

ATTACHMENTS = 8
"""Pictures and text files of one message."""
RUN_ATTACHMENTS = 24
ATTACHED_BYTES = 16_777_216
"""All attachments of one run together: what every provider takes in one request."""

RUN_RULES = 200
"""Rules in one request for a run."""

SETUP_CHARS = 2_000
CHECKS = 8
"""Checks of one run; that many diagnoses fit into one event."""

REPOSITORIES = 8
"""Repositories of one run."""

PAGES = 6
"""Pages of which a run takes pictures by itself."""

ASKED = 100
"""Tests that one request may name."""

OBSERVATION_CHARS = 12_000
"""What a model sees of one tool result; head and tail are kept."""

OUTPUT_BYTES = 8_388_608
"""What one command may print before it is killed with `killed="output"`."""

ENDLESS_BYTES = 1_125_899_906_842_624
"""Output limit of a streamed command: a slow reader slows the command down instead."""

COMMAND_SECONDS = 120.0
CHECK_SECONDS = 600.0
GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""

FILE_BYTES = 268_435_456
"""Largest file read into memory by the host."""

FRAME_BYTES = 65_536
"""Largest payload of one guest frame, either way."""

WINDOW_BYTES = 262_144
"""Unacknowledged output per command; the command blocks beyond it."""

WIDE_BYTES = 1_048_576
"""A larger window that the guest may grant on a few busy channels."""

CONCURRENT_COMMANDS = 64
"""Live commands, file operations and relayed connections per sandbox."""

CALL_TOKENS = 1_000_000_000_000
"""Largest token count believed for one call to a model."""

BUDGET_MAX = 1_000_000_000_000_000
"""Steps or tokens of the largest budget."""

RUN_SECONDS_MAX = 604_800.0
"""Largest time budget."""

COMMANDS_KEPT = 128
"""Finished background commands that stay on record, with their kept output."""

ATTEMPTS = 8
"""Largest `--n`."""

HINT_CHARS = 20_000
"""Longest hint of an attempt."""

SEARCH_NODES = 16
"""Attempts of one run, including those from search and rewinding."""

SEARCH_DEPTH = 6
"""Forks of forks."""

TTL_SECONDS = 3_600.0
"""Default lifetime of a sandbox."""

TTL_SECONDS_MAX = 86_400.0

ENDLESS_SECONDS = 4_000_000.0
"""The limit of a command that may run as long as its sandbox lives, which can be given more time again and again."""

FORKS = 64
"""Forks per request."""

SNAPSHOT_SECONDS = 1_209_600.0
"""How long a snapshot without a name is kept."""

SNAPSHOTS_BYTES = 107_374_182_400
"""All snapshots of a machine; beyond it the oldest are removed, unnamed ones first."""

TESTS_KEPT = 5_000
DIAGNOSTICS_KEPT = 200
"""What one diagnosis stores; counts are always exact."""

DIAGNOSIS_BYTES = 655_360
"""The encoded tests and diagnostics of one diagnosis; a passing test over it is counted, not named."""

JUNIT_BYTES = 33_554_432
"""Largest JUnit file that is read."""

DOOR_CONNECTIONS = 256
"""Live proxy connections per sandbox; the guest relays as many."""

DOOR_BYTES = 107_374_182_400
"""Proxy traffic of one sandbox in its life, both directions together."""

DOOR_CONNECTION_SECONDS = 21_600.0
"""Longest proxy connection."""

DOOR_REQUESTS_PER_SECOND = 100.0
DOOR_REQUESTS_AT_ONCE = 1_000
"""New connections and requests of one sandbox: a burst, and the rate after it."""

DOOR_REQUESTS_RECORDED = 2_000
"""Requests of one sandbox that the log records one by one; connections always are."""

DOOR_DECISIONS = 50_000
"""Connections of one sandbox that are decided and recorded in its life; then the proxy rejects all."""

DOOR_SANDBOXES = 4_096
"""Sandboxes without a live connection whose usage a proxy remembers."""

DOOR_HEAD_BYTES = 16_384
"""Longest request head and TLS ClientHello that the proxy reads."""

DOOR_HEAD_SECONDS = 30.0
"""From the first byte of a request head or TLS greeting to its last."""

DOOR_DIAL_SECONDS = 15.0
"""Resolving and connecting, each."""

DOOR_LOOKUPS = 8
DOOR_LOOKUPS_AT_ONCE = 128
"""Name lookups at a time: of one sandbox, and of all."""

DOOR_IDLE_SECONDS = 300.0
"""Idle proxy connections are closed after this."""

GIT_SECONDS = 120.0
"""One git command on this machine."""

FETCH_SECONDS = 1_800.0
"""One fetch of a repository."""

DELIVERY_SECONDS = 3_600.0
"""How long a run tries to deliver its change to a forge that cannot be reached."""

FETCH_BYTES = 10_737_418_240
"""Packed size of one repository that is fetched from a URL."""

FETCH_MEMORY_BYTES = 4_294_967_296
"""Memory of each process of a fetch from a URL, which indexes the pack."""

LISTING_MEMORY_BYTES = 268_435_456
"""Memory of git while it lists the refs of a URL."""

DISK_FLOOR_BYTES = 10_737_418_240
DISK_FLOOR_SHARE = 0.05
"""Free space that sandboxes and save points leave on the disk: the smaller of these two."""

SAVE_PACKS = 32
"""Packs of a run's repository after which they are joined into one."""

GIT_MEMORY_BYTES = 2_147_483_648
"""Memory of git on this machine while it reads a guest's objects."""

HISTORY_BYTES = 209_715_200
"""Packed history copied into a sandbox; longer history is cut at an older commit."""

KEPT_BYTES = 67_108_864
KEPT_FILES = 2_000
"""Ignored files that a save point keeps."""

LFS_BYTES = 2_147_483_648
"""Content of LFS that is fetched for one run."""

CHANGE_BYTES = 134_217_728
"""Packed size of one save point from a sandbox."""

DIFF_BYTES = 4_194_304
"""Longest diff that is shown."""

ENDPOINT_CALLS = 16
"""Concurrent requests of programs in one sandbox to the run's model."""

ENDPOINT_FAILURES = 500
"""Failed model calls of programs in one sandbox after which further calls are rejected."""

ENDPOINT_BODY_BYTES = 16_777_216
"""One request of a program in a sandbox to the run's model, images included."""

ENDPOINT_BODY_PARTS = 250_000
"""Commas and opening brackets in such a request: each may become an object in memory."""

ENDPOINT_HELD_BYTES = 33_554_432
"""All such requests of one sandbox at a time."""

ENDPOINT_DECODES = 2
"""Such requests that are decoded at a time, over all sandboxes."""

FILE_CLOCK_NANOSECONDS = 20_000_000
"""Longer than the timestamp granularity of any file system: a file modified within it may change again unnoticed."""
