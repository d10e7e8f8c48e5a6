"""Services inside a sandbox: the Debian packages, and the scripts that prepare, start and stop them. Pure.

Data directories are made once, when the environment is built. Each sandbox that is opened from it starts the services
again. They listen on loopback only, with the users and databases that the repository's compose file names.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cloister.core.computer import WORK_DIR
from cloister.environment.api import Service

_WORD = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_DATA = "/var/lib/cloister-services"
_READY_SECONDS = 30


class _Kind(NamedTuple):
    packages: tuple[str, ...]
    port: int
    initialise: Callable[[Service], str]
    start: Callable[[Service], str]
    stop: Callable[[Service], str]


def _value(service: Service, usual: str, *names: str) -> str:
    """A name or password of the service; one that a shell or a query could misread is replaced by the usual one."""
    found = next((service.env[name] for name in names if service.env.get(name)), usual)
    return found if _WORD.fullmatch(found) else usual


def _port(service: Service) -> int:
    usual = KINDS[service.name].port
    return service.port if 1_024 <= service.port <= 65_535 else usual


def _wait(probe: str, name: str, port: int, log: str, watched: bool = False) -> str:
    """Wait until the probe succeeds; else say so, with the end of the service's log.

    `watched`: the service is the last process that was started in the background; if it fails there is no wait.
    """

    def ended(told: str) -> str:
        ends = f"$(tail -n 5 {log} 2>/dev/null | tr '\\n' ' ')"
        return f'{{ echo "error: {name} {told}; its log ends: {ends}" >&2; exit 1; }}'

    late = ended(f"did not answer on port {port} within {_READY_SECONDS} s")
    count = f"n=$((n+1)); [ $n -lt {_READY_SECONDS * 10} ] || {late}"
    if watched:
        count += f"; kill -0 $! 2>/dev/null || wait $! || {ended('ended before it answered')}"
    return f"n=0; until {probe} >/dev/null 2>&1; do {count}; sleep 0.1; done"


# PostgreSQL

_PG = "export PATH=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1):$PATH"


def _postgres_start(service: Service) -> str:
    port, data = _port(service), f"{_DATA}/postgresql"
    options = f"-p {port} -c listen_addresses=localhost -c fsync=off -c full_page_writes=off"
    return (
        f"{_PG}; mkdir -p /var/run/postgresql; chown postgres /var/run/postgresql; rm -f {data}/postmaster.pid\n"
        f"su postgres -s /bin/sh -c \"$(command -v pg_ctl) -s -w -t 50 -D {data} -l {data}/log -o '{options}' start\"\n"
        f"{_wait(f'pg_isready -q -h 127.0.0.1 -p {port}', 'PostgreSQL', port, f'{data}/log')}\n"
        # The first query reads the catalogues: what it read is in the memory of each fork.
        f"su postgres -s /bin/sh -c \"psql -q -p {port} -d postgres -c 'SELECT 1'\" >/dev/null\n"
    )


def _postgres_initialise(service: Service) -> str:
    user = _value(service, "postgres", "POSTGRES_USER", "PGUSER")
    word = _value(service, "postgres", "POSTGRES_PASSWORD", "PGPASSWORD")
    base = _value(service, user, "POSTGRES_DB", "PGDATABASE")
    data, port = f"{_DATA}/postgresql", _port(service)
    psql = f"su postgres -s /bin/sh -c 'psql -q -p {port} -d postgres -v ON_ERROR_STOP=1'"
    extra = "" if user == "postgres" else f'CREATE ROLE "{user}" SUPERUSER LOGIN;'
    made = "" if base == "postgres" else f'CREATE DATABASE "{base}" OWNER "{user}";'
    # Programs often connect as the user who runs them.
    agent = 'CREATE ROLE "agent" SUPERUSER LOGIN;' if user != "agent" else ""
    return (
        f"set -e; {_PG}; mkdir -p {data}; chown postgres {data}\n"
        f'su postgres -s /bin/sh -c "$(command -v initdb) -D {data} -A trust -E UTF8 --locale=C.UTF-8" >/dev/null\n'
        f"{_postgres_start(service)}"
        f"{psql} <<'SQL'\n{extra}\nALTER ROLE \"{user}\" PASSWORD '{word}';\n{made}\n{agent}\nSQL\n"
        f"{_postgres_stop(service)}"
    )


def _postgres_stop(_service: Service) -> str:
    data = f"{_DATA}/postgresql"
    return f'{_PG}; su postgres -s /bin/sh -c "$(command -v pg_ctl) -s -w -m fast -D {data} stop" || true\n'


# MySQL, as MariaDB


def _mysql_start(service: Service) -> str:
    port, data = _port(service), f"{_DATA}/mysql"
    return (
        "mkdir -p /run/mysqld; chown mysql /run/mysqld\n"
        f"setsid mariadbd --user=mysql --datadir={data} --port={port} --bind-address=127.0.0.1 "
        f"--socket=/run/mysqld/mysqld.sock --skip-log-bin >>{data}/log 2>&1 </dev/null &\n"
        f"{_wait('mariadb-admin --socket=/run/mysqld/mysqld.sock ping', 'MariaDB', port, f'{data}/log')}\n"
    )


def _mysql_initialise(service: Service) -> str:
    user = _value(service, "root", "MYSQL_USER", "MARIADB_USER")
    word = _value(
        service, "root", "MYSQL_PASSWORD", "MARIADB_PASSWORD", "MYSQL_ROOT_PASSWORD", "MARIADB_ROOT_PASSWORD"
    )
    root = _value(service, word, "MYSQL_ROOT_PASSWORD", "MARIADB_ROOT_PASSWORD")
    base = _value(service, "test", "MYSQL_DATABASE", "MARIADB_DATABASE")
    empty = any(
        name.endswith("ALLOW_EMPTY_PASSWORD") or name.endswith("EMPTY_ROOT_PASSWORD") for name in service.env
    )
    root = "" if empty else root
    grants = [f"CREATE DATABASE IF NOT EXISTS `{base}`;"]
    for name, secret in {"root": root, user: root if user == "root" else word}.items():
        for host in ("localhost", "127.0.0.1", "%"):
            grants.append(f"CREATE USER IF NOT EXISTS '{name}'@'{host}';")
            grants.append(f"ALTER USER '{name}'@'{host}' IDENTIFIED BY '{secret}';")
            grants.append(f"GRANT ALL ON *.* TO '{name}'@'{host}' WITH GRANT OPTION;")
    data = f"{_DATA}/mysql"
    return (
        f"set -e; mkdir -p {data}; chown mysql {data}\n"
        f"mariadb-install-db --user=mysql --datadir={data} --auth-root-authentication-method=normal >/dev/null\n"
        f"{_mysql_start(service)}"
        f"mariadb --socket=/run/mysqld/mysqld.sock <<'SQL'\n{chr(10).join(grants)}\nFLUSH PRIVILEGES;\nSQL\n"
        f"{_mysql_stop(service)}"
    )


def _mysql_stop(_service: Service) -> str:
    return (
        "pid=$(pidof mariadbd) && kill $pid; n=0; "
        "while pidof mariadbd >/dev/null && [ $n -lt 300 ]; do n=$((n+1)); sleep 0.1; done\n"
    )


# Redis


def _redis_start(service: Service) -> str:
    port, data = _port(service), f"{_DATA}/redis"
    word = _value(service, "", "REDIS_PASSWORD")
    secret = f" --requirepass {word}" if word else ""
    # Without memory overcommit it could not save in the background; a test needs no save.
    return (
        f"redis-server --daemonize yes --bind 127.0.0.1 --port {port} --dir {data} --save '' "
        f"--logfile {data}/log{secret} >/dev/null\n"
        f"{_wait(f'redis-cli -p {port} ping', 'Redis', port, f'{data}/log')}\n"
    )


def _redis_initialise(_service: Service) -> str:
    return f"set -e; mkdir -p {_DATA}/redis\n"


def _redis_stop(service: Service) -> str:
    word = _value(service, "", "REDIS_PASSWORD")
    secret = f" -a {word}" if word else ""
    return f"redis-cli -p {_port(service)}{secret} shutdown nosave >/dev/null 2>&1 || true\n"


# Memcached


def _nothing(_service: Service) -> str:
    return ":\n"


def _listens(port: int) -> str:
    return f"bash -c '</dev/tcp/127.0.0.1/{port}'"


def _memcached_start(service: Service) -> str:
    port, data = _port(service), f"{_DATA}/memcached"
    return (
        f"mkdir -p {data}\n"
        f"setsid memcached -u memcache -l 127.0.0.1 -p {port} >>{data}/log 2>&1 </dev/null &\n"
        f"{_wait(_listens(port), 'Memcached', port, f'{data}/log')}\n"
    )


def _memcached_stop(_service: Service) -> str:
    return "pid=$(pidof memcached) && kill $pid || true\n"


# RabbitMQ


_RABBIT = (
    f"d={_DATA}/rabbitmq; export HOME=/var/lib/rabbitmq RABBITMQ_NODENAME=rabbit@localhost RABBITMQ_MNESIA_BASE=$d "
    "RABBITMQ_LOG_BASE=$d RABBITMQ_PID_FILE=$d/pid RABBITMQ_CONFIG_FILE=$d/rabbitmq.conf ERL_EPMD_ADDRESS=127.0.0.1"
)


def _rabbit_start(service: Service) -> str:
    port, data = _port(service), f"{_DATA}/rabbitmq"
    return (
        f"{_RABBIT}\n"
        "setsid su rabbitmq -s /bin/sh -c 'exec /usr/lib/rabbitmq/bin/rabbitmq-server' >>$d/log 2>&1 </dev/null &\n"
        f"{_wait(_listens(port), 'RabbitMQ', port, f'{data}/log')}\n"
    )


def _rabbit_initialise(service: Service) -> str:
    lines = (
        f"listeners.tcp.local = 127.0.0.1:{_port(service)}",
        f"default_user = {_value(service, 'guest', 'RABBITMQ_DEFAULT_USER')}",
        f"default_pass = {_value(service, 'guest', 'RABBITMQ_DEFAULT_PASS')}",
        f"default_vhost = {_value(service, '/', 'RABBITMQ_DEFAULT_VHOST')}",
    )
    written = " ".join(map(shlex.quote, lines))
    return (
        f"set -e; {_RABBIT}; mkdir -p $d; printf '%s\\n' {written} > $d/rabbitmq.conf; chown -R rabbitmq $d\n"
        f"{_rabbit_start(service)}{_rabbit_stop(service)}"
    )


def _rabbit_stop(_service: Service) -> str:
    gone = "n=0; while kill -0 $p 2>/dev/null && [ $n -lt 300 ]; do n=$((n+1)); sleep 0.1; done"
    return f"{_RABBIT}; p=$(cat $d/pid) && kill $p && {gone} || true\n"


# A service of the repository's own


def _own_start(service: Service) -> str:
    place = f"{_DATA}/{service.name}"
    line = shlex.quote(f"cd {WORK_DIR} && {service.command}")
    return (
        f"mkdir -p {place}; chown agent {place}\n"
        f"setsid su agent -s /bin/bash -c {line} >{place}/log 2>&1 </dev/null &\n"
        f"echo $! >{place}/pid\n"
        f"{_wait(_listens(service.port), service.name, service.port, f'{place}/log', watched=True)}\n"
    )


def _own_stop(service: Service) -> str:
    return f"kill -- -$(cat {_DATA}/{service.name}/pid) 2>/dev/null || true\n"


_OWN = _Kind((), 0, _nothing, _own_start, _own_stop)


KINDS: dict[str, _Kind] = {
    "postgresql": _Kind(
        ("postgresql", "postgresql-client"), 5_432, _postgres_initialise, _postgres_start, _postgres_stop
    ),
    "mysql": _Kind(("mariadb-server", "mariadb-client"), 3_306, _mysql_initialise, _mysql_start, _mysql_stop),
    "redis": _Kind(("redis-server", "redis-tools"), 6_379, _redis_initialise, _redis_start, _redis_stop),
    "memcached": _Kind(("memcached",), 11_211, _nothing, _memcached_start, _memcached_stop),
    "rabbitmq": _Kind(("rabbitmq-server",), 5_672, _rabbit_initialise, _rabbit_start, _rabbit_stop),
}
"""Those that `hints.SERVICES` names."""


def known(services: Iterable[Service]) -> tuple[Service, ...]:
    """The services that can be had here."""
    return tuple(one for one in services if one.command or one.name in KINDS)


def own(services: Iterable[Service]) -> tuple[Service, ...]:
    """Those that the repository starts itself: what it installs must be there first."""
    return tuple(one for one in services if one.command)


def _kind(service: Service) -> _Kind:
    return _OWN if service.command else KINDS[service.name]


def packages(services: Iterable[Service]) -> tuple[str, ...]:
    """The Debian packages of the services."""
    return tuple(dict.fromkeys(name for one in known(services) for name in _kind(one).packages))


def initialise(services: Sequence[Service]) -> str:
    """A script for root that makes the data directories, users and databases."""
    return _each(services, lambda kind: kind.initialise)


def start(services: Sequence[Service]) -> str:
    """A script for root that starts the services and waits until they answer."""
    return _each(services, lambda kind: kind.start)


def stop(services: Sequence[Service]) -> str:
    """A script for root that ends the services, so that their files are complete."""
    return _each(services, lambda kind: kind.stop)


def _each(services: Sequence[Service], part: Callable[[_Kind], Callable[[Service], str]]) -> str:
    """One subshell per service: the failure of one leaves the others alone, and the script then fails."""
    scripts = [f"(\n{part(_kind(one))(one)}) || failed=1" for one in known(services)]
    return "\n".join((f"failed=0; mkdir -p {_DATA}", *scripts, "exit $failed"))
