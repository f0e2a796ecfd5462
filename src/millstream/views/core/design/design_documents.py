"""Design documents: which views a bucket has, checked once and then trusted.

    {"language": "javascript" | "python" | "query", "options": {"include_design", "local_seq"},
     "autoupdate": true, "engine": "node" | "spark",
     "views": {"lib": {"<module>": source, ...},
               "<view>": {"map": source, "reduce": source or built-in or absent,
                          "options": {"collation": "raw"}}, ...}}

In the language `python` a map is "registered:<name>": a callable which the operator registered
under that name; Python source that came over the network is never run. In the language `query` it
is an object, the definition of a JSON index; a `View` has its JSON text. Views of the same map and
options share one tree; each different reduce of them is one more value in its nodes.

`engine` says who keeps the index: the node, or a Spark pipeline.

Invariants:
1. The signature is a function of what decides the rows of the trees (maps, reduces, options,
   language, lib) and of nothing else: neither of names of views nor of filters and the like.
2. View numbers are positions in `views` (by name), tree numbers positions in `trees`, numbers of
   reduces positions in `Tree.reduces`; the latter two are functions of what the signature covers.

Elsewhere: JSON indexes (`views.core.mango.definitions`), whether a source compiles
(`views.aio.sandbox.process`), the registered callables (`views.core.design.registered`), the
built-in reduces (`views.core.reduce.builtin_reduces`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from millstream.documents.json_text import parse_exactly
from millstream.errors import UsageError
from millstream.views.core.mango.definitions import parse_definition
from millstream.views.core.reduce.builtin_reduces import is_builtin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "COUNT",
    "DESIGN_PREFIX",
    "LIB_DEPTH_MAX",
    "QUERY_VIEWS_BYTES_MAX",
    "REGISTERED",
    "TOLD_BYTES_MAX",
    "VIEWS_MAX",
    "DesignDocument",
    "Functions",
    "ToldDesign",
    "Tree",
    "View",
    "by_signature",
    "design_name",
    "own_number",
    "parse_design",
    "read_design",
    "shared_text",
    "told_design",
    "told_designs",
]

DESIGN_PREFIX: Final = "_design/"
REGISTERED: Final = "registered:"
VIEWS_MAX: Final = 100
LIB_DEPTH_MAX: Final = 8
"""Nested objects of modules in `views.lib`."""
TOLD_BYTES_MAX: Final = 8 * 1024 * 1024
"""Size of the design documents of a bucket in an order to its index process, as JSON."""
VIEWS_BYTES_MAX: Final = 1024 * 1024
"""Size of the views of one design document, as JSON. Larger ones are stored and not run."""
QUERY_VIEWS_BYTES_MAX: Final = 128 * 1024
"""The same for JSON indexes, without their options: each query weighs all of them."""
_TOLD: Final = ("language", "views", "options", "autoupdate", "engine")
_UNUSABLE: Final = "_unusable"
"""Stands for the views of a document that cannot be used: why. No document has such a member."""
_LARGE_NUMBER: Final = re.compile(rb"\d{19}").search
_NAME_BYTES_MAX: Final = 100
COUNT: Final = "_count"
_BUILT_IN: Final = re.compile(r"_\w+", re.ASCII)
_LIB: Final = "lib"
_OPTIONS: Final = ("include_design", "local_seq")

Collation = Literal["unicode", "raw"]
Engine = Literal["node", "spark"]
Language = Literal["javascript", "python", "query"]


@dataclass(frozen=True, slots=True)
class View:
    """One view: `map` and `reduce` are sources, `registered:` names or, for reduce, built-ins.

    In the language `query`, `map` is the JSON text of a definition.

    `tree` is the number of its tree, `number` that of its reduce there, -1 without one.
    """

    name: str
    map: str
    reduce: str = ""
    collation: Collation = "unicode"
    tree: int = 0
    number: int = -1

    @property
    def has_builtin_reduce(self) -> bool:
        """Whether the reduce is built in."""
        return is_builtin(self.reduce)

    @property
    def has_own_reduce(self) -> bool:
        """Whether the reduce is a function of the design document's own."""
        return bool(self.reduce) and not self.has_builtin_reduce


class Functions(NamedTuple):
    """What a mapper runs: sources in `language`, `registered:` names in Python.

    `reduces`: the own ones, each under a number; `lib`: as in the design document. `design`: the
    JSON text of the whole document, where it is not its views that are run.
    """

    name: str
    language: Language
    maps: tuple[str, ...]
    reduces: tuple[tuple[int, str], ...]
    lib: str
    design: str = ""


