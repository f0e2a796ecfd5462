"""The settings of a node: options of `millstream serve`, their sources, and what is refused.

Invariants:
1. Command line over environment (`MILLSTREAM_SERVE_<OPTION>`) over `--config` file over default.
2. All three use the same names and the same text forms. An unknown name is refused.
3. The cluster's secret is never on a command line, nor in the environment of a child.
4. A node without the role data joins a node that has it, and has no listeners for documents.
5. A listener beyond loopback requires users and TLS (`--insecure-plaintext` drops the TLS
   requirement). The plain memcached listener never leaves loopback.

Elsewhere: opening the listeners (`node.engine`), the options in the help (`cli.serving.serve`).
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from millstream.errors import UsageError
from millstream.gateway.core.cors import ANY_ORIGIN
from millstream.model.addresses import is_key_source, is_loopback
from millstream.model.bucket_names import (
    checked_bucket_name,
    checked_memory_quota,
    checked_partition_count,
)
from millstream.model.limits import MEMORY_QUOTA_BYTES_MIN
from millstream.runtime.logs import LEVELS
from millstream.views.core.reduce.reductions import REDUCE_LIMITS, ReduceLimit

__all__ = [
    "CLUSTER_SECRET_BYTES_MAX",
    "CLUSTER_SECRET_BYTES_MIN",
    "CLUSTER_VARIABLE",
    "DEFAULT_DATA",
    "ENGINES_MAX",
    "FLUSH_INTERVAL_MS",
    "FLUSH_INTERVAL_MS_MAX",
    "LISTENERS",
    "LOGIN_VARIABLE_PREFIX",
    "MEMORY_QUOTA_SHARE",
    "Address",
    "BucketSpec",
    "Credential",
    "Settings",
    "load_settings",
    "memory_quota_of",
    "parse_address",
    "refuse_exposure",
    "secretless_environment",
]

DEFAULT_DATA: Final = "millstream-data"
FLUSH_INTERVAL_MS: Final = 50
"""How long a write acknowledged from memory may wait for its group commit."""
FLUSH_INTERVAL_MS_MAX: Final = 600_000
MEMORY_QUOTA_SHARE: Final = 4
"""Default quota of a bucket: the machine's memory divided by this."""
ENVIRONMENT_PREFIX: Final = "MILLSTREAM_SERVE_"
LOGIN_VARIABLE_PREFIX: Final = "MILLSTREAM_PASSWORD_"
CLUSTER_VARIABLE: Final = "MILLSTREAM_CLUSTER_SECRET"
CLUSTER_SECRET_BYTES_MIN: Final = 16
CLUSTER_SECRET_BYTES_MAX: Final = 256
ENGINES_MAX: Final = 32
"""Engines of one machine."""
ZONE_LENGTH_MAX: Final = 100
_ROLES: Final = ("data", "index", "coord")
_SIZE: Final = re.compile(r"([0-9]{1,15}) ?(MiB|GiB|)")
_ORIGIN: Final = re.compile(
    r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?"
)
_UNITS: Final[Mapping[str, int]] = {"": 1, "MiB": 1 << 20, "GiB": 1 << 30}


