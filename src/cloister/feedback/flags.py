"""How tools are told to leave a report that we can read, whatever command line starts them."""

import shlex


def environment(junit_path: str) -> dict[str, str]:
    """Variables under which any check that ends up in pytest writes a JUnit file.

    The xunit1 family is the one that names files and lines; the cache would litter the repository.
    Bytecode is told from its source by size and whole second, so a quick edit after a check could be judged
    by the code before it: no bytecode is written.
    """
    path = shlex.quote(f"--junitxml={junit_path}")
    return {
        "PYTEST_ADDOPTS": f"{path} -o junit_family=xunit1 -p no:cacheprovider",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
