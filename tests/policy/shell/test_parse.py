"""The commands found in a command line, and rules about them."""

import pytest

from cloister.core.events import Effect
from cloister.policy.api import HOLE, Commands, Layer, Pointed, Rule, ToolAction
from cloister.policy.decide import Decider
from cloister.policy.layers import BUILT_IN
from cloister.policy.shell.parse import read_commands

pytestmark = pytest.mark.anyio


def deciding(*rules: tuple[str, Effect], only: tuple[str, ...] = ()) -> Decider:
    written = tuple(Rule(action, effect) for action, effect in rules)
    return Decider((BUILT_IN, Layer("host", written, True, only=tuple(Pointed(one) for one in only))))


NO_CURL = deciding(("bash:curl", "deny"), ("bash:curl *", "deny"))
ONLY_TESTS = deciding(only=("bash:pytest", "bash:pytest *", "bash:git status*", "bash:ls*"))


READ: dict[str, Commands] = {}
"""What was parsed already: the same lines are tried against several rules."""


async def effect(decider: Decider, line: str) -> str:
    if line not in READ:
        READ[line] = await read_commands(line)
    return decider.decide(ToolAction("bash", line, READ[line])).effect


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("ls", ["ls"]),
        ("a; b && c || d | e & f", ["a", "b", "c", "d", "e", "f"]),
        ("git   push\torigin 'a b'", ["git push origin a b"]),
        ("echo a >out 2>&1 <in", ["echo a"]),
        ("X=1 Y=2 make test", ["make test"]),
        ("if a; then b; else c; fi; while d; do e; done", ["a", "b", "c", "d", "e"]),
        ("case x in y) a;; esac; for i in 1; do b $i; done", ["a", f"b {HOLE}"]),
        ("(a; { b; }); ! c", ["a", "b", "c"]),
        ("echo $(a `b`) <(c) >(d)", [f"echo {HOLE} {HOLE} {HOLE}", f"a {HOLE}", "b", "c", "d"]),
        ("# rm x\nls", ["ls"]),
        ("cat <<'E'\nrm x\nE", ["cat"]),
        ("echo \"$(rm x)\" '$(rm y)'", ["rm x"]),
        ("x=$(a)", ["a"]),
        ("ls *.py ~/x", [f"ls {HOLE}.py ~/x"]),
        ("sh -c 'a b; c'", ["a b", "c"]),
        ("sudo -u x env A=1 nice -n 5 timeout -k 1 5 nohup a b", ["a b"]),
        ("find . -exec a {} \\; -execdir b +", [f"a {HOLE}", "b"]),
        ("xargs -0 -I{} a {} b", [f"a {HOLE} b {HOLE}"]),
        ("", []),
    ],
)
async def test_every_command_is_found(line: str, commands: list[str]) -> None:
    found = await read_commands(line)

    assert found.unclear is None
    spelled = [spelling for spellings in found.simple for spelling in spellings]
    assert [one for one in commands if one not in spelled] == []
    if not commands:
        assert spelled == []


