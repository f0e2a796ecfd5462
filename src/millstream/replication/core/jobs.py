"""What a replication is asked to do, how it is checked, and what its log is called.

Invariants:
1. A job is refused as CouchDB refuses it, with its words.
2. The name of a log depends on both databases and on what passes between them, on nothing else:
   addresses, credentials, sizes and times may change. An end that has no uuid of its own is named
   by its address without credentials.
3. Two filters have one signature only if they let the same documents pass.

Elsewhere: what filters mean for what a site knows of others (`coverage`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from millstream.errors import AccessError, UsageError

__all__ = [
    "BATCH_DOCUMENTS_DEFAULT",
    "BATCH_DOCUMENTS_MAX",
    "CHECKPOINT_INTERVAL_DEFAULT_MS",
    "CHECKPOINT_INTERVAL_MIN_MS",
    "CONNECTIONS_DEFAULT",
    "CONNECTIONS_MAX",
    "DOC_IDS_MAX",
    "JOB_BYTES_MAX",
    "TIMEOUT_DEFAULT_MS",
    "WORKERS_DEFAULT",
    "WORKERS_MAX",
    "Endpoint",
    "Job",
    "Member",
    "Proxy",
    "check_document",
    "member_of",
    "parse_job",
    "replication_id",
]

WORKERS_DEFAULT: Final = 4
WORKERS_MAX: Final = 32
"""Batches of one job that are under way at a time."""
BATCH_DOCUMENTS_DEFAULT: Final = 500
BATCH_DOCUMENTS_MAX: Final = 10_000
CONNECTIONS_DEFAULT: Final = 20
CONNECTIONS_MAX: Final = 200
"""Connections of one job to each end."""
CHECKPOINT_INTERVAL_DEFAULT_MS: Final = 30_000
CHECKPOINT_INTERVAL_MIN_MS: Final = 100
TIMEOUT_DEFAULT_MS: Final = 30_000
TIMEOUT_MAX_MS: Final = 600_000
DOC_IDS_MAX: Final = 5000
"""Ids of documents in one job. More are for several jobs, or a selector."""
JOB_BYTES_MAX: Final = 512 * 1024
"""Size of a document of `_replicator`."""
_EXCLUSIVE: Final = "`doc_ids`,`filter`,`selector` are mutually exclusive"
_TYPES: Final[Sequence[tuple[str, type | tuple[type, ...], str]]] = (
    ("create_target", bool, "a boolean"),
    ("continuous", bool, "a boolean"),
    ("doc_ids", list, "an array of strings"),
    ("selector", (dict, list, type(None)), "an object"),
    ("filter", str, "a non-empty string"),
    ("query_params", (dict, list), "an object"),
)
"""Members of a document of `_replicator` that have one type, as CouchDB checks it."""
_DESIGN: Final = "_design"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PORTS: Final = {"http": 80, "https": 443}
_COUCHDB_PORT: Final = 5984


class Member(NamedTuple):
    """What lets documents pass; a filter is a list of such members, all of which must."""

    kind: Literal["ids", "design", "content"]
    ids: tuple[str, ...] = ()
    """Sorted; of kind `ids` only."""
    signature: str = ""
    """Only for the kind `content`: a hash of code, selector and parameters."""

    @property
    def looks_inside(self) -> bool:
        """Whether the filter examines revisions, not names."""
        return self.kind == "content"

    def implies(self, other: Member) -> bool:
        """Whether every document that passes here passes there."""
        if self == other:
            return True
        if self.kind != "ids":
            return False
        if other.kind == "design":
            return all(name.startswith("_design/") for name in self.ids)
        return other.kind == "ids" and set(self.ids) <= set(other.ids)

    def admits(self, name: str) -> bool:
        """Whether a document may pass that has this id; True if its content decides."""
        if self.kind == "ids":
            return name in self.ids
        return self.kind == "content" or name.startswith("_design/")


@dataclass(frozen=True, slots=True)
class Proxy:
    """What requests to an end pass through."""

    url: str
    """Without credentials."""
    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a job: an address, or the name of a database of this node."""

    url: str
    """Without credentials and without a slash at its end; empty for a database of this node."""
    name: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    proxy: Proxy | None = None
    """Databases of this node are reached without."""

    @property
    def identity(self) -> str:
        """What names the database in a log's name if it has no uuid."""
        if not self.url:
            return f"local:{self.name}"
        parts = urlsplit(self.url)
        usual = (None, _PORTS[parts.scheme], *([_COUCHDB_PORT] if parts.scheme == "http" else []))
        port = "" if parts.port in usual else str(parts.port)
        return f"remote:{self.user}@{parts.hostname}:{port}{parts.path}"

    @property
    def shown(self) -> str:
        """How it is named to people; tells no secret."""
        return self.url or self.name


