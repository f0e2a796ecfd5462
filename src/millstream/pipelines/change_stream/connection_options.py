"""Options of the formats beside the change stream: how to connect, and those of a format's own.

Invariants:
1. An option that is not known is an error that lists what is valid; nothing is ignored.

Elsewhere: the options of the change stream, which say how to connect here too (`options`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.pipelines.change_stream.options import (
    CONNECTION_OPTIONS,
    OPTIONS,
    SourceOptions,
    parse_options,
    unknown_option,
)

__all__ = ["Connected", "split_options"]

Connected = tuple[SourceOptions, dict[str, str]]
"""How to connect, and the options of a format's own as they are named in its table."""


def split_options(
    given: Mapping[str, str],
    own: Sequence[tuple[str, str]],
    format_name: str,
    environ: Mapping[str, str] | None = None,
) -> Connected:
    """Divide the options of a format.

    Args:
        given: as Spark passes them; names in any case.
        own: name and meaning of what the format takes besides.
        format_name: for messages.
        environ: as `parse_options` takes it.

    Raises:
        UsageError: `unknown_option`, `bad_option`.
    """
    meanings = {
        option.name: option.meaning for option in OPTIONS if option.name in CONNECTION_OPTIONS
    }
    meanings |= dict(own)
    names = {name.lower(): name for name in meanings}
    unknown = [name for name in given if name.lower() not in names]
    if unknown:
        raise unknown_option(unknown, format_name, meanings)
    values = {names[name.lower()]: value for name, value in given.items()}
    source = parse_options({n: v for n, v in values.items() if n in CONNECTION_OPTIONS}, environ)
    return source, {n: v.strip() for n, v in values.items() if n not in CONNECTION_OPTIONS}