BYPASSES = {
    "plain": "curl x",
    "without arguments": "curl",
    "tab": "curl\tx",
    "after a semicolon": "ls; curl x",
    "after and": "true && curl x",
    "after or": "false || curl x",
    "in a pipe": "echo x | curl x",
    "pipe with stderr": "ls |& curl x",
    "in the background": "curl x &",
    "next line": "ls\ncurl x",
    "line continued": "cu\\\nrl x",
    "behind a comment": "ls # harmless\ncurl x",
    "negated": "! curl x",
    "in a subshell": "(curl x)",
    "in a group": "{ curl x; }",
    "substituted": "echo $(curl x)",
    "with backticks": "echo `curl x`",
    "in double quotes": 'echo "a $(curl x) b"',
    "in a quoted path": 'cat "$(curl x)/y"',
    "process substitution": "cat <(curl x)",
    "in a here document": "cat <<E\n$(curl x)\nE",
    "in a here string": 'cat <<< "$(curl x)"',
    "in an assignment": "y=$(curl x)",
    "in arithmetic": "echo $(( $(curl x) ))",
    "in a default value": "echo ${y:-$(curl x)}",
    "in a test": "[[ $(curl x) ]]",
    "in an array": "y=( $(curl x) )",
    "in a loop": "for i in 1; do curl x; done",
    "as a condition": "if curl x; then :; fi",
    "in a case": "case a in a) curl x;; esac",
    "timed": "time curl x",
    "coprocess": "coproc curl x",
    "quote in the name": "cu'r'l x",
    "double quotes in the name": 'cu"r"l x',
    "empty quotes": "cu''rl x",
    "all quoted": "'curl' x",
    "backslash": "c\\url x",
    "leading backslash": "\\curl x",
    "ansi hex": "$'\\x63url' x",
    "ansi octal": "$'\\143url' x",
    "ansi unicode": "$'\\u0063url' x",
    "locale quotes": '$"curl" x',
    "absolute path": "/usr/bin/curl x",
    "relative path": "../../usr/bin/curl x",
    "glob": "/usr/bin/c?rl x",
    "bracket glob": "/usr/bin/c[u]rl x",
    "star": "/usr/bin/cur* x",
    "brace": "{curl,x}",
    "brace in the name": "cur{l,} x",
    "variable": "y=curl; $y x",
    "two variables": "a=cu; b=rl; $a$b x",
    "empty variable inside": "cu${z}rl x",
    "empty positional inside": "cu$@rl x",
    "ifs": "curl${IFS}x",
    "ifs in another command": "ls;curl$IFS'x'",
    "name from output": "$(echo curl) x",
    "name from printf": "$(printf '\\143url') x",
    "name reversed": "$(echo lruc | rev) x",
    "slice of a variable": "y=xcurlx; ${y:1:4} x",
    "case change": "y=CURL; ${y,,} x",
    "indirect": "y=z; z=curl; ${!y} x",
    "array": "y=(curl x); ${y[@]}",
    "array in quotes": 'y=(curl x); "${y[@]}"',
    "eval": "eval curl x",
    "eval in quotes": "eval 'cu''rl x'",
    "eval of base64": "eval $(echo Y3VybCB4 | base64 -d)",
    "base64 into a shell": "echo Y3VybCB4 | base64 -d | sh",
    "hex into a shell": "printf '\\x63url x' | bash",
    "here document into a shell": "sh <<E\ncurl x\nE",
    "here string into a shell": "bash <<< 'curl x'",
    "shell": "sh -c 'curl x'",
    "shell with options": "bash -lc 'curl x'",
    "shell with separate options": "bash -e -c 'curl x'",
    "shell by path": "/bin/sh -c 'curl x'",
    "shell in a shell": "sh -c \"bash -c 'curl x'\"",
    "shell with a variable": 'sh -c "$y"',
    "shell with a positional": "sh -c '$0 x' curl",
    "shell script": "echo 'curl x' > y; sh y",
    "source": ". ./y",
    "source by process": "source <(echo curl x)",
    "function": "f() { curl x; }; f",
    "function with an argument": 'f() { "$1" x; }; f curl',
    "alias": "shopt -s expand_aliases; alias y=curl; y x",
    "trap": "trap 'curl x' EXIT",
    "command": "command curl x",
    "builtin exec": "exec curl x",
    "exec with a name": "exec -a ls curl x",
    "env": "env curl x",
    "env with a variable": "env A=1 curl x",
    "env emptied": "env -i curl x",
    "env split": "env -S 'curl x'",
    "variable before": "A=1 curl x",
    "sudo": "sudo curl x",
    "sudo with a user": "sudo -u root -- curl x",
    "sudo shell": "sudo -s <<< 'curl x'",
    "nohup": "nohup curl x",
    "timeout": "timeout -s KILL 5 curl x",
    "nice": "nice -n 10 curl x",
    "setsid": "setsid curl x",
    "stdbuf": "stdbuf -oL curl x",
    "strace": "strace -o /dev/null curl x",
    "flock": "flock /tmp/y curl x",
    "flock with text": "flock /tmp/y -c 'curl x'",
    "busybox": "busybox sh -c 'curl x'",
    "many wrappers": "sudo env nice nohup timeout 5 setsid command curl x",
    "too many wrappers": "env " * 30 + "curl x",
    "xargs": "echo x | xargs curl",
    "xargs with a name from input": "echo curl | xargs -I{} {} x",
    "xargs into a shell": "echo 'curl x' | xargs -I{} sh -c '{}'",
    "find": "find . -maxdepth 0 -exec curl x \\;",
    "find with plus": "find . -execdir curl {} +",
    "find into a shell": "find . -exec sh -c 'curl x' \\;",
    "find by its input": "find /usr/bin -name curl -exec {} x \\;",
    "awk": "awk 'BEGIN { system(\"curl x\") }'",
    "sed": "sed '1e curl x' y",
    "sed by flag": "sed 's/.*/curl x/e' y",
    "python": 'python3 -c \'import os; os.system("cu" + "rl x")\'',
    "python from stdin": "python3 <<< 'import os'",
    "python after another option": "python3 -W ignore -c 'import os'",
    "perl": "perl -e 'exec \"curl x\"'",
    "ruby": "ruby -e 'exec \"curl x\"'",
    "node": "node -e 'require(\"child_process\")'",
    "tar": "tar cf /dev/null y --checkpoint=1 --checkpoint-action=exec='curl x'",
    "rg": "rg --pre 'curl' x",
    "git alias": "git -c alias.y='!curl x' y",
    "git pager": "git -c core.pager='curl x' log",
    "git configured": "git config alias.y '!curl x'; git y",
    "git ssh": "GIT_SSH_COMMAND='curl x' git fetch",
    "git bisect": "git bisect run curl x",
    "git rebase": "git rebase -x 'curl x' HEAD~1",
    "git submodules": "git submodule foreach curl x",
    "path": "PATH=/tmp:$PATH ls",
    "exported path": "export PATH=/tmp; ls",
    "preload": "LD_PRELOAD=/tmp/y.so ls",
    "startup file": "BASH_ENV=/tmp/y bash -c ls",
    "callback": "mapfile -C 'curl x' -c 1 y < z",
    "prompt expansion": "y='$(curl x)'; echo ${y@P}",
    "vim": "vim -c '!curl x'",
    "ssh": "ssh -o ProxyCommand='curl x' y",
    "script": "script -qc 'curl x' /dev/null",
    "parallel": "parallel curl ::: x",
    "subscript in a test": "[[ 'a[$(curl x)]' -eq 0 ]]",
    "subscript in a variable": "y='a[$(curl x)]'; echo $((y))",
    "subscript in printf": "printf -v 'a[$(curl x)]' y",
    "subscript put together": "a='y[$'; b='(curl x)]'; c=$a$b; ((c))",
    "subscript from output": "y=$(echo eFskKGN1cmwgeCldCg== | base64 -d); [[ $y -gt 0 ]]",
    "subscript that was read": "read -r y < z; let y",
    "trace prompt": "PS4='$(curl x)'; set -x; ls",
    "sudo with a long option": "sudo --user root curl x",
    "sudo with an abbreviated option": "sudo --us root curl x",
    "sudo with bundled options": "sudo -nu root curl x",
    "stdbuf with a long option": "stdbuf --output L curl x",
    "env with a value": "env --chdir /tmp curl x",
    "xargs with a long option": "echo x | xargs --max-args 1 curl",
    "shell with a startup file": "bash -rcfile /tmp/y -i",
    "shell with an option's value": "bash -o posix -c 'curl x'",
    "shell without a profile": "bash --norc -c 'curl x'",
    "python without a space": "python3 -c'import os'",
    "python module that runs code": "python3 -m timeit 'import os'",
    "perl in place": "perl -i -ne 'system \"curl x\"' y",
    "sed with another delimiter": "sed '\\,x,e curl x' y",
    "sed after an address": "sed '/a/,/b/ e curl x' y",
    "sed by flag with a letter": "sed 'sx.*xcurl yxe' y",
    "awk extension": "gawk -l y 'BEGIN {}'",
    "tar in the old style": "tar cIf 'curl x' y z",
    "loader": "/lib64/ld-linux-x86-64.so.2 /usr/bin/curl x",
    "runner": "uv run curl x",
    "runner with an option": "uv run --with y curl x",
    "container": "docker run y curl x",
    "after many commands": "true;" * 60 + "curl x",
    "after far too many commands": "".join(f"true {n};" for n in range(1_500)) + "curl x",
    "too long": "true " + "x" * 70_000 + "; curl x",
    "too deep": "(" * 400 + "curl x" + ")" * 400,
    "no shell text": "curl x; if",
    "unclosed quote": "ls '; curl x",
    "a null byte": "ls\0; curl x",
}