@dataclass(frozen=True, slots=True)
class Job:
    """One replication; units are in the names."""

    source: Endpoint
    target: Endpoint
    continuous: bool = False
    create_target: bool = False
    create_target_params: Mapping[str, Any] = field(default_factory=dict)
    doc_ids: tuple[str, ...] | None = None
    selector: Mapping[str, Any] | None = None
    filter: str = ""
    query_params: Mapping[str, Any] = field(default_factory=dict)
    winning_revs_only: bool = False
    since_seq: Any = None
    use_checkpoints: bool = True
    checkpoint_interval_ms: int = CHECKPOINT_INTERVAL_DEFAULT_MS
    worker_processes: int = WORKERS_DEFAULT
    worker_batch_size: int = BATCH_DOCUMENTS_DEFAULT
    http_connections: int = CONNECTIONS_DEFAULT
    timeout_ms: int = TIMEOUT_DEFAULT_MS
    transitive: bool = True

    @property
    def function(self) -> tuple[str, ...] | None:
        """Where the source keeps the code that filters: design document, then names inside it."""
        if self.filter == "_view":
            document, _, name = str(self.query_params["view"]).partition("/")
            return document, "views", name, "map"
        if not self.filter or self.filter.startswith("_"):
            return None
        document, _, name = self.filter.partition("/")
        return document, "filters", name


def parse_job(form: Mapping[str, Any]) -> Job:
    """Check a job as it is asked for over HTTP or in a document of `_replicator`.

    Raises:
        UsageError: `bad_request`; the message has CouchDB's words.
    """
    source_proxy, target_proxy = _proxies(form)
    filters = _filters(form)
    return Job(
        _endpoint(form.get("source"), source_proxy),
        _endpoint(form.get("target"), target_proxy),
        continuous=_flag(form, "continuous"),
        create_target=_flag(form, "create_target"),
        create_target_params=_object(form, "create_target_params", "a JSON object"),
        winning_revs_only=_flag(form, "winning_revs_only"),
        since_seq=form.get("since_seq"),
        use_checkpoints=_flag(form, "use_checkpoints", default=True),
        checkpoint_interval_ms=_number(
            form, "checkpoint_interval", CHECKPOINT_INTERVAL_DEFAULT_MS,
            CHECKPOINT_INTERVAL_MIN_MS, 86_400_000,
        ),
        worker_processes=_number(form, "worker_processes", WORKERS_DEFAULT, 1, WORKERS_MAX),
        worker_batch_size=_number(
            form, "worker_batch_size", BATCH_DOCUMENTS_DEFAULT, 1, BATCH_DOCUMENTS_MAX
        ),
        http_connections=_number(
            form, "http_connections", CONNECTIONS_DEFAULT, 1, CONNECTIONS_MAX
        ),
        timeout_ms=_number(form, "connection_timeout", TIMEOUT_DEFAULT_MS, 1000, TIMEOUT_MAX_MS),
        transitive=_flag(form, "transitive", default=True),
        **filters,
    )  # fmt: skip


