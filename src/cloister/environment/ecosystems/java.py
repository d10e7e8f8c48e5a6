"""Java and Kotlin: Debian's JDK, and Maven or the wrapper that the repository holds."""

import re
from collections.abc import Iterator

from cloister.environment.api import AptPackage, Line, Manager, Note, Registry, Step, Toolchain, Used
from cloister.environment.hints import Hints, Named
from cloister.environment.listing import Project
from cloister.environment.versions import parse

VERSION = "17"
"""The newest JDK of Debian 12."""
_MAVEN = re.compile(
    r"<(maven\.compiler\.release|maven\.compiler\.source|java\.version|javaVersion|jdk\.version|release|source)>"
    r"\s{0,20}(?:1\.)?(\d{1,2})\s{0,20}<"
)
_GRADLE = re.compile(
    r"(JavaLanguageVersion\.of|jvmToolchain|languageVersion|sourceCompatibility|release)\b[\s=.(\"'A-Za-z]{0,40}?_?(?:1[._])?(\d{1,2})\b"
)
_WRAPPER = "gradle/wrapper/gradle-wrapper.properties"
_DISTRIBUTION = re.compile(r"(?m)^distributionUrl=https\\?://([A-Za-z0-9.-]{1,120})/")
_BUILDS = ("build.gradle.kts", "build.gradle", "settings.gradle.kts", "settings.gradle")


def plan(project: Project, hints: Hints) -> Iterator[Line]:
    """What a directory with `pom.xml` or a Gradle build needs."""
    maven, gradle = project.first("pom.xml"), project.first(*_BUILDS)
    manifest = maven or gradle
    if manifest is None:
        return
    files = [
        name
        for name in project.below()
        if name.rpartition("/")[2] in ("pom.xml", *_BUILDS, "libs.versions.toml")
    ]
    yield from (Used(project.path(name)) for name in files[:200])
    named = _named(project, maven is not None) or hints.version("java")
    why = f"{named.text} in {named.file}" if named.text else manifest
    problem = None
    if named.firm and parse(named.text)[:1] > parse(VERSION):
        problem = f"Java {named.text} cannot be had (Debian 12 has {VERSION}, no registry has others): {VERSION} is used"
    yield Toolchain("java", VERSION, "debian", why, named.text, problem)
    yield AptPackage(f"openjdk-{VERSION}-jdk-headless", f"Java {VERSION}: {why}")
    if maven is not None:
        yield from _maven(project, maven)
    else:
        yield from _gradle(project, manifest)


def _named(project: Project, maven: bool) -> Named | None:
    if text := project.text(".java-version").strip()[:20]:
        return Named(text, project.path(".java-version"))
    for name in ("pom.xml",) if maven else _BUILDS[:2]:
        if found := (_MAVEN if maven else _GRADLE).search(project.text(name)):
            return Named(found[2], f"{found[1]} of {project.path(name)}")
    return None


def _maven(project: Project, manifest: str) -> Iterator[Line]:
    yield Manager("maven", "3.8", "debian", manifest)
    yield AptPackage("maven", manifest)
    yield Registry("@maven", manifest)
    yield Step("mvn -B -q -DskipTests test-compile", manifest, project.at)


def _gradle(project: Project, manifest: str) -> Iterator[Line]:
    wrapper = project.first("gradlew")
    yield Manager(
        "gradle", "" if wrapper else "4.4", "repository" if wrapper else "debian", wrapper or manifest
    )
    if wrapper is None:
        yield AptPackage("gradle", manifest)
    yield Registry("@maven", manifest)
    if wrapper is not None and (found := _DISTRIBUTION.search(project.text(_WRAPPER))):
        yield Note(
            f"{wrapper} downloads Gradle from {found[1]}: allow it with --allow-host {found[1]}, or set-up fails"
        )
    yield Step(f"{'./gradlew' if wrapper else 'gradle'} --no-daemon -q testClasses", manifest, project.at)