@pytest.mark.parametrize("line", BYPASSES.values(), ids=BYPASSES.keys())
async def test_denied_command_stays_denied_in_every_spelling(line: str) -> None:
    assert await effect(NO_CURL, line) == "deny"


INNOCENT = [
    "ls -la",
    "echo curl",
    "grep -rn 'curl x' src",
    "git commit -m 'use curl'",
    'git commit -m "$(cat msg)"',
    "git -C sub status",
    "python -m pytest -x tests/test_a.py",
    "python3 setup.py build",
    "cd src && ls *.py | wc -l",
    'for f in *.py; do echo "$f"; done',
    "sed -n '1,5p' file",
    "sed -i 's/one/two/g' src/a.py",
    "find . -name '*.pyc' -delete",
    "find . -name '*.py' -exec grep -l x {} +",
    "cat <<'E' > a.py\nimport os\nE",
    "timeout 60 make test 2>&1 | tail -20",
    "PYTHONPATH=src pytest -q",
    "curlew x",
    "uv run pytest -q",
    "python -m pytest -p no:cacheprovider",
    "i=0; while [ $i -lt 3 ]; do echo $((i+1)); i=$((i+1)); done",
    "sudo -n apt-get install -y curl",
    "git log --oneline -5 | cat",
    "echo ${PATH} ${a[0]}",
    "make test",
    "tar czf out.tgz src",
    "sed -e 's/a/b/' -e '/^$/d' f",
    "test -f a && echo yes || echo no",
    "awk '{ print $1 }' file",
    "tar xzf a.tgz",
    "npm test",
    "tar --checkpoint=100 -cf out.tar src INSTALL FILES",
    "tar -czf out.tgz --exclude=.git .",
    "tar cf - src | tar xf - -C /tmp",
    "tar tf /dev/stdin < a.tar",
    "git log --oneline",
    "git log --cc --text -p",
    "git diff --stat --exit-code HEAD~1",
    "git grep -n -e FOO -- src",
    "git rebase --onto main topic",
    "git rebase -Xtheirs main",
    "git clone -b main --depth 1 https://example.org/x.git y",
    "git clone --filter=blob:none https://example.org/x.git",
    "git fetch --prune --tags origin",
    "git submodule update --init --recursive",
    "git commit -m 'std::fmt: use curl' --no-edit",
    "git stash push -m x",
    "git bisect good HEAD~3",
    "sed -n -e 1p file",
    "sed -ne '/^a/,/^b/p' file",
    "sed -E -i.bak 's#(a|b)/c#\\1#g; s/x/y/2' f",
    "sed '/start/,/end/{ /x/d; s/a/b/; }' f",
    "sed -i '1i # a line; e' f",
    "sed -e '$a\\' -e 'the end' f",
    "sed -n '$=' f",
    "sed 's/[^/]*$//' f",
    "sed ':a;N;$!ba;s/\\n/ /g' f",
    "sed y/abc/xyz/ f",
    "make -j4",
    "make -C sub -k -s all",
    "CC=clang make -j2 test",
    "CC=x86_64-linux-gnu-gcc-12 ./configure",
    "node --import ./x.mjs app.js",
    "node --experimental-vm-modules node_modules/jest/bin/jest.js",
    "node --test",
    "node app.js --port 80",
    "python3 -I x.py",
    "python3 -W ignore -X dev x.py",
    "python3 -m cProfile -o out x.py",
    "perl x.pl a",
    "split -l 100 --additional-suffix=.txt big part-",
    "sort -k2,2n -t, -u f",
    "install -m 755 a b",
    "rsync -av --delete a/ b/",
    "zip -qr out.zip src",
    "gcc -Wall -O2 -o x x.c -lm",
    "cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang",
    "cmake --build build --parallel 4",
    "cmake -E make_directory x",
    "sqlite3 ./app.db 'select * from t'",
    "sqlite3 app.db .tables",
    "apt-get -o Dpkg::Options::=--force-confold install -y editor pager-hook",
    "dpkg -l | grep curl",
    "choom -p 1",
    "wget -q https://example.org/x.tgz",
    "awk -F: -v x=1 '{ print $1, x }' f",
    "go test ./... -run TestX -count=1",
    "cargo build --release",
    "npm ci && npm run build",
    "npm i",
    "yarn install --frozen-lockfile",
    "fd -e py -t f x",
    "rg -n --glob '*.py' pretty",
    "psql -c 'select 1'",
    "set -euo pipefail; ls",
    "set -euxo pipefail; tar czf $OUT src",
    "jobs -l",
    "export FOO=bar BAZ; declare -i n=1",
    "read -r -p 'name? ' name",
    "printf '%s\\n' \"$X\"",
    "mapfile -t lines < f",
    "X=1; Y=${X:-2}; echo $Y",
    'for f in a b; do tar xf "$f"; done',
    'while read -r line; do echo "$line"; done < f',
    "GOFLAGS=-mod=mod go build ./...",
    "MAVEN_OPTS=-Xmx1g mvn -q test",
    "RUSTFLAGS='-D warnings' cargo test",
    "pip install -r requirements.txt",
    "echo -e 'a\\tb' && rsync -av $SRC $DST",
    "echo '--- done ---'; tar czf $OUT src",
    "for flag in -v -q; do tar xf a.tar $flag; done",
    'git add src/{a,b}.py && git commit -m "$MSG"',
    "grep -I foo f; tar czf $OUT src",
    "aarch64-linux-gnu-gcc -O2 -c x.c",
    "bundle exec rake test",
    "ssh-agent -k",
    "ip addr show",
    "less README.md",
    "cat <<'E' > x.md\n- a list\n  -x\nE",
]