def check_document(form: Mapping[str, Any]) -> None:
    """Check a document of `_replicator` before it is stored, as CouchDB does: its types only.

    A document whose run ended as `failed` may have any members: nobody runs it.

    Raises:
        AccessError: `forbidden`; the message has CouchDB's words.
    """
    if form.get("_replication_state") == "failed":
        return
    for name in ("source", "target"):
        _check_end(name, form.get(name))
    for name, kinds, wanted in _TYPES:
        if name in form and not isinstance(form[name], kinds):
            raise _forbidden(f"The `{name}' field must be {wanted}.")
    if form.get("filter") == "":
        raise _forbidden("The `filter' field must be a non-empty string.")
    if "doc_ids" in form and "selector" in form:
        raise _forbidden("`doc_ids' field is incompatible with `selector'.")
    if "filter" in form and form.keys() & {"doc_ids", "selector"}:
        raise _forbidden("`filter' field is incompatible with `selector' and `doc_ids'.")
    context = form.get("user_ctx") or {}
    if not isinstance(context, Mapping):
        raise _forbidden("The `user_ctx' property must be a non-null object.")
    if context.get("name") is not None and not (
        isinstance(context["name"], str) and context["name"]
    ):
        raise _forbidden("The `user_ctx.name' property must be a non-empty string or null.")
    if context.get("roles") and not isinstance(context["roles"], list):
        raise _forbidden("The `user_ctx.roles' property must be an array of strings.")


def _check_end(name: str, end: Any) -> None:
    if isinstance(end, str):
        return
    if not isinstance(end, Mapping):
        raise _forbidden(f"The `{name}' property must exist and be either a string or an object.")
    if not isinstance(end.get("url"), str) or not end["url"]:
        raise _forbidden(
            f"The url property must exist in the `{name}' field and must be a non-empty string."
        )
    for member in ("auth", "headers"):
        if member in end and not isinstance(end[member], Mapping):
            raise _forbidden(f"`{name}.{member}' must be a non-null object.")


def _forbidden(reason: str) -> AccessError:
    return AccessError(reason, code="forbidden")


def _filters(form: Mapping[str, Any]) -> dict[str, Any]:
    names, selector, filter_ = form.get("doc_ids"), form.get("selector"), form.get("filter")
    if isinstance(names, Sequence) and len(names) > DOC_IDS_MAX:
        raise _refused(
            f"parameter `doc_ids` has more than {DOC_IDS_MAX} elements: make several jobs, or "
            "give a selector"
        )
    if names is not None and not _is_texts(names):
        raise _refused("parameter `doc_ids` must be an array")
    if selector is not None and not isinstance(selector, Mapping):
        raise _refused("parameter `selector` must be a JSON object")
    if sum(each is not None for each in (names, selector, filter_)) > 1:
        raise _refused(_EXCLUSIVE)
    params = _object(form, "query_params", "an object")
    _check_filter(filter_, params)
    return {
        "doc_ids": None if names is None else tuple(sorted({unquote(name) for name in names})),
        "selector": selector,
        "filter": filter_ or "",
        "query_params": params,
    }


def _check_filter(filter_: Any, params: Mapping[str, Any]) -> None:
    if filter_ is None:
        return
    is_builtin = isinstance(filter_, str) and filter_.startswith("_")
    if not isinstance(filter_, str) or not (is_builtin or "/" in filter_):
        raise _refused("Invalid filter. Must match `ddocname/filtername`.")
    if filter_ == "_view" and str(params.get("view", "")).count("/") != 1:
        raise _refused("Invalid `view` parameter.")


def _proxies(form: Mapping[str, Any]) -> tuple[Proxy | None, Proxy | None]:
    both, source, target = (
        _proxy(name, form.get(name)) for name in ("proxy", "source_proxy", "target_proxy")
    )
    if both and source:
        raise _refused("`proxy` is mutually exclusive with `source_proxy`")
    if both and target:
        raise _refused("`proxy` is mutually exclusive with `target_proxy`")
    return both or source, both or target


