"""WORDS: the ids, events, records, errors and limits that every other package speaks. No I/O, except in `system`."""