class Address(NamedTuple):
    """Address of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def is_wildcard(self) -> bool:
        """Return whether it means all addresses of the machine."""
        return self.host in ("0.0.0.0", "::", "")


class BucketSpec(NamedTuple):
    """A bucket that must exist after the start; partitions None: 64 if it is created."""

    name: str
    partitions: int | None = None


class Credential(NamedTuple):
    """An administrator that must exist after the start."""

    name: str
    password: str


LISTENERS: Final[Mapping[str, Address]] = {
    "kv": Address("127.0.0.1", 11210),
    "memcached": Address("127.0.0.1", 11211),
    "http": Address("127.0.0.1", 5984),
    "coord": Address("127.0.0.1", 7379),
    "ninep": Address("127.0.0.1", 5640),
    "peer": Address("127.0.0.1", 7380),
}
"""Default addresses. With --port-base the first listener has that port, each further one the
next."""
PORT_BASE_MAX: Final = 65535 - len(LISTENERS) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """All settings of one node; a listener that is None stays closed."""

    data: str = DEFAULT_DATA
    kv: Address | None = LISTENERS["kv"]
    memcached: Address | None = LISTENERS["memcached"]
    memcached_is_asked: bool = False
    """The memcached listener was requested explicitly: it stays open also if there are users."""
    http: Address | None = LISTENERS["http"]
    coord: Address | None = LISTENERS["coord"]
    ninep: Address | None = LISTENERS["ninep"]
    peer: Address | None = LISTENERS["peer"]
    advertise: str | None = None
    join: Address | None = None
    buckets: tuple[BucketSpec, ...] = ()
    users: tuple[Credential, ...] = ()
    cluster_secret: str = field(default="", repr=False)
    """Secret with which the nodes log in to each other; empty: other nodes do not."""
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    oidc_issuer: str | None = None
    """Issuer whose tokens are accepted; requires the next two."""
    oidc_audience: str | None = None
    oidc_jwks: str | None = None
    """A file or a URL with the issuer's keys."""
    oidc_groups_claim: str = "groups"
    cors_origins: tuple[str, ...] = ()
    """Sites whose pages may use the HTTP port from a browser; `*`: all."""
    roles: tuple[str, ...] = _ROLES
    engines: int = 1
    """Number of engines on this machine, each a node of one cluster (`node.engine_settings`)."""
    engine: int = 1
    """Which of them this is."""
    zone: str = ""
    """Of the node in its cluster: copies are spread over zones. Empty: as it joined."""
    python_modules: tuple[str, ...] = ()
    """Imported by the index process: they register the Python functions of views."""
    reduce_limit: ReduceLimit = "true"
    """Handling of reduce results that do not shrink: an error value, nothing, or a log message."""
    flush_interval_ms: int = FLUSH_INTERVAL_MS
    memory_quota_bytes: int | None = None
    """Quota of buckets that have none of their own; None: `memory_quota_of` the machine."""
    log_level: str = "info"
    log_json: bool = False
    insecure_plaintext: bool = False

    def shown(self) -> dict[str, object]:
        """Return the settings that may be shown to others: no users, secrets or key files."""
        hidden = ("users", "cluster_secret", "tls_key", "oidc_jwks")
        return {
            one.name: value if isinstance(value, bool | int | None) else str(value)
            for one in fields(self)
            if one.name not in hidden
            for value in [getattr(self, one.name)]
        }

    @property
    def coordination_host(self) -> str:
        """Return the host that other nodes and clients of coordination are told to connect to."""
        address = self.peer or self.coord
        return self.advertise or (address.host if address is not None else "127.0.0.1")

    @property
    def advertised_host(self) -> str:
        """Return the host that clients are told to connect to."""
        return self.advertise or (self.kv.host if self.kv is not None else "127.0.0.1")


def _bad(option: str, value: object, wanted: str) -> UsageError:
    return UsageError(f"--{option} {value}: {wanted}", code="bad_option")


