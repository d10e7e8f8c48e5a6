"""Addresses of repositories: one name for every spelling, and none that holds a credential."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.addresses import (
    canonical_glob,
    canonical_repository,
    check_address,
    repository_matches,
    repository_names,
    without_userinfo,
)

SPELLINGS = [
    "https://git.example.com/team/app",
    "https://git.example.com/team/app/",
    "https://git.example.com/team/app.git",
    "https://git.example.com/team/app.git/",
    "HTTPS://GIT.Example.COM/Team/App",
    "https://git.example.com:443/team/app",
    "https://git.example.com:0443/team/app",
    "https://git.example.com:/team/app",
    "https://git.example.com./team/app",
    "https://git.example.com.:443/team/app",
    "https://git.example.com//team///app",
    "https://git.example.com/./team/x/../app",
    "https://git.example.com/te%61m/%61pp",
    "https://git%2Eexample.com/team/app",
    "https://user:p@ss@git.example.com/team/app",
    "http://git.example.com:80/team/app",
    "git://git.example.com:9418/team/app",
    "ssh://git@git.example.com/team/app",
    "ssh://git@git.example.com:22/team/app",
    "ssh://git.example.com:22//team/app.git",
    "git@git.example.com:team/app.git",
    "git@git.example.com:/team/app",
    "git.example.com:team/app",
    "GIT@Git.Example.com.:Team/App",
    "git@[git.example.com:22]:team/app",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_an_address_has_one_name(spelling: str) -> None:
    assert canonical_repository(spelling) == "git.example.com/team/app"
    assert repository_matches("git.example.com/team/*", spelling)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://bücher.example/a", "https://xn--bcher-kva.example/A.git"),
        ("https://ＧＩＴ.example/a", "https://git.example/a"),
        ("https://[::1]:443/a", "https://[0:0:0:0:0:0:0:1]/a"),
        ("http://127.1/a", "http://127.0.0.1/a"),
        ("http://0x7f000001:80/a", "git://127.0.0.1/a"),
        ("http://0177.0.1/a", "http://127.0.0.1/a"),
        ("ssh://git@[::1]:22/a", "git@[::1]:a"),
    ],
)
def test_internationalised_and_numeric_hosts_have_one_name(one: str, other: str) -> None:
    assert canonical_repository(one) == canonical_repository(other)


def test_another_host_path_or_server_stays_another_repository() -> None:
    names = {
        canonical_repository(url)
        for url in (
            "https://git.example.com/team/app",
            "https://git.example.com:8443/team/app",
            "https://git.example.com.evil.test/team/app",
            "https://git.example.com@evil.test/team/app",
            "https://git.example.com/team/app2",
            "/srv/team/app.git",
        )
    }
    assert len(names) == 6
    assert canonical_repository("/srv/Team//app.git") == "/srv/Team//app.git"


def test_rule_about_a_host_covers_its_other_ports() -> None:
    assert repository_names("ssh://git@git.example.com:2222/team/app") == (
        "git.example.com:2222/team/app",
        "git.example.com/team/app",
    )


@pytest.mark.parametrize(
    "glob",
    [
        "git.example.com/team/*",
        "GIT.example.com/Team/*",
        "https://git.example.com:443/team/*",
        "git.example.com./team/*.git",
        "git@git.example.com:team/*",
        "*/team/*",
        "*.example.com/team/app",
        "*",
    ],
)
def test_globs_are_read_in_the_same_spelling(glob: str) -> None:
    assert repository_matches(glob, "ssh://git@git.example.com:22/team/app")
    assert canonical_glob("/home/Me/*") == "/home/Me/*"


@pytest.mark.parametrize(
    "repo",
    [
        "https://TOKEN@host.test/a/b",
        "https://user:TOKEN@host.test/a",
        "https://:TOKEN@host.test/a",
        "https://x:p@TOKEN@host.test/a",
        "https://user:pa/TOKEN@host.test/a",
        "https://user:12/TOKEN@host.test/a",
        "HTTPS://TOKEN@host.test/a",
        " https://TOKEN@host.test/a",
        "https://user%3ATOKEN@host.test/a",
        "https://host.test/a?private_token=TOKEN",
        "https://host.test/a#TOKEN",
        "http://TOKEN@host.test",
        "git://TOKEN@host.test/a",
        "ssh://git:TOKEN@host.test/a",
        "ssh://git%3aTOKEN@host.test/a",
        "user:TOKEN@host.test:a/b",
        "user:p@TOKEN@host.test:a/b",
        "user:TOKEN@host.test/a/b",
    ],
)
def test_address_with_a_credential_is_refused_without_repeating_it(repo: str) -> None:
    problem = check_address(repo)

    assert problem is not None
    assert "TOKEN" not in problem
    assert "token" in problem


@pytest.mark.parametrize(
    "repo",
    [
        "https://host.test/a/b.git",
        "http://[::1]:3000/a",
        "ssh://git@host.test:22/a",
        "ssh://git@host.test/~me/a",
        "git@host.test:a/b",
        "git@host.test:@scope/b",
        "https://host.test/@scope/b",
        "host.test:a/b",
        "/home/me/a@b:c",
        "./a:b@c",
        "file:///home/me/a@b?c#d",
        "~/a",
    ],
)
def test_ordinary_addresses_and_paths_are_stored(repo: str) -> None:
    assert check_address(repo) is None


PART = st.text("ab@:%.!$~", min_size=1, max_size=12)


@given(PART, st.sampled_from(["https", "http", "ssh", "git"]))
def test_no_part_of_a_password_stays_in_text_about_a_url(password: str, scheme: str) -> None:
    url = f"{scheme}://user:SECRET{password}SECRET@host.test/a@b"

    assert without_userinfo(f"fatal: '{url}' not found") == f"fatal: '{scheme}://host.test/a@b' not found"
    assert check_address(url) is not None


@given(st.text("a:/@.[]%?#*~\\ é", max_size=30))
def test_any_text_can_be_named_and_a_url_is_named_alike_with_a_user_and_an_ending(text: str) -> None:
    check_address(text)
    assert repository_names(text)[0] == canonical_repository(text)
    path = "".join(char for char in text if char not in ":@?#")
    plain = canonical_repository(f"https://host.test/{path}")
    assert canonical_repository(f"ssh://git@HOST.test.:22//{path}") == plain
