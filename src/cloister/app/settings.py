"""The only reader of the environment and of the configuration file: one frozen `Settings`."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import msgspec

from cloister.app import default_data_dir
from cloister.app.triggers.entries import (
    EnvironmentEntry,
    HookTrigger,
    SlackTrigger,
    TriggerEntry,
    check_environments,
    check_triggers,
)
from cloister.core.budget import BudgetTree
from cloister.core.errors import UserError, describe
from cloister.core.model_config import ModelRoutes, check_routes
from cloister.core.requests import (
    Budget,
    CredentialEntry,
    DeclaredTool,
    DoorBounds,
    ForgeEntry,
    Knowledge,
    McpServer,
    Patience,
    PoolWish,
    Quota,
    Retention,
    Role,
    SavePointLimits,
    check_budget,
    check_knowledge,
)

Secret = str

MachineRole = Literal["api", "worker", "both"]

TEMPLATE_ALIASES = {"base": "default", "code-interpreter": "default", "code-interpreter-v1": "default"}
"""The names that other programs' clients use."""

ORGANISATION_POLICY = Path("/etc/cloister/policy.toml")
"""Holds for every user of this machine."""

PROVIDER_KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openai-responses": "OPENAI_API_KEY",
    "google": "GEMINI_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "openrouter": "OPENROUTER_API_KEY",
    "ollama": "OLLAMA_API_KEY",
    "vllm": "VLLM_API_KEY",
    "llamacpp": "LLAMA_API_KEY",
    "lmstudio": "LM_API_TOKEN",
    "compatible": "CLOISTER_MODEL_KEY",
}


_AMAZON = {
    "AWS_DEFAULT_REGION": "region",
    "AWS_REGION": "region",
    "AWS_ACCESS_KEY_ID": "access_key",
    "AWS_SECRET_ACCESS_KEY": "secret_key",
    "AWS_SESSION_TOKEN": "session_token",
}


class RuleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[policy]]` table of the configuration file."""

    action: str
    effect: str


class ProjectEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[project]]` table: rules for some repositories."""

    repo: str
    """Which: `host/path` of a URL or a directory, with `*` for any characters."""
    policy: str
    """The policy file, from the configuration file's directory."""


class MailEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"sender": "from"}):
    """The `[mail]` table of the configuration file: the server that sends notices as e-mail."""

    server: str
    """`HOST:PORT`."""
    sender: str
    """`Name <address>`."""
    user: str | None = None
    password: str | None = None
    """Where the password is, as in a credential."""
    tls: Literal["starttls", "tls", "none"] = "starttls"


class OidcEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[oidc]` table of the configuration file: where people log in."""

    issuer: str
    """The provider's address, exactly as its discovery document writes it."""
    client_id: str
    client_secret: str | None = None
    """Where the secret is, as in a credential; None for a public client."""
    groups: dict[str, Role] = {}
    """Group → role on this server; the highest counts."""
    groups_claim: str = "groups"
    name_claim: str = "email"
    """The claim that names a person, in the log and in projects."""
    scopes: tuple[str, ...] = ("email", "profile")
    """What is asked for beside `openid`."""
    everyone: Role | None = None
    """The role of those with none of these groups; None: only projects of theirs let them in."""
    label: str = ""
    """What the button calls the provider; empty: its host."""
    ca: str | None = None
    """Certificates of the authority that signed the provider's, in PEM, from the configuration file's directory."""


class ClusterEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[cluster]` table of the configuration file: the machines that this one works with."""

    servers: tuple[str, ...]
    """Addresses of NATS servers, `nats://host:4222` or `tls://host:4222`."""
    machine: str = ""
    """The name of this machine in the cluster; empty: its host name."""
    role: MachineRole = "both"
    """Whether it serves people (`api`), drives runs (`worker`), or both."""
    name: str = "cloister"
    """Several clusters can use the same NATS servers under different names."""
    replicas: int = 1
    """How many NATS servers store each message: 1, 3 or 5; counts when the cluster begins."""
    labels: tuple[str, ...] = ()
    """What is said of this machine, for people and for placement."""
    credentials: str | None = None
    """The file that `cloister cluster join` wrote, from the configuration file's directory."""
    ca: str | None = None
    """Who vouches for the certificates of the NATS servers, in PEM."""


class FileSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`config.toml` in the data directory, or the file that `CLOISTER_CONFIG` names."""

    model: str | None = None
    """Default model, `provider:name` or `script:FILE`."""
    model_url: str | None = None
    """Base URL of an OpenAI-compatible server, used by `compatible:NAME`."""
    local_models: dict[str, str] = {}
    """Name of a local model → its file, when it is not to be fetched."""
    model_hub: str = "https://huggingface.co"
    """Where the files of local models are fetched from."""
    models: ModelRoutes = ModelRoutes()
    """Which model does what; a role that no table names takes `model`."""
    port: int = 7717
    listen: str = "127.0.0.1"
    """The address that a server listens on, with `:PORT` if it is not `port`."""
    tls_cert: str | None = None
    """The server's certificate with its chain, in PEM, from the configuration file's directory."""
    tls_key: str | None = None
    hosts: tuple[str, ...] = ()
    """Names, with a port if it is not the usual one, by which browsers and reverse proxies call the server."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies whose `X-Forwarded-*` headers are believed."""
    connections: int = 512
    """Requests and WebSockets that a server holds at the same time."""
    ca: str | None = None
    """Certificates of the authority that signed the one of the server that commands go to, in PEM."""
    concurrent_runs: int = 2
    runtime: str | None = None
    """Path or name of the OCI runtime of the `container` tier; None takes the first of crun and runc that works."""
    runsc: str | None = None
    """Path or name of gVisor's runtime, for the `gvisor` tier; None is `runsc`."""
    store: Literal["auto", "btrfs", "btrfs-loop", "reflink", "overlay"] = "auto"
    """Where sandboxes' files are kept; `auto` takes the best that this machine can have."""
    budget: Budget = Budget()
    budgets: BudgetTree = BudgetTree()
    """What the levels above a run may spend."""
    stuck: Patience = Patience()
    """When an attempt counts as stuck."""
    quota: Quota = Quota()
    ask_seconds: float = 300.0
    """How long an `ask` waits for a person before it is denied."""
    policy: tuple[RuleEntry, ...] = ()
    door: DoorBounds = DoorBounds()
    """What one sandbox may use of its door."""
    credential: tuple[CredentialEntry, ...] = ()
    """Secrets that the door adds to requests, one `[[credential]]` table each."""
    tool: dict[str, DeclaredTool] = {}
    """Tools of the model in every run, one `[tool.NAME]` table each."""
    mcp: dict[str, McpServer] = {}
    """MCP servers of every run, one `[mcp.NAME]` table each."""
    environment: tuple[EnvironmentEntry, ...] = ()
    """Repositories whose environments a server keeps ready, one `[[environment]]` table each."""
    mcp_json: bool = False
    """Whether the servers of a repository's `.mcp.json` are used."""
    forge: tuple[ForgeEntry, ...] = ()
    """Forges that get pull requests, one `[[forge]]` table each."""
    trigger: tuple[TriggerEntry, ...] = ()
    """What starts runs from outside, one `[[trigger]]` table each."""
    author: str = "Cloister <cloister@localhost>"
    """The author of commits."""
    signing_key: str | None = None
    """The file of the SSH key that signs them, from the configuration file's directory."""
    people: dict[str, str] = {}
    """User, as tokens and runs name them → `Name <address>`, for the line Co-authored-by of commits they asked for."""
    follow_seconds: float = 60.0
    """How often a server looks at open pull requests for comments and CI results; 0: never."""
    mail: MailEntry | None = None
    oidc: OidcEntry | None = None
    private_webhooks: tuple[str, ...] = ()
    """Hosts, with `:PORT` if only that, that webhooks may call although their addresses are not public."""
    policy_file: str | None = None
    """The organisation's policy; None is `/etc/cloister/policy.toml`, where there is one."""
    template_aliases: dict[str, str] = {}
    """Other names for templates, for sandboxes made by hand, beside `TEMPLATE_ALIASES`; a template of that name takes precedence."""
    project: tuple[ProjectEntry, ...] = ()
    pool: tuple[PoolWish, ...] = ()
    """Sandboxes that a server keeps ready, one `[[pool]]` table per template."""
    save_points: SavePointLimits = SavePointLimits()
    retention: Retention = Retention()
    helpers: int = 4
    """How many helpers one attempt of a run may have; 0: none."""
    knowledge: Knowledge = Knowledge()
    """What models read beside their tasks."""
    object_cache_gib: float = 10.0
    """Size of the cache of fetched repositories, which later runs start from; 0 turns it off."""
    otlp_endpoint: str | None = None
    """Base URL of an OpenTelemetry collector that a server sends the audit to."""
    otlp_traces: bool = False
    """Whether that collector also gets traces of the runs."""
    audit_heads: tuple[str, ...] = ()
    """Where the audit's signed heads are sent: paths of files, addresses that take POST, `syslog:/dev/log`."""
    cluster: ClusterEntry | None = None