@pytest.mark.parametrize("line", INNOCENT)
async def test_ordinary_commands_do_not_match_an_unrelated_rule(line: str) -> None:
    assert await effect(NO_CURL, line) == "allow"


@pytest.mark.parametrize("line", BYPASSES.values(), ids=BYPASSES.keys())
async def test_allow_list_rejects_every_disguised_command(line: str) -> None:
    assert await effect(ONLY_TESTS, line) == "deny"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pytest -q tests", "allow"),
        ("pytest; ls src | ls", "allow"),
        ("pytest $FILE", "allow"),
        ("git status", "allow"),
        ("git status; pytest && rm x", "deny"),
        ("git -c core.fsmonitor=x status", "deny"),
        ("git -C x status", "deny"),
        ("./pytest", "deny"),
        ("/tmp/pytest -q", "deny"),
        ("$X", "deny"),
        ("pytest > $(rm x)", "deny"),
        ("x=1", "deny"),
        ("rm", "deny"),
    ],
)
async def test_allow_list_applies_to_every_command_of_a_line(line: str, expected: str) -> None:
    assert await effect(ONLY_TESTS, line) == expected


async def test_git_subcommand_is_found_under_its_dashed_name() -> None:
    decider = deciding(("bash:git push*", "deny"))

    for line in ("git-push x", "/usr/lib/git-core/git-push x", "git --git-dir y push", "git --no-pager push"):
        assert await effect(decider, line) == "deny"
    assert await effect(decider, "git-lfs x") == "allow"


async def test_unknown_word_matches_every_possible_value() -> None:
    decider = deciding(("bash:git push*", "ask"), ("bash:rm -rf *", "deny"))

    assert await effect(decider, "git $VERB origin") == "ask"
    assert await effect(decider, "git commit -m $X") == "allow"
    assert await effect(decider, "rm $FLAGS x") == "deny"
    assert await effect(decider, "rm file") == "allow"
    assert await effect(decider, 'eval "$X"') == "deny"


async def test_rule_text_contains_the_reason() -> None:
    decision = NO_CURL.decide(ToolAction("bash", "eval x", await read_commands("eval x")))

    assert decision.rule == "deny bash:curl (the command cannot be checked: it uses eval)"