def _proxy(name: str, url: Any) -> Proxy | None:
    if not url:
        return None
    if isinstance(url, str) and url.lower().startswith("socks5:"):
        raise _refused(f"`{name}`: there is no socks5 here, only http and https proxies")
    if not _is_address(url):
        raise _refused("proxy has an invalid url")
    user, password, bare = _without_credentials(url)
    return Proxy(bare, user, password)


def _endpoint(form: Any, proxy: Proxy | None) -> Endpoint:
    if form is None:
        raise _refused("Missing replicator database")
    if isinstance(form, str) and "://" not in form and form:
        return Endpoint("", name=form)
    told = {"url": form} if isinstance(form, str) else form
    url = told.get("url") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping) or not _is_address(url):
        raise _refused("endpoint has an invalid url")
    user, password, bare = _without_credentials(str(url))
    basic = _mapping_of(_mapping_of(told.get("auth")).get("basic"))
    if basic:
        user, password = str(basic.get("username", "")), str(basic.get("password", ""))
    headers = {str(name): str(text) for name, text in _mapping_of(told.get("headers")).items()}
    token = str(_mapping_of(told.get("auth")).get("bearer", ""))
    if any(_CONTROL.search(text) for text in (*headers, *headers.values(), token)):
        raise _refused("headers of an endpoint must have no control characters")
    return Endpoint(bare, "", user, password, token, headers, proxy)


def _mapping_of(form: Any) -> Mapping[str, Any]:
    if form is None:
        return {}
    if not isinstance(form, Mapping):
        raise _refused("`auth` and `headers` of an endpoint must be objects")
    return form


def _is_address(url: Any) -> bool:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in _PORTS or not parts.hostname:
            return False
        parts.hostname.encode("idna")  # raises where there can be no such host
        return parts.port != 0  # raises, too
    except ValueError:
        return False


def _without_credentials(url: str) -> tuple[str, str, str]:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    bare = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), parts.query, ""))
    return unquote(parts.username or ""), unquote(parts.password or ""), bare


def _flag(form: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = form.get(name, default)
    if not isinstance(value, bool):
        raise _refused(f"parameter `{name}` must be a boolean")
    return value


def _object(form: Mapping[str, Any], name: str, wanted: str) -> Mapping[str, Any]:
    value = form.get(name, {})
    if not isinstance(value, Mapping):
        raise _refused(f"parameter `{name}` must be {wanted}")
    return value


def _number(
    form: Mapping[str, Any], name: str, default: int, least: int, largest: int
) -> int:  # fmt: skip
    value = form.get(name, default)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
        raise _refused(f"parameter `{name}` must be a number from {least} to {largest}")
    return value


def _is_texts(names: Any) -> bool:
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    return is_list and all(isinstance(name, str) for name in names)


def _refused(reason: str) -> UsageError:
    return UsageError(reason, code="bad_request")


# ---- names


def member_of(job: Job, code: str | None) -> Member | None:
    """Return what a job's filter lets pass; None: everything.

    Args:
        job: a checked one.
        code: of its filter function, as the source keeps it.
    """
    if job.doc_ids is not None:
        return Member("ids", job.doc_ids)
    if job.selector is not None:
        return Member("content", signature=_digest(["selector", job.selector]))
    if not job.filter:
        return None
    if job.filter == _DESIGN:
        return Member("design")
    return Member(
        "content", signature=_digest([job.function and code, job.filter, job.query_params])
    )


def replication_id(
    source: str, target: str, member: Member | None, *, winning_revs_only: bool
) -> str:
    """Return the name of a log, without `_local/`.

    Args:
        source: uuid of the source, or `Endpoint.identity`.
        target: the same of the target.
        member: the filter.
        winning_revs_only: conflicts are left out.
    """
    told = None if member is None else [member.kind, member.ids, member.signature]
    return _digest([source, target, told, winning_revs_only])


_canonical: Final[Callable[[Any], bytes]] = msgspec.json.Encoder(order="deterministic").encode


def _digest(content: Any) -> str:
    return sha256(_canonical(content)).hexdigest()[:32]
