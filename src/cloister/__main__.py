"""`python -m cloister` is the `cloister` command."""

from cloister.cli import main

if __name__ == "__main__":
    main()