class Tree(NamedTuple):
    """What the views of one tree share: the map, the row order, and all their reduces.

    `_count` is always among these: it tells emits from documents where total_rows is counted.
    """

    map: str
    collation: Collation
    reduces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DesignDocument:
    """A checked design document.

    `lib` is the JSON text of its modules, empty where it has none.
    """

    name: str
    language: Language
    views: tuple[View, ...]
    trees: tuple[Tree, ...]
    include_design: bool
    local_seq: bool
    lib: str
    autoupdate: bool
    engine: Engine
    signature: str

    def number_of(self, view_name: str) -> int:
        """Return the position of a view.

        Raises:
            UsageError: `missing_named_view`.
        """
        for number, view in enumerate(self.views):
            if view.name == view_name:
                return number
        names = ", ".join(view.name for view in self.views) or "none"
        raise UsageError(
            f"design document {self.name!r} has no view {view_name!r}; it has: {names}",
            code="missing_named_view",
        )

    def names_of(self, tree: int) -> tuple[str, ...]:
        """Return the names of the views that share a tree."""
        return tuple(view.name for view in self.views if view.tree == tree)

    def functions_by_view(self) -> Functions:
        """Return a map per view, reduces under the number of their view."""
        own = [(at, view.reduce) for at, view in enumerate(self.views) if view.has_own_reduce]
        maps = tuple(view.map for view in self.views)
        return Functions(self.name, self.language, maps, tuple(own), self.lib)

    def functions_by_tree(self) -> Functions:
        """Return a map per tree, reduces under the number that `own_number` gives."""
        own = [
            (own_number(at, number), reduce)
            for at, tree in enumerate(self.trees)
            for number, reduce in enumerate(tree.reduces)
            if not is_builtin(reduce)
        ]
        maps = tuple(tree.map for tree in self.trees)
        return Functions(self.name, self.language, maps, tuple(own), self.lib)

    def as_json(self) -> dict[str, Any]:
        """Return the document from which this one can be parsed again."""
        views: dict[str, Any] = {
            view.name: _view_as_json(view, self.language) for view in self.views
        }
        if self.lib:
            views[_LIB] = msgspec.json.decode(self.lib)
        options = {name: True for name in _OPTIONS if getattr(self, name)}
        return {
            "_id": DESIGN_PREFIX + self.name,
            "language": self.language,
            "views": views,
            **({"options": options} if options else {}),
            **({} if self.autoupdate else {"autoupdate": False}),
            **({} if self.engine == "node" else {"engine": self.engine}),
        }


def own_number(tree: int, number: int) -> int:
    """Return the number under which `functions_by_tree` has a reduce of a tree."""
    return tree * (VIEWS_MAX + 1) + number


def _view_as_json(view: View, language: Language) -> dict[str, Any]:
    is_query = language == "query"
    member: dict[str, Any] = {"map": msgspec.json.decode(view.map) if is_query else view.map}
    if view.reduce:
        member["reduce"] = view.reduce
    if view.collation != "unicode":
        member["options"] = {"collation": view.collation}
    return member


def design_name(text: str) -> str:
    """Return the name of a design document given as `name` or `_design/name`.

    Raises:
        UsageError: `invalid_design_doc`: empty, too long, or with a slash.
    """
    name = text.removeprefix(DESIGN_PREFIX)
    if not name or "/" in name or len(name.encode()) > _NAME_BYTES_MAX:
        raise _invalid(
            f"design document name {name!r} must have 1 to {_NAME_BYTES_MAX} bytes and no slash"
        )
    return name


def by_signature(designs: Iterable[DesignDocument]) -> dict[str, DesignDocument]:
    """Return design documents with views; of those that share an index the most specific one."""
    found: dict[str, DesignDocument] = {}
    for design in designs:
        if design.views:
            known = found.get(design.signature)
            if known is None or _rank(design) > _rank(known):
                found[design.signature] = design
    return found


def _rank(design: DesignDocument) -> tuple[bool, bool]:
    return design.engine == "spark", design.autoupdate


def read_design(body: bytes) -> dict[str, Any]:
    """Return the members of a stored design document, whatever stands in them.

    Integers of more than 64 bits are floats: not every process can be told them.
    """
    content: dict[str, Any]
    if _LARGE_NUMBER(body):
        content = _with_floats(parse_exactly(body))
    else:
        content = msgspec.json.decode(body, type=dict[str, Any])
    return content


def _with_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_floats(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_with_floats(member) for member in value]
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        try:
            return float(value)
        except OverflowError:
            return None
    return value


class ToldDesign(NamedTuple):
    """What an index process needs of a design document for its views."""

    text: bytes
    """A JSON object with some members of the document, or one that says why it is unusable."""
    views: frozenset[str] | None
    """Names of its views; None: its views are no object, or unusable."""
    has_views: bool


