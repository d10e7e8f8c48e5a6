"""Repositories to start from."""

from pathlib import Path

import pytest

from cloister.testing.samples import SampleRepo


@pytest.fixture
def repo(tmp_path: Path) -> SampleRepo:
    """Two commits on `main`, with a subdirectory, an ignore rule and a tracked file that it names."""
    repo = SampleRepo(tmp_path / "repo")
    repo.write("README.md", "# Sample\n")
    repo.write("src/app.py", "print('one')\n")
    repo.commit("First")
    repo.write(".gitignore", "*.log\nbuild/\n")
    repo.write("kept.log", "tracked although ignored\n")
    repo.commit("Second")
    return repo
