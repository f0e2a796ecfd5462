from __future__ import annotations

import math
import pickle
from pathlib import Path

import pytest

from millstream.errors import UsageError
from millstream.pipelines.change_stream.offsets import Offset, OffsetEntry
from millstream.pipelines.change_stream.options import (
    OPTIONS,
    SourceOptions,
    parse_options,
)

AUTHORITY = Path(__file__).parents[3] / "e2e" / "tls" / "authority.pem"


def parsed(environ: dict[str, str] | None = None, **given: str) -> SourceOptions:
    return parse_options({"bucket": "b", **given}, environ or {})


def test_a_bucket_is_enough() -> None:
    options = parsed()
    assert (options.hosts, options.bucket) == ("127.0.0.1:11210", "b")
    assert (options.starting_offsets, options.ending_offsets) == ("earliest", "latest")
    assert options.user is options.password is options.partition_ids is None
    assert (options.rows_max, options.bytes_max) == (None, None)
    assert options.task_count >= 1
    assert options.poll_ms == 200
    assert options.has_values
    assert not options.has_meta
    assert parsed(meta="true").has_meta


def test_an_authority_is_read_on_the_driver_and_travels_with_the_options(tmp_path: Path) -> None:
    assert parsed().tls() is None
    options = pickle.loads(pickle.dumps(parsed(tlsCa=str(AUTHORITY))))
    context = options.tls()
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    for content in ("", "no certificate", "-----BEGIN CERTIFICATE-----\n!"):
        (tmp_path / "bad.pem").write_text(content)
        with pytest.raises(UsageError, match="option tlsCa"):
            parsed(tlsCa=str(tmp_path / "bad.pem"))
    with pytest.raises(UsageError, match="option tlsCa"):
        parsed(tlsCa="/nowhere.pem")


def test_how_long_nodes_are_waited_for() -> None:
    assert parsed().reconnect_s == 600
    for text, seconds in {
        "0": 0, "forever": math.inf, "FOREVER": math.inf, "90s": 90, "200ms": 0.2, "10 m": 600,
        "2h": 7200, "1d": 86_400, "0s": 0,
    }.items():  # fmt: skip
        assert parsed(reconnectTimeout=text).reconnect_s == seconds
    for text in ("30", "-1s", "1.5m", "never", "10 minutes", ""):
        with pytest.raises(UsageError, match=r"option reconnectTimeout.*such as 90s"):
            parsed(reconnectTimeout=text)


def test_deletions_are_rows_of_a_batch_only_where_they_are_news() -> None:
    assert not parsed().has_tombstones
    assert not parsed(startingOffsets="Earliest").has_tombstones
    assert parsed(startingOffsets="latest").has_tombstones
    assert parsed(tombstones="true").has_tombstones
    assert not parsed(startingOffsets="latest", tombstones="FALSE").has_tombstones


def test_names_are_taken_in_any_case() -> None:
    options = parsed(MAXROWSPERBATCH="10", nOvAlUe="True", StartingOffsets="LATEST")
    assert options.rows_max == 10
    assert not options.has_values
    assert options.starting_offsets == "latest"


def test_a_sink_that_repairs_says_so() -> None:
    assert (parsed().repairs, parsed().is_durable_only) == (False, False)
    options = parsed(rollback="ROWS", durableOnly="true")
    assert (options.repairs, options.is_durable_only) == (True, True)
    for wrong in ({"rollback": "ignore"}, {"durableOnly": "yes"}):
        with pytest.raises(UsageError, match="write"):
            parsed(**wrong)


@pytest.mark.parametrize(
    "given", [{"option.bucket": "b", "owner": "root", "provider": "millstream"}, {}]
)
def test_what_spark_passes_of_a_table_is_answered_with_a_view(given: dict[str, str]) -> None:
    """Spark passes the first when a table is made, the second when it is read."""
    with pytest.raises(UsageError, match=r"write CREATE TEMPORARY VIEW \.\.\. USING"):
        parse_options(given, {})


def test_pushdown_is_refused() -> None:
    parsed(pushdown="false")
    with pytest.raises(UsageError, match="use selector, partitions, keyPrefix") as caught:
        parsed(pushdown="true")
    assert caught.value.code == "bad_option"


def test_partitions_are_numbers_and_ranges() -> None:
    assert parsed(partitions="7, 0-2,2").partition_ids == (0, 1, 2, 7)