class Settings(msgspec.Struct, frozen=True):
    """Everything that was read, once."""

    data_dir: Path
    config_path: Path
    file: FileSettings
    keys: dict[str, Secret]
    """Provider → API key. Never leaves the host process."""
    path: str
    """`PATH` for the programs we start on the host."""
    home: str
    user: str
    variables: dict[str, Secret] = {}
    """Those that credentials are read from. Never leave the host process."""
    amazon: dict[str, Secret] = {}
    """Who asks Amazon Bedrock, and where: `region`, `access_key`, `secret_key`, `session_token`."""
    otlp_headers: dict[str, Secret] = {}
    """What the collector wants to see, such as a key."""
    server: str | None = None
    """`CLOISTER_SERVER`: the address of the server that commands go to."""
    token: Secret = ""
    """`CLOISTER_TOKEN`: the token for that server."""
    desktop: bool = False
    """Whether a browser can be shown here."""
    ca: Path | None = None
    """`CLOISTER_CA`, or the setting `ca`."""

    @property
    def log_path(self) -> Path:
        """The file of the log and the audit."""
        return self.data_dir / "cloister.db"


def _read_file(path: Path, *, required: bool) -> FileSettings:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if required:
            raise UserError("bad_config", f"There is no configuration file {path}.") from None
        return FileSettings()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("bad_config", f"{path} cannot be read: {error}.") from None
    import tomllib  # noqa: PLC0415  (often there is no such file)

    try:
        found = msgspec.convert(tomllib.loads(text), FileSettings)
    except tomllib.TOMLDecodeError as error:
        raise UserError("bad_config", f"{path} is not valid TOML: {error}.") from None
    except msgspec.ValidationError as error:
        raise UserError(
            "bad_config", f"{path} has a wrong setting: {describe(error, FileSettings)}"
        ) from None
    if problem := _out_of_range(found):
        raise UserError("bad_config", f"{path} has a wrong setting: {problem}")
    return found


_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(?::[0-9]{1,5})?")


_PERSON = re.compile(r"[^<>\x00-\x1f]{1,200} <[^<>\s]{1,200}>")


