"""Ruby: Debian's interpreter, and the gems that Bundler installs."""

import re
from collections.abc import Iterator

from cloister.environment.api import (
    HOME,
    AptPackage,
    Line,
    Manager,
    Registry,
    Step,
    Toolchain,
    Used,
    Variable,
)
from cloister.environment.hints import Hints, Named
from cloister.environment.listing import Project
from cloister.environment.versions import satisfies

VERSION = "3.1"
_RUBY = re.compile(r"""(?m)^\s{0,8}ruby\s{0,4}\(?["']([^"'\n]{1,40})["']""")
_TEST = re.compile(r"(?:test|spec)/(?:[^/]{1,200}/){0,3}(?:test_[^/]{1,200}|[^/]{1,200}_(?:test|spec))\.rb")
_LIBRARIES = {
    "pg": "libpq-dev",
    "mysql2": "default-libmysqlclient-dev",
    "sqlite3": "libsqlite3-dev",
    "rmagick": "libmagickwand-dev",
}


def plan(project: Project, hints: Hints) -> Iterator[Line]:
    """What a directory with a Gemfile or a gemspec needs."""
    specs = [name for name in project.below() if "/" not in name and name.endswith(".gemspec")]
    manifest = project.first("Gemfile", *specs)
    if manifest is None:
        yield from _plain(project)
        return
    names = ("Gemfile", "Gemfile.lock", *specs)
    yield from (Used(project.path(name)) for name in names if project.has(name))
    text = project.text(".ruby-version").strip().removeprefix("ruby-")[:20]
    named = Named(text, project.path(".ruby-version")) if text else hints.version("ruby")
    if not named.text and (found := _RUBY.search(project.text("Gemfile"))):
        named = Named(found[1], project.path("Gemfile"))
    why = f"{named.text} in {named.file}" if named.text else manifest
    problem = None
    if named.firm and not satisfies(VERSION, named.text):
        problem = f"Ruby {named.text} cannot be had (Debian 12 has {VERSION}, no registry has others): {VERSION} is used"
    yield Toolchain("ruby", VERSION, "debian", why, named.text, problem)
    yield from (
        AptPackage(name, f"Ruby {VERSION}: {why}") for name in ("ruby", "ruby-dev", "bundler", "rake")
    )
    for gem, package in _LIBRARIES.items():
        if re.search(rf"""(?m)^\s{{0,8}}gem\s{{1,4}}["']{gem}["']""", project.text("Gemfile")):
            yield AptPackage(package, f"the gem {gem} needs it")
    yield Manager("bundler", "2.3", "debian", manifest)
    yield Variable("BUNDLE_PATH", f"{HOME}/gems", manifest)
    if project.has("Gemfile"):
        yield Registry("@gems", manifest)
        yield Step("bundle install --quiet", manifest, project.at)


def _plain(project: Project) -> Iterator[Line]:
    """Ruby without Bundler: the interpreter, and the test libraries that its tests use from Debian."""
    tests = [name for name in project.below() if _TEST.fullmatch(name)]
    rspec = any(name.endswith("_spec.rb") for name in tests)
    if not tests or project.at:
        return
    shown = project.path("Rakefile") if project.has("Rakefile") else project.path(tests[0])
    yield Toolchain("ruby", VERSION, "debian", shown)
    names = ("ruby", "rake", "ruby-rspec") if rspec else ("ruby", "rake", "ruby-minitest", "ruby-test-unit")
    yield from (AptPackage(name, f"Ruby {VERSION}: {shown}") for name in names)