def test_an_offset_may_be_given_as_json() -> None:
    text = '{"v":1,"bucket":"b","bucket_uuid":"1","p":{"0":["1",5,5,5,7,null,1,null]}}'
    offset = Offset("b", "1", {0: OffsetEntry(1, 5, 5, 5, 7)})
    options = parsed(startingOffsets=text, endingOffsets=text)
    assert options.starting_offsets == options.ending_offsets == offset


def test_every_unknown_option_is_named_and_every_valid_one_listed() -> None:
    with pytest.raises(UsageError, match="unknown option a, z of") as caught:
        parsed(z="1", a="2")
    assert caught.value.code == "unknown_option"
    for option in OPTIONS:
        assert f"  {option.name}: " in str(caught.value)


def test_the_bucket_must_be_named() -> None:
    with pytest.raises(UsageError, match="option bucket: name the bucket"):
        parse_options({}, {})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("hosts", "", "is no address"),
        ("hosts", "a:1,b:x", "'b:x' is no address"),
        ("startingOffsets", "now", "write earliest, latest, or an offset"),
        ("startingOffsets", "[]", "expected a JSON object"),
        ("endingOffsets", "earliest", "cannot end at earliest"),
        ("partitions", "x", "write numbers and ranges"),
        ("partitions", "3-1", "numbered from 0 to 1023"),
        ("partitions", "0-1024", "numbered from 0 to 1023"),
        ("numPartitions", "0", "a whole number from 1 to"),
        ("maxRowsPerBatch", "-1", "a whole number from 1 to"),
        ("maxBytesPerBatch", "1k", "a whole number from 1 to"),
        ("pollMs", "60001", "a whole number from 0 to 60000"),
        ("noValue", "yes", "write true or false"),
        ("keyPrefix", "\\xzz", "not a prefix of a key"),
        ("selector", "n > 1", "no Mango selector"),
        ("selector", "[]", "no Mango selector"),
        ("selector", '{"n": "%s"}' % ("x" * 4096), "4105 bytes, at most 4096 are allowed"),
    ],
)
def test_a_wrong_value_is_named_with_the_reason(name: str, value: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"option {name}") as caught:
        parsed(**{name: value})
    assert said in str(caught.value)
    assert caught.value.code == "bad_option"


def test_the_password_comes_from_a_file_an_option_or_the_environment(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from file\nmore\n")
    environ = {"MILLSTREAM_PASSWORD": "from environment", "MILLSTREAM_USER": "eve"}
    assert parsed(user="ann", passwordFile=str(secret)).password == "from file"
    assert parsed(user="ann", password="plain", passwordFile=str(secret)).password == "plain"
    assert parsed(environ, user="ann").password == "from environment"
    assert parsed(environ).user == "eve"
    assert "from file" not in repr(parsed(user="ann", passwordFile=str(secret)))


def test_a_user_needs_a_password(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no password: give passwordFile"):
        parsed(user="ann")
    with pytest.raises(UsageError, match="cannot be read on the driver"):
        parsed(user="ann", passwordFile=str(tmp_path / "nosuch"))


def test_a_key_prefix_may_end_within_a_byte() -> None:
    assert parsed(keyPrefix="\\xa").key_prefix == "\\xa"
    assert parsed(keyPrefix="user:").key_prefix == "user:"


def test_an_unknown_option_suggests_a_known_one() -> None:
    with pytest.raises(UsageError, match=r"unknown option maxRowPerBatch \(did you mean maxRows"):
        parse_options({"bucket": "b", "maxRowPerBatch": "1"}, {})
    with pytest.raises(UsageError) as caught:
        parse_options({"bucket": "b", "passwd": "very secret"}, {})
    assert "did you mean password?" in str(caught.value)
    assert "very secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("0", 0),
        ("1500", 1_500_000_000),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01 01:00:01+01:00", 1_000_000_000),
        ("1970-01-02", 86_400 * 10**9),
    ],
)
def test_a_stream_begins_at_a_time(text: str, time_ns: int) -> None:
    assert parsed(startingTimestamp=text).starting_ns == time_ns
    assert parsed(startingTimestamp=text).has_tombstones
    assert parsed().starting_ns is None


def test_a_time_that_cannot_be_used_is_refused() -> None:
    for text in ("now", "-1", "9" * 30, "1969-12-31", "0001-01-01T00:00+14:00"):
        with pytest.raises(UsageError, match=r"startingTimestamp.*write 2026-01-31T12:00:00Z"):
            parsed(startingTimestamp=text)
    with pytest.raises(UsageError, match="not with startingOffsets"):
        parsed(startingTimestamp="5", startingOffsets="latest")
