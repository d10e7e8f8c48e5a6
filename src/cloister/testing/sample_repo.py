"""Small git repositories for tests, made by git itself and independent of anybody's configuration."""

from pathlib import Path

from cloister.testing import _spawn

_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


class SampleRepo:
    """A repository with a working tree at `path`, made if it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        if not (path / ".git").exists():
            self.git("init", "--quiet", "--initial-branch=main", ".")

    def git(self, *args: str, stdin: bytes = b"") -> str:
        """What git prints, without the last newline."""
        return _spawn.output_of(("git", *args), self.path, _ENV, stdin).decode().removesuffix("\n")

    def write(self, name: str, text: str = "") -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def commit(self, message: str = "Change") -> str:
        """Commit everything, also nothing; returns the commit."""
        self.git("add", "--all", "--force", ".")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def branches(self) -> dict[str, str]:
        """Branch → commit."""
        listed = self.git("for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads")
        return dict(line.split(" ") for line in listed.splitlines())

    def state(self) -> tuple[str, ...]:
        """What delivering a change must leave alone: HEAD, the index, and the tree."""
        status = self.git("status", "--porcelain", "--untracked-files=all")
        return ((self.path / ".git" / "HEAD").read_text(), self.git("ls-files", "--stage"), status)