def shared_text(body: bytes, content: Mapping[str, Any]) -> bytes:
    """Return a stored design document as other nodes are told it, by what `read_design` read."""
    return msgspec.json.encode(content) if _LARGE_NUMBER(body) else body


def told_design(content: Mapping[str, Any]) -> ToldDesign:
    """Return what an index process is told of a design document, by its members."""
    told = {member: content[member] for member in _TOLD if member in content}
    text, views = msgspec.json.encode(told), told.get("views")
    if why := _too_large(text, told):
        return _unusable(why)
    names = frozenset(views) if isinstance(views, dict) else None
    return ToldDesign(text, names if "views" in told else frozenset(), bool(views))


def _too_large(text: bytes, told: Mapping[str, Any]) -> str:
    """Return why the views of a document are too large to be used; empty: they are not."""
    size, most, what = len(text), VIEWS_BYTES_MAX, "views"
    if told.get("language") == "query":
        size, most, what = query_views_bytes(told.get("views")), QUERY_VIEWS_BYTES_MAX, "indexes"
    if size <= most:
        return ""
    return f"its {what} have {size} bytes; those of one design document have at most {most}"


def query_views_bytes(views: Any) -> int:
    """Return the size of the definitions of JSON indexes."""
    members = views.values() if isinstance(views, dict) else ()
    return sum(len(msgspec.json.encode(one["map"])) for one in members
               if isinstance(one, dict) and "map" in one)  # fmt: skip


def _unusable(why: str) -> ToldDesign:
    text = msgspec.json.encode({"views": [], _UNUSABLE: why})
    return ToldDesign(text, None, False)


def told_designs(designs: Mapping[str, ToldDesign]) -> dict[str, ToldDesign]:
    """Return what an index process is told of the design documents of a bucket.

    If all are more than `TOLD_BYTES_MAX`, the largest say that they cannot be used instead.
    """
    told, left = dict(designs), TOLD_BYTES_MAX
    for name in sorted(told, key=lambda name: len(told[name].text)):
        size = len(told[name].text)
        left -= size
        if left < 0:
            told[name] = _unusable(
                f"its views have {size} bytes; all design documents of a bucket have at most "
                f"{TOLD_BYTES_MAX}"
            )
    return told


def parse_design(document: Mapping[str, Any], name: str = "") -> DesignDocument:
    """Check a design document. One without views is good: it may be there for its filters.

    Args:
        document: the decoded JSON object; its `_id` is used where `name` is not given.
        name: with or without `_design/`.

    Raises:
        UsageError: `invalid_design_doc`, with the member at fault named.
    """
    if not isinstance(document, dict):
        raise _invalid("a design document is a JSON object")
    if _UNUSABLE in document:
        raise _invalid(str(document[_UNUSABLE]))
    name = design_name(name or str(document.get("_id", "")))
    language = document.get("language", "javascript")
    if language not in ("javascript", "python", "query"):
        raise _invalid(f"language {language!r} is not known; javascript, python and query are")
    members = document.get("views", {})
    if not isinstance(members, dict):
        raise _invalid("`views` must be an object")
    told = {member: document[member] for member in _TOLD if member in document}
    if why := _too_large(msgspec.json.encode(told), told):
        raise _invalid(why)
    lib = _parse_lib(members.get(_LIB), language)
    names = sorted(members.keys() - {_LIB})
    if language != "query":
        names = [name for name in names if not _is_no_view(members[name])]
    if len(names) > VIEWS_MAX:
        raise _invalid(f"{len(names)} views are more than {VIEWS_MAX}")
    autoupdate = document.get("autoupdate", True)
    if not isinstance(autoupdate, bool):
        raise _invalid("`autoupdate` must be true or false")
    engine = document.get("engine", "node")
    if engine not in ("node", "spark"):
        raise _invalid(f"`engine` is node or spark, not {engine!r}")
    include_design, local_seq = _parse_options(document.get("options", {}))
    trees, views = _in_trees([_parse_view(view, members[view], language) for view in names])
    return DesignDocument(
        name, language, views, trees, include_design, local_seq, lib, autoupdate, engine,
        signature=_digest([trees, language, include_design, local_seq, lib]),
    )  # fmt: skip


def _is_no_view(member: Any) -> bool:
    """Return whether it lacks a map, as CouchDB lets it: others may read what is there."""
    return isinstance(member, dict) and "map" not in member


