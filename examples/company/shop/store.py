"""The orders, in PostgreSQL."""

import subprocess

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (number integer PRIMARY KEY, country text NOT NULL, cents integer NOT NULL);
INSERT INTO orders VALUES (7, 'DE', 1000), (8, 'FR', 250) ON CONFLICT DO NOTHING;
"""
PSQL = ("psql", "-h", "127.0.0.1", "-U", "postgres", "-d", "shop", "-v", "ON_ERROR_STOP=1", "-qtA", "-F", "|")


def query(text: str) -> list[list[str]]:
    done = subprocess.run([*PSQL, "-c", text], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return [line.split("|") for line in done.stdout.splitlines()]


def order(number: int) -> tuple[str, int]:
    """The country and the net amount of an order."""
    query(SCHEMA)
    ((country, cents),) = query(f"SELECT country, cents FROM orders WHERE number = {int(number)}")
    return country, int(cents)
