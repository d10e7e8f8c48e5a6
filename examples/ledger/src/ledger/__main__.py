"""`python3 -m ledger FILE` prints the statement of a file."""

import sys
from pathlib import Path

from ledger.reader import read_book
from ledger.statement import statement


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python3 -m ledger FILE", file=sys.stderr)
        return 2
    try:
        lines = Path(arguments[0]).read_text(encoding="utf-8").splitlines()
        print(statement(read_book(lines)))
    except (OSError, ValueError) as error:
        print(f"ledger: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