def _parse_view(name: str, member: Any, language: str) -> View:
    if not name or "/" in name or len(name.encode()) > _NAME_BYTES_MAX:
        raise _invalid(f"view name {name!r} must have 1 to {_NAME_BYTES_MAX} bytes and no slash")
    if language == "query":
        member = _as_index(name, member)
    if not isinstance(member, dict) or not isinstance(member.get("map"), str):
        raise _invalid(f"view {name!r} needs a `map` that is a string")
    reduce = member.get("reduce") or ""
    if not isinstance(reduce, str):
        raise _invalid(f"`reduce` of view {name!r} must be a string")
    reduce = reduce.strip()
    if named := _BUILT_IN.match(reduce):  # CouchDB minds nothing behind the name
        reduce = named[0]
    if reduce.startswith("_") and not is_builtin(reduce):
        raise _invalid(
            f"view {name!r}: no built-in reduce {reduce!r}; there are: _count, _sum, _stats, "
            "_approx_count_distinct, _top_N and _bottom_N (N from 1 to 100), _first, _last"
        )
    view = View(name, member["map"].strip(), reduce, _collation(name, member.get("options")))
    if language == "python":
        for source in (view.map, "" if view.has_builtin_reduce else view.reduce):
            if source and not source.startswith(REGISTERED):
                raise _invalid(
                    f"view {name!r}: in the language python, functions are given as "
                    f"{REGISTERED}<name>; Python source in a document is never run"
                )
    return view


def _as_index(name: str, member: Any) -> Any:
    """Return a JSON index as a view whose map is a text; what its options say, that says, too."""
    try:
        definition = parse_definition(member.get("map") if isinstance(member, dict) else None)
    except UsageError as error:
        raise _invalid(f"view {name!r}: {error}") from error
    reduce = member.get("reduce") or ""
    if reduce and not is_builtin(str(reduce)):
        raise _invalid(f"view {name!r}: a JSON index has a built-in reduce, or none")
    return {"map": msgspec.json.encode(definition.as_json()).decode(), "reduce": reduce}


def _collation(name: str, options: Any) -> Collation:
    options = {} if options is None else options
    if not isinstance(options, dict) or options.keys() - {"collation"}:
        raise _invalid(f"view {name!r}: `options` is an object that may have `collation`")
    collation = options.get("collation", "unicode")
    if collation not in ("raw", "unicode"):
        raise _invalid(f"view {name!r}: `collation` is raw or absent, not {collation!r}")
    return "raw" if collation == "raw" else "unicode"


def _parse_lib(lib: Any, language: str) -> str:
    if not lib:
        return ""
    if language != "javascript":
        raise _invalid("`views.lib` has JavaScript modules: the language must be javascript")
    if not isinstance(lib, dict) or not all(_are_modules(lib, LIB_DEPTH_MAX)):
        raise _invalid(
            "`views.lib` must be an object of module sources, or of such objects, "
            f"at most {LIB_DEPTH_MAX} deep"
        )
    return msgspec.json.encode(lib, order="sorted").decode()


def _are_modules(lib: dict[str, Any], depth: int) -> Iterator[bool]:
    for member in lib.values():
        if isinstance(member, dict) and depth:
            yield from _are_modules(member, depth - 1)
        else:
            yield isinstance(member, str)


def _parse_options(options: Any) -> tuple[bool, bool]:
    if not isinstance(options, dict):
        raise _invalid("`options` must be an object")
    for option, value in options.items():
        if option == "partitioned" and value:
            raise _invalid(
                "option `partitioned` is not supported: views are of the whole bucket; "
                "emit what divides it as the first element of keys that are arrays"
            )
        if option not in (*_OPTIONS, "partitioned"):
            raise _invalid(f"option {option!r} is not known; there are: {', '.join(_OPTIONS)}")
    include_design, local_seq = (bool(options.get(name, False)) for name in _OPTIONS)
    return include_design, local_seq


def _in_trees(views: list[View]) -> tuple[tuple[Tree, ...], tuple[View, ...]]:
    """Return the trees, and the views with their places in them."""
    reduces: dict[tuple[str, Collation], set[str]] = {}
    for view in views:
        here = reduces.setdefault((view.map, view.collation), {COUNT})
        here.update({view.reduce} - {""})
    shared = sorted(reduces)
    trees = tuple(Tree(*key, tuple(sorted(reduces[key]))) for key in shared)
    placed = []
    for view in views:
        tree = shared.index((view.map, view.collation))
        number = trees[tree].reduces.index(view.reduce) if view.reduce else -1
        placed.append(replace(view, tree=tree, number=number))
    return trees, tuple(placed)


def _digest(decides: list[Any]) -> str:
    return sha256(msgspec.json.encode(decides)).hexdigest()[:32]


def _invalid(message: str) -> UsageError:
    return UsageError(message, code="invalid_design_doc")