def _out_of_range(found: FileSettings) -> str | None:
    if not 0 <= found.port <= 65_535:
        return f"port is from 0 to 65535, not {found.port}."
    if wrong := next((name for name in found.hosts if not _HOST.fullmatch(name)), None):
        return f"hosts are names such as cloister.example.org, not {wrong[:80]!r}."
    if not 1 <= found.concurrent_runs <= 64:
        return f"concurrent_runs is from 1 to 64, not {found.concurrent_runs}."
    if wrong := next((one for one in found.proxies if not _is_network(one)), None):
        return f"proxies are addresses such as 10.0.0.7 or 10.0.0.0/24, not {wrong[:80]!r}."
    named = (found.author, *found.people.values())
    if wrong := next((one for one in named if not _PERSON.fullmatch(one)), None):
        return f"a person is written as Name <address>, not {wrong[:80]!r}."
    if found.mail is not None and (problem := _mail_problem(found.mail)):
        return problem
    if found.follow_seconds != 0 and not 1 <= found.follow_seconds <= 86_400:
        return f"follow_seconds is from 1 to 86400, or 0 for never, not {found.follow_seconds}."
    if not 0 <= found.object_cache_gib <= 100_000:
        return f"object_cache_gib is from 0 to 100000, not {found.object_cache_gib}."
    if not 0 <= found.ask_seconds <= 86_400:
        return f"ask_seconds is from 0 to 86400, not {found.ask_seconds}."
    return (
        _count_problem(found)
        or check_budget(found.budget)
        or check_knowledge(found.knowledge)
        or check_routes(found.models, PROVIDER_KEYS, ("local", "script"))
        or _oidc_problem(found.oidc)
        or _trigger_problem(found)
    )


def _count_problem(found: FileSettings) -> str | None:
    if not 16 <= found.connections <= 100_000:
        return f"connections is from 16 to 100000, not {found.connections}."
    return None if 0 <= found.helpers <= 20 else f"helpers is from 0 to 20, not {found.helpers}."


def _trigger_problem(found: FileSettings) -> str | None:
    if not found.trigger and not found.environment:
        return None
    from cloister.core.system.schedule import check_cron  # noqa: PLC0415  (often there is none)

    return check_triggers(found.trigger, check_cron) or check_environments(found.environment, check_cron)


def _mail_problem(mail: MailEntry) -> str | None:
    host, _, port = mail.server.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65_535:
        return f"the mail server is written as HOST:PORT, not {mail.server[:80]!r}."
    if not _PERSON.fullmatch(mail.sender):
        return f"the sender of mail is written as Name <address>, not {mail.sender[:80]!r}."
    if (mail.user is None) != (mail.password is None):
        return "mail needs a user and a password, or neither."
    return None


def _oidc_problem(entry: OidcEntry | None) -> str | None:
    if entry is None:
        return None
    from cloister.app.people.oidc import address_problem  # noqa: PLC0415  (few settings name a provider)

    if problem := address_problem(entry.issuer, entry.issuer):
        return f"the issuer of oidc is an https address such as https://login.example.org, not {problem}."
    if not entry.client_id or not entry.name_claim or not entry.groups_claim:
        return "oidc needs a client_id, a name_claim and a groups_claim."
    if not all(one.isascii() and one.isprintable() and " " not in one for one in entry.scopes):
        return "the scopes of oidc are words, such as email."
    return None


