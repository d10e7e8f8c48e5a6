"""C and C++: the build system, and the libraries that its files name."""

import re
from collections.abc import Iterator

from cloister.environment.api import AptPackage, Line, Manager, Note, Toolchain, Used
from cloister.environment.ecosystems.python import tools
from cloister.environment.hints import Hints
from cloister.environment.listing import Project
from cloister.environment.versions import parse

_CMAKE = "3.25"
_MESON = "1.0"
_NEEDS_CMAKE = re.compile(r"(?i)cmake_minimum_required\s{0,8}\(\s{0,8}VERSION\s{1,8}(\d{1,2}\.\d{1,3})")
_NEEDS_MESON = re.compile(r"meson_version\s{0,8}:\s{0,8}'\s{0,4}>?=?\s{0,4}(\d{1,2}\.\d{1,3})")
_USES = re.compile(
    r"(?:find_package\s{0,4}\(\s{0,8}|dependency\s{0,4}\(\s{0,4}'|pkg_(?:check|search)_module[s]?\s{0,4}\(\s{0,8}\w{1,60}\s{1,8}"
    r"(?:REQUIRED\s{1,8})?(?:IMPORTED_TARGET\s{1,8})?|PKG_CHECK_MODULES\s{0,4}\(\s{0,8}\[?\w{1,60}\]?\s{0,8},\s{0,8}\[?|AC_CHECK_LIB\s{0,4}\(\s{0,8}\[?)"
    r"([A-Za-z][\w.+-]{0,60})"
)
_DOWNLOADS = re.compile(
    r"(?i)\b(FetchContent_Declare|ExternalProject_Add|CPMAddPackage)\s{0,8}\(\s{0,40}(\w{1,60})"
)
_LIBRARIES = {
    "openssl": "libssl-dev",
    "ssl": "libssl-dev",
    "libssl": "libssl-dev",
    "libcrypto": "libssl-dev",
    "zlib": "zlib1g-dev",
    "z": "zlib1g-dev",
    "bzip2": "libbz2-dev",
    "bz2": "libbz2-dev",
    "lzma": "liblzma-dev",
    "liblzma": "liblzma-dev",
    "zstd": "libzstd-dev",
    "libzstd": "libzstd-dev",
    "lz4": "liblz4-dev",
    "boost": "libboost-all-dev",
    "gtest": "libgtest-dev",
    "gmock": "libgmock-dev",
    "catch2": "catch2",
    "doctest": "doctest-dev",
    "cmocka": "libcmocka-dev",
    "check": "check",
    "cunit": "libcunit1-dev",
    "benchmark": "libbenchmark-dev",
    "curl": "libcurl4-openssl-dev",
    "libcurl": "libcurl4-openssl-dev",
    "sqlite3": "libsqlite3-dev",
    "libxml2": "libxml2-dev",
    "libxml-2.0": "libxml2-dev",
    "expat": "libexpat1-dev",
    "protobuf": "libprotobuf-dev",
    "eigen3": "libeigen3-dev",
    "fmt": "libfmt-dev",
    "spdlog": "libspdlog-dev",
    "nlohmann_json": "nlohmann-json3-dev",
    "png": "libpng-dev",
    "libpng": "libpng-dev",
    "jpeg": "libjpeg-dev",
    "freetype": "libfreetype-dev",
    "freetype2": "libfreetype-dev",
    "glib-2.0": "libglib2.0-dev",
    "gio-2.0": "libglib2.0-dev",
    "ncurses": "libncurses-dev",
    "curses": "libncurses-dev",
    "readline": "libreadline-dev",
    "libevent": "libevent-dev",
    "event": "libevent-dev",
    "libuv": "libuv1-dev",
    "pcre2": "libpcre2-dev",
    "libpcre2-8": "libpcre2-dev",
    "pcre": "libpcre3-dev",
    "icu": "libicu-dev",
    "yaml-cpp": "libyaml-cpp-dev",
    "oniguruma": "libonig-dev",
    "onig": "libonig-dev",
    "gmp": "libgmp-dev",
    "mpfr": "libmpfr-dev",
    "python3": "python3-dev",
    "pkgconfig": "pkg-config",
    "tbb": "libtbb-dev",
    "libarchive": "libarchive-dev",
    "jansson": "libjansson-dev",
    "postgresql": "libpq-dev",
    "systemd": "libsystemd-dev",
}
"""Names in build files → Debian packages."""


def plan(project: Project, hints: Hints) -> Iterator[Line]:
    """What a directory with CMake, Meson, Autotools or a plain Makefile needs."""
    del hints
    if project.has("CMakeLists.txt"):
        yield from _system(project, "cmake", "CMakeLists.txt", _NEEDS_CMAKE, _CMAKE)
    elif project.has("meson.build"):
        yield from _system(project, "meson", "meson.build", _NEEDS_MESON, _MESON)
        yield AptPackage("ninja-build", f"{project.path('meson.build')}: Meson builds with it")
        yield AptPackage("pkg-config", f"{project.path('meson.build')}: Meson finds libraries with it")
    elif manifest := project.first("configure.ac", "configure.in"):
        yield Used(manifest)
        yield Toolchain("autotools", "", "debian", manifest)
        yield Manager("make", "", "debian", manifest)
        yield from (
            AptPackage(name, manifest)
            for name in ("autoconf", "automake", "libtool", "pkg-config", "gettext")
        )
        if project.has("doc") or any(name.endswith((".texi", ".texinfo")) for name in project.below()):
            yield AptPackage("texinfo", f"{manifest}: the build makes its manual")
        yield from _libraries(project, manifest)
        yield from _generators(project, manifest)


def _system(project: Project, tool: str, name: str, pattern: re.Pattern[str], debian: str) -> Iterator[Line]:
    manifest, text = project.path(name), project.text(name)
    yield Used(manifest)
    found = pattern.search(text)
    wanted = found[1] if found else ""
    if parse(wanted) > parse(debian):
        why = f"{wanted} in {manifest}"
        yield Toolchain(tool, wanted, "pypi", why, wanted)
        yield from tools(f"{tool}>={wanted}", why=f"{tool} {wanted}: {why}")
    else:
        yield Toolchain(tool, debian, "debian", f"{wanted} in {manifest}" if wanted else manifest, wanted)
        yield AptPackage(tool, manifest)
    yield from _libraries(project, manifest)
    if download := _DOWNLOADS.search(text):
        yield Note(
            f"{manifest} downloads {download[2]} while it configures, from a host that is no named set"
        )
    if tool == "cmake" and re.search(r"(?i)\blanguages?\b[^)]{0,200}\bfortran\b", text):
        yield AptPackage("gfortran", f"{manifest} names Fortran")


def _libraries(project: Project, manifest: str) -> Iterator[Line]:
    named = dict.fromkeys(_USES.findall(project.of.text(manifest)))
    for name in named:
        if package := _LIBRARIES.get(name.lower()):
            yield AptPackage(package, f"{name} in {manifest}")


def _generators(project: Project, manifest: str) -> Iterator[Line]:
    text = project.of.text(manifest)
    for words, package in ((("AC_PROG_LEX", "AM_PROG_LEX"), "flex"), (("AC_PROG_YACC", "bison"), "bison")):
        if any(word in text for word in words):
            yield AptPackage(package, manifest)