def _text(option: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _bad(option, value, "some text is wanted")
    return value


def _flag(option: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("1", "true", "yes"):
        return True
    if value in ("0", "false", "no", ""):
        return False
    raise _bad(option, value, "true or false is wanted")


def parse_address(option: str, value: object) -> Address:
    """Return the address in `HOST:PORT` or `[HOST]:PORT`.

    Raises:
        UsageError: `bad_option`.
    """
    host, colon, port = str(value).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise _bad(option, value, "HOST:PORT is wanted, with PORT 0 to 65535")
    return Address(host, int(port))


def _listener(option: str, value: object) -> Address | None:
    return None if value is False else parse_address(option, value)


def _listeners_from(value: object) -> dict[str, Address]:
    """Return the loopback listeners that `--port-base` places on consecutive ports."""
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= PORT_BASE_MAX:
        raise _bad("port-base", value, f"a port of 1 to {PORT_BASE_MAX} is wanted")
    return {
        name: Address(address.host, int(text) + offset)
        for offset, (name, address) in enumerate(LISTENERS.items())
    }


def _cluster_secret(option: str, value: object) -> str:
    is_fit = isinstance(value, str) and value.isascii() and value.isprintable()
    if not is_fit or not CLUSTER_SECRET_BYTES_MIN <= len(str(value)) <= CLUSTER_SECRET_BYTES_MAX:
        raise UsageError(
            f"{option}: {CLUSTER_SECRET_BYTES_MIN} to {CLUSTER_SECRET_BYTES_MAX} printable ASCII "
            f"characters are required",
            code="bad_option",
        )
    return str(value)


def _key_source(option: str, value: object) -> str:
    source = _text(option, value)
    if "://" not in source:
        return str(Path(source).absolute())
    if not is_key_source(source):
        raise _bad(
            option, source,
            "a file is wanted, or a URL with https (with http only of this machine)",
        )  # fmt: skip
    return source


def _list(value: object) -> list[object]:
    if isinstance(value, (list, tuple)):
        return list(value)
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]


def _buckets(option: str, value: object) -> tuple[BucketSpec, ...]:
    specs: dict[str, BucketSpec] = {}
    for item in _list(value):
        name, colon, partitions = _text(option, item).partition(":")
        if colon and not partitions.isdecimal():
            raise _bad(option, item, "NAME or NAME:PARTITIONS is wanted")
        count = checked_partition_count(int(partitions)) if colon else None
        specs[name] = BucketSpec(checked_bucket_name(name), count)
    return tuple(specs.values())


def _roles(option: str, value: object) -> tuple[str, ...]:
    roles = tuple(str(role) for role in _list(value))
    if set(roles) - set(_ROLES):
        raise _bad(option, ",".join(roles), f"roles are {', '.join(_ROLES)}")
    if "data" not in roles and set(roles) != {"index"}:
        raise _bad(
            option, ",".join(roles),
            "data must be among the roles, or index be the only one: nodes that only coordinate "
            "are not part of this version",
        )  # fmt: skip
    return roles


def _engines(option: str, value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= ENGINES_MAX:
        raise _bad(option, value, f"1 to {ENGINES_MAX} are possible")
    return int(text)


def _zone(option: str, value: object) -> str:
    zone = _text(option, value)
    if not zone.isprintable() or len(zone) > ZONE_LENGTH_MAX:
        raise _bad(option, value, f"at most {ZONE_LENGTH_MAX} printable characters are wanted")
    return zone


def _origins(option: str, value: object) -> tuple[str, ...]:
    origins = tuple(_text(option, one).rstrip("/") for one in _list(value))
    for one in origins:
        if one != ANY_ORIGIN and not _ORIGIN.fullmatch(one):
            raise _bad(option, one, "http://HOST[:PORT], https://HOST[:PORT] or * is wanted")
    return origins


def _modules(option: str, value: object) -> tuple[str, ...]:
    modules = tuple(_text(option, name) for name in _list(value))
    for name in modules:
        if not all(part.isidentifier() for part in name.split(".")):
            raise _bad(option, name, "the name of a module is wanted, as in an import")
    return modules


def _reduce_limit(option: str, value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if text not in REDUCE_LIMITS:
        raise _bad(option, value, f"one of {', '.join(REDUCE_LIMITS)} is wanted")
    return text


def _flush_interval(option: str, value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or int(text) > FLUSH_INTERVAL_MS_MAX:
        raise _bad(option, value, f"0 to {FLUSH_INTERVAL_MS_MAX} milliseconds are wanted")
    return int(text)


def memory_quota_of(machine_bytes: int) -> int:
    """Return the memory quota of a bucket on a machine with this much memory."""
    return max(MEMORY_QUOTA_BYTES_MIN, machine_bytes // MEMORY_QUOTA_SHARE)


def _memory_quota(option: str, value: object) -> int:
    found = _SIZE.fullmatch(str(value))
    if isinstance(value, bool) or found is None:
        raise _bad(option, value, "bytes are wanted, or a number with MiB or GiB")
    return checked_memory_quota(int(found[1]) * _UNITS[found[2]])


def _log_level(option: str, value: object) -> str:
    if value not in LEVELS:
        raise _bad(option, value, f"levels are {', '.join(LEVELS)}")
    return str(value)


_CLUSTER_OPTION: Final = "cluster-secret"
_PORT_BASE: Final = "port-base"
_Parser = Callable[[str, object], Any]
_OPTIONS: Final[Mapping[str, tuple[str, _Parser]]] = {
    "data": ("data", _text),
    **{name: (name, _listener) for name in LISTENERS},
    "advertise": ("advertise", _text),
    "join": ("join", parse_address),
    "bucket": ("buckets", _buckets),
    "user": ("users", lambda _, value: _list(value)),
    _CLUSTER_OPTION: ("cluster_secret", _cluster_secret),
    "tls-cert": ("tls_cert", _text),
    "tls-key": ("tls_key", _text),
    "tls-ca": ("tls_ca", _text),
    "oidc-issuer": ("oidc_issuer", _text),
    "oidc-audience": ("oidc_audience", _text),
    "oidc-jwks": ("oidc_jwks", _key_source),
    "oidc-groups-claim": ("oidc_groups_claim", _text),
    "cors-origin": ("cors_origins", _origins),
    "roles": ("roles", _roles),
    "engines": ("engines", _engines),
    "zone": ("zone", _zone),
    "python-module": ("python_modules", _modules),
    "reduce-limit": ("reduce_limit", _reduce_limit),
    "flush-interval": ("flush_interval_ms", _flush_interval),
    "memory-quota": ("memory_quota_bytes", _memory_quota),
    "log-level": ("log_level", _log_level),
    "log-json": ("log_json", _flag),
    "insecure-plaintext": ("insecure_plaintext", _flag),
}


def load_settings(given: Mapping[str, object], environment: Mapping[str, str]) -> Settings:
    """Combine settings and check them.

    Args:
        given: option name -> value from the command line, only those written there; a closed
            listener is False (or `no-NAME` true); `config` names a TOML file.
        environment: the environment variables.

    Raises:
        UsageError: `bad_option`, `unknown_option`, `bad_config`, `bad_bucket_name`,
            `bad_partitions`, `bad_memory_quota`, `missing_password`.
    """
    from_environment: dict[str, object] = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "-"): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    if _CLUSTER_OPTION in given or _CLUSTER_OPTION in from_environment:
        raise UsageError(
            f"the cluster's secret is said by {CLUSTER_VARIABLE} or by {_CLUSTER_OPTION} in the "
            "--config file, nowhere else",
            code="bad_option",
        )
    if environment.get(CLUSTER_VARIABLE):
        from_environment[_CLUSTER_OPTION] = environment[CLUSTER_VARIABLE]
    config = given.get("config") or from_environment.get("config")
    from_file = _read_config(_text("config", config)) if config else {}
    raw: dict[str, object] = {}
    for source, values in (
        ("the config file", from_file),
        ("the environment", from_environment),
        ("the command line", given),
    ):
        raw.update(_closed_listeners(values))
        _refuse_unknown(raw, source)
    base = raw.pop(_PORT_BASE, None)
    fields: dict[str, Any] = {} if base is None else dict(_listeners_from(base))
    fields |= {
        field: parser(name, raw[name]) for name, (field, parser) in _OPTIONS.items() if name in raw
    }
    if "users" in fields:
        fields["users"] = _credentials(fields["users"], environment)
    fields["memcached_is_asked"] = bool(raw.get("memcached"))
    settings = _checked(Settings(**fields))
    return settings if "data" in settings.roles else _without_data(settings, raw)


def _without_data(settings: Settings, raw: Mapping[str, object]) -> Settings:
    """Check the settings of a node without data, and close the listeners that it does not have."""
    if settings.join is None:
        raise UsageError(
            "--roles index needs --join HOST:PORT: the HTTP address of a node with data",
            code="bad_option",
        )
    if settings.http is None:
        raise UsageError(
            "--roles index needs the HTTP listener: views are asked there", code="bad_option"
        )
    if settings.engines > 1:
        raise UsageError(
            "--engines: a node without the role data has one engine", code="bad_option"
        )
    for option in ("kv", "memcached", "bucket"):
        if raw.get(option):
            raise UsageError(
                f"--{option}: a node without the role data has no documents", code="bad_option"
            )
    return replace(settings, kv=None, memcached=None)


def secretless_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child process: ours without passwords and secrets."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(LOGIN_VARIABLE_PREFIX) and name != CLUSTER_VARIABLE
    }


def refuse_exposure(settings: Settings, *, has_users: bool) -> None:
    """Reject listeners that would be exposed to the network without protection.

    Raises:
        UsageError: `exposed_listener`.
    """
    if ANY_ORIGIN in settings.cors_origins and not has_users:
        raise UsageError(
            "--cors-origin *: without users every page in a browser could change everything; "
            "name the sites, or create a user with --user NAME:PASSWORD",
            code="exposed_listener",
        )
    for name in LISTENERS:
        address: Address | None = getattr(settings, name)
        if address is None or address.is_loopback:
            continue
        missing = ""
        if name == "memcached":
            missing = "has no log-in, so it listens on loopback only; give --no-memcached"
        elif not has_users:
            missing = "needs users beyond loopback; create one with --user NAME:PASSWORD"
        elif settings.tls_cert is None and not settings.insecure_plaintext:
            missing = "needs TLS beyond loopback; give --tls-cert, or --insecure-plaintext"
        if missing:
            raise UsageError(f"--{name} {address} {missing}", code="exposed_listener")


def _read_config(path: str) -> dict[str, object]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--config {path}: {error}", code="bad_config") from error


def _closed_listeners(values: Mapping[str, object]) -> dict[str, object]:
    """Turn `no-kv = true` into `kv = false`."""
    raw = {name: value for name, value in values.items() if name != "config"}
    for name in LISTENERS:
        if raw.get(name) == "false":
            raw[name] = False
        if f"no-{name}" in raw and _flag(f"no-{name}", raw.pop(f"no-{name}")):
            raw[name] = False
    return raw


def _refuse_unknown(raw: Mapping[str, object], source: str) -> None:
    for name in raw:
        if name not in _OPTIONS and name != _PORT_BASE:
            near = difflib.get_close_matches(name, [*_OPTIONS, _PORT_BASE], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"unknown option {name!r} in {source}{hint}", code="unknown_option")


def _credentials(items: list[object], environment: Mapping[str, str]) -> tuple[Credential, ...]:
    credentials = []
    for item in items:
        name, colon, password = _text("user", item).partition(":")
        if not colon:
            password = environment.get(LOGIN_VARIABLE_PREFIX + name, "")
        if not name or not password:
            raise UsageError(
                f"--user {name}: no password; write NAME:PASSWORD, or set "
                f"{LOGIN_VARIABLE_PREFIX}{name}",
                code="missing_password",
            )
        credentials.append(Credential(name, password))
    return tuple(credentials)


def _checked(settings: Settings) -> Settings:
    if settings.tls_key is not None and settings.tls_cert is None:
        raise UsageError("--tls-key needs --tls-cert", code="bad_option")
    of_tokens = settings.oidc_issuer, settings.oidc_audience, settings.oidc_jwks
    if any(of_tokens) and not all(of_tokens):
        raise UsageError(
            "tokens are taken if all are said: --oidc-issuer, --oidc-audience, --oidc-jwks",
            code="bad_option",
        )
    for name in ("kv", "coord", "peer"):
        address: Address | None = getattr(settings, name)
        if address is not None and address.is_wildcard and settings.advertise is None:
            raise UsageError(
                f"--{name} {address}: give --advertise HOST, the name that others are told to "
                "connect to",
                code="bad_option",
            )
    return settings
