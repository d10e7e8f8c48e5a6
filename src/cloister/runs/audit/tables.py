"""The tables of the audit. Like the log they take new rows and nothing else."""

TABLES = (
    # AUTOINCREMENT remembers the highest number ever given: a missing tail shows even without a signature.
    """CREATE TABLE audit (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        at_us INTEGER NOT NULL,
        kind TEXT NOT NULL,
        run TEXT,
        seq INTEGER,
        who TEXT NOT NULL,
        detail TEXT NOT NULL,
        log TEXT,
        previous TEXT NOT NULL,
        hash TEXT NOT NULL
    ) STRICT""",
    "CREATE UNIQUE INDEX audit_of_runs ON audit (run, seq) WHERE run IS NOT NULL",
    "CREATE INDEX audit_of_keys ON audit (number) WHERE kind = 'KeyMade'",
    """CREATE TRIGGER audit_never_changes BEFORE UPDATE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END""",
    """CREATE TRIGGER audit_never_goes BEFORE DELETE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END""",
    """CREATE TRIGGER audit_is_a_chain BEFORE INSERT ON audit
        WHEN NEW.number <> 1 + COALESCE((SELECT MAX(number) FROM audit), 0)
            OR NEW.previous <> COALESCE((SELECT hash FROM audit ORDER BY number DESC LIMIT 1), NEW.previous)
        BEGIN SELECT RAISE(ABORT, 'the audit is one chain'); END""",
    """CREATE TABLE audit_checkpoints (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        number INTEGER NOT NULL,
        hash TEXT NOT NULL,
        at_us INTEGER NOT NULL,
        run TEXT,
        key TEXT NOT NULL,
        signature TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX audit_checkpoints_by_number ON audit_checkpoints (number)",
    """CREATE TRIGGER audit_checkpoints_never_change BEFORE UPDATE ON audit_checkpoints
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END""",
    """CREATE TRIGGER audit_checkpoints_never_go BEFORE DELETE ON audit_checkpoints
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END""",
)

RUN_COLUMNS = (
    "ALTER TABLE runs ADD COLUMN who TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN log TEXT NOT NULL DEFAULT ''",
)
"""Who asked for a run, and the hash over its log so far."""