def _is_network(text: str) -> bool:
    from ipaddress import ip_network  # noqa: PLC0415  (few settings name one)

    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def read_settings(env: Mapping[str, str] | None = None, data_dir: Path | None = None) -> Settings:
    """Read the environment and the file. Raises `UserError` (`bad_config`)."""
    env = os.environ if env is None else env
    data = (data_dir or default_data_dir(env)).expanduser().absolute()
    named = env.get("CLOISTER_CONFIG")
    config = Path(named).expanduser() if named else data / "config.toml"
    settings = _read_file(config, required=named is not None)
    url = env.get("CLOISTER_MODEL_URL") or settings.model_url
    model = env.get("CLOISTER_MODEL") or settings.model
    # A key that was read from a file often ends with the line.
    keys = {name: key for name, var in PROVIDER_KEYS.items() if (key := env.get(var, "").strip())}
    if url is None and (other := env.get("OPENAI_BASE_URL")):
        # The variables of OpenAI's own client, which people point at servers of their own.
        url = other
        keys.setdefault("compatible", keys.get("openai", ""))
    authority = env.get("CLOISTER_CA") or (str(config.parent / settings.ca) if settings.ca else None)
    collector = env.get("OTEL_EXPORTER_OTLP_ENDPOINT") or settings.otlp_endpoint
    return Settings(
        data_dir=data,
        config_path=config,
        file=msgspec.structs.replace(
            settings, model=model, model_url=url, otlp_endpoint=collector, cluster=_cluster(settings, env)
        ),
        keys=keys,
        path=env.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        home=env.get("HOME", "/root"),
        user=env.get("SUDO_USER") or env.get("USER") or "root",
        variables=_variables(settings, env),
        amazon={name: value for var, name in _AMAZON.items() if (value := env.get(var, "").strip())},
        otlp_headers=_headers(env.get("OTEL_EXPORTER_OTLP_HEADERS", "")),
        server=env.get("CLOISTER_SERVER") or None,
        token=env.get("CLOISTER_TOKEN", "").strip(),
        desktop=bool(env.get("WAYLAND_DISPLAY") or env.get("DISPLAY")),
        ca=Path(authority).expanduser() if authority else None,
    )


def _cluster(settings: FileSettings, env: Mapping[str, str]) -> ClusterEntry | None:
    """The table `[cluster]` with what the environment says of it, for machines that all have one file."""
    entry = settings.cluster
    if servers := tuple(one.strip() for one in env.get("CLOISTER_CLUSTER", "").split(",") if one.strip()):
        entry = msgspec.structs.replace(entry, servers=servers) if entry else ClusterEntry(servers)
    if entry is None:
        return None
    return msgspec.structs.replace(
        entry,
        name=env.get("CLOISTER_CLUSTER_NAME") or entry.name,
        machine=env.get("CLOISTER_MACHINE") or entry.machine,
    )


def _variables(settings: FileSettings, env: Mapping[str, str]) -> dict[str, Secret]:
    sources = [one.source for one in (*settings.credential, *settings.forge)]
    sources += [source for one in settings.forge for source in one.people.values()]
    sources += [one.hook for one in settings.forge if one.hook]
    sources += [one.source for one in settings.trigger if isinstance(one, HookTrigger)]
    sources += [text for one in settings.trigger if isinstance(one, SlackTrigger) for text in one.sources]
    sources += [settings.oidc.client_secret] if settings.oidc and settings.oidc.client_secret else []
    sources += [place for one in settings.mcp.values() for place in one.secrets.values()]
    sources += [settings.mail.password] if settings.mail and settings.mail.password else []
    named = (one.partition(":") for one in sources)
    return {name: env[name] for kind, _, name in named if kind == "env" and name in env}


def _headers(text: str) -> dict[str, Secret]:
    """`name=value,name=value`, values percent-encoded, as OpenTelemetry's variables are written."""
    pairs = [part.partition("=") for part in text.split(",") if "=" in part]
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs if name.strip()}


def environment() -> Mapping[str, str]:
    """The environment, for the few who must look before there are settings."""
    return os.environ


def host_name() -> str:
    """The first part of this machine's name, with what a cluster allows in a name of a machine."""
    return re.sub(r"[^a-z0-9-]", "-", os.uname().nodename.partition(".")[0].lower())[:32]


def machine_id() -> str:
    """Identifies this machine and root file system until the next boot, so that a client can tell a shared path."""
    root = Path("/").stat()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return hashlib.sha256(f"{boot} {root.st_dev} {root.st_ino}".encode()).hexdigest()


def debug_wanted(env: Mapping[str, str] | None = None) -> bool:
    """Whether a person asked for tracebacks with `CLOISTER_DEBUG=1`."""
    return (os.environ if env is None else env).get("CLOISTER_DEBUG", "") not in ("", "0")
