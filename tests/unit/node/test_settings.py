import dataclasses

import msgspec
import pytest

from millstream.errors import UsageError
from millstream.model.limits import MEMORY_QUOTA_BYTES_MIN
from millstream.node.settings import (
    LISTENERS,
    Address,
    BucketSpec,
    Credential,
    Settings,
    load_settings,
    memory_quota_of,
    refuse_exposure,
    secretless_environment,
)


def load(environment=None, **given):
    named = {name.replace("_", "-"): value for name, value in given.items()}
    return load_settings(named, environment or {})


def test_defaults_are_the_contract():
    settings = load()
    assert settings == Settings()
    assert str(settings.kv) == "127.0.0.1:11210"
    assert str(settings.memcached) == "127.0.0.1:11211"
    assert str(settings.http) == "127.0.0.1:5984"
    assert str(settings.coord) == "127.0.0.1:7379"
    assert str(settings.ninep) == "127.0.0.1:5640"
    assert str(settings.peer) == "127.0.0.1:7380"


def test_a_port_base_moves_all_listeners_but_those_given_by_name():
    settings = load(port_base=9000, http="127.0.0.1:80", no_ninep=True)
    assert settings.kv == Address("127.0.0.1", 9000)
    assert settings.memcached == Address("127.0.0.1", 9001)
    assert settings.http == Address("127.0.0.1", 80)
    assert settings.coord == Address("127.0.0.1", 9003)
    assert settings.ninep is None
    assert settings.peer == Address("127.0.0.1", 9005)
    assert load({"MILLSTREAM_SERVE_PORT_BASE": "7000"}).http == Address("127.0.0.1", 7002)


@pytest.mark.parametrize("base", [0, 65531, "x", -1, True, "70000"])
def test_a_port_base_leaves_room_for_all_listeners(base):
    with pytest.raises(UsageError, match="port-base"):
        load(port_base=base)
    assert load(port_base=65530).peer == Address("127.0.0.1", 65535)


def test_everything_at_once():
    settings = load(
        data="d",
        kv="[::1]:0",
        no_memcached=True,
        http="localhost:80",
        bucket=["a:16", "b"],
        user=["ada:se:cret"],
        roles="data,index",
        flush_interval=5,
        reduce_limit="log",
        join="other:7380",
        tls_cert="c",
        tls_key="k",
        tls_ca="ca",
        advertise="here",
        log_level="debug",
        log_json=True,
        insecure_plaintext=True,
        **{"no-peer": True},
    )
    assert settings.kv == Address("::1", 0)
    assert str(settings.kv) == "[::1]:0"
    assert settings.memcached is None
    assert settings.peer is None
    assert settings.buckets == (BucketSpec("a", 16), BucketSpec("b"))
    assert settings.users == (Credential("ada", "se:cret"),)
    assert settings.flush_interval_ms == 5
    assert settings.reduce_limit == "log"
    assert settings.join == Address("other", 7380)
    assert settings.advertised_host == "here"


@pytest.mark.parametrize(
    "source", ["https://id.test/keys", "http://127.0.0.1:1/k", "http://[::1]/k", "/etc/keys"]
)
def test_where_keys_of_tokens_may_come_from(source):
    settings = load(oidc_issuer="i", oidc_audience="a", oidc_jwks=source)
    assert settings.oidc_jwks == source
    assert settings.oidc_groups_claim == "groups"


def test_the_line_wins_over_the_environment_and_that_over_the_file(tmp_path):
    config = tmp_path / "node.toml"
    config.write_text(
        'kv = "127.0.0.1:1"\nhttp = "127.0.0.1:1"\nno-memcached = true\npeer = false\n'
        'bucket = ["a", "b:8"]\nflush-interval = 7\nlog-json = true\nreduce-limit = false\n'
    )
    environment = {
        "MILLSTREAM_SERVE_HTTP": "127.0.0.1:2",
        "MILLSTREAM_SERVE_MEMCACHED": "127.0.0.1:2",
        "MILLSTREAM_SERVE_CONFIG": str(config),
        "MILLSTREAM_SERVE_LOG_JSON": "0",
        "MILLSTREAM_SERVE_NO_COORD": "1",
        "UNRELATED": "x",
    }
    settings = load(environment, memcached="127.0.0.1:3")
    assert settings.kv.port == 1
    assert settings.http.port == 2
    assert settings.memcached.port == 3
    assert settings.peer is None
    assert settings.coord is None
    assert settings.buckets == (BucketSpec("a"), BucketSpec("b", 8))
    assert settings.flush_interval_ms == 7
    assert settings.reduce_limit == "false"
    assert settings.log_json is False


def test_a_password_may_come_from_the_environment():
    settings = load({"MILLSTREAM_PASSWORD_ada": "secret"}, user=["ada"])
    assert settings.users == (Credential("ada", "secret"),)


def test_a_node_that_only_indexes_has_no_listeners_for_documents():
    settings = load({}, roles="index", join="h:5984", http="h:1")
    assert (settings.kv, settings.memcached, settings.http) == (None, None, Address("h", 1))
    assert load({}, roles=["index"], join="h:5984", kv=False).kv is None


@pytest.mark.parametrize(
    ("value", "quota_bytes"),
    [("2GiB", 2 << 30), ("64 MiB", 64 << 20), ("123456789", 123456789), (1 << 30, 1 << 30)],
)
def test_a_memory_quota_has_units(value, quota_bytes):
    assert load_settings({"memory-quota": value}, {}).memory_quota_bytes == quota_bytes


def test_without_a_memory_quota_it_is_a_share_of_the_machine():
    assert load_settings({}, {}).memory_quota_bytes is None
    assert memory_quota_of(8 << 30) == 2 << 30
    assert memory_quota_of(1 << 20) == MEMORY_QUOTA_BYTES_MIN


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kv": "11210"}, "HOST:PORT"),
        ({"kv": ":11210"}, "HOST:PORT"),
        ({"http": "h:99999"}, "HOST:PORT"),
        ({"join": "x"}, "HOST:PORT"),
        ({"bucket": ["a:x"]}, "NAME:PARTITIONS"),
        ({"bucket": ["a:3"]}, "power of two"),
        ({"bucket": ["_a"]}, "bucket name"),
        ({"user": ["ada"]}, "MILLSTREAM_PASSWORD_ada"),
        ({"user": [":x"]}, "no password"),
        ({"roles": ["index"]}, "--roles index needs --join"),
        ({"roles": "index", "join": "h:1", "no-http": True}, "needs the HTTP listener"),
        ({"roles": "index", "join": "h:1", "kv": "h:1"}, "--kv: a node without the role data"),
        ({"roles": "index", "join": "h:1", "bucket": ["b"]}, "--bucket: a node without"),
        ({"roles": "coord"}, "nodes that only coordinate"),
        ({"roles": "index,coord", "join": "h:1"}, "nodes that only coordinate"),
        ({"roles": "data,cook"}, "roles are"),
        ({"flush-interval": "soon"}, "milliseconds"),
        ({"flush-interval": -1}, "milliseconds"),
        ({"reduce-limit": "maybe"}, "true, false, log"),
        ({"memory-quota": "much"}, "bytes are wanted"),
        ({"memory-quota": "2 TB"}, "bytes are wanted"),
        ({"memory-quota": True}, "bytes are wanted"),
        ({"memory-quota": "1MiB"}, "at least"),
        ({"log-level": "loud"}, "levels are"),
        ({"log-json": "perhaps"}, "true or false"),
        ({"data": ""}, "some text"),
        ({"tls-key": "k"}, "--tls-cert"),
        ({"oidc-issuer": "i", "oidc-audience": "a"}, "all are said"),
        ({"oidc-jwks": "http://id.test/keys"}, "https"),
        ({"oidc-jwks": "ftp://127.0.0.1/keys"}, "https"),
        ({"oidc-jwks": "https://"}, "https"),
        ({"oidc-jwks": "https://[x"}, "https"),
        ({"kv": "0.0.0.0:0"}, "--advertise"),
        ({"coord": "0.0.0.0:0"}, "--advertise"),
        ({"peer": "[::]:0"}, "--advertise"),
        ({"config": "/does/not/exist"}, "config"),
        ({"bukket": "x"}, "did you mean 'bucket'"),
    ],
)
def test_invalid_options_say_what_is_wanted(given, words):
    with pytest.raises(UsageError, match=words):
        load_settings(given, {})


@pytest.mark.parametrize("text", ["kv = ", "kvv = 1", "\xff"])
def test_a_bad_file_is_refused(tmp_path, text):
    config = tmp_path / "c.toml"
    config.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError):
        load(config=str(config))


def exposed(**fields):
    closed = dict.fromkeys(LISTENERS)
    return Settings(**{**closed, **fields})


def test_loopback_needs_nothing():
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        refuse_exposure(exposed(kv=Address(host, 1)), has_users=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "db.example"])
@pytest.mark.parametrize("listener", ["kv", "http", "coord", "ninep", "peer"])
def test_beyond_loopback_users_and_tls_are_wanted(host, listener):
    settings = exposed(**{listener: Address(host, 1)})
    with pytest.raises(UsageError, match="needs users"):
        refuse_exposure(settings, has_users=False)
    with pytest.raises(UsageError, match="needs TLS"):
        refuse_exposure(settings, has_users=True)
    refuse_exposure(dataclasses.replace(settings, tls_cert="c"), has_users=True)
    refuse_exposure(dataclasses.replace(settings, insecure_plaintext=True), has_users=True)


def test_memcached_never_leaves_loopback():
    settings = exposed(memcached=Address("0.0.0.0", 1), tls_cert="c", insecure_plaintext=True)
    with pytest.raises(UsageError, match="loopback only"):
        refuse_exposure(settings, has_users=True)


def test_settings_survive_the_way_to_the_engine():
    settings = load(bucket=["a:8"], user=["ada:x"], no_kv=True)
    again = msgspec.json.decode(msgspec.json.encode(settings), type=Settings)
    assert again == settings


def test_the_secret_of_the_cluster_is_said_by_its_variable_or_the_file(tmp_path):
    secret = "sixteen letters!"
    assert load({"MILLSTREAM_CLUSTER_SECRET": secret}).cluster_secret == secret
    assert load({"MILLSTREAM_CLUSTER_SECRET": ""}).cluster_secret == ""
    config = tmp_path / "c.toml"
    config.write_text(f'cluster-secret = "{secret} of the file"\n')
    assert load(config=str(config)).cluster_secret == secret + " of the file"
    both = load({"MILLSTREAM_CLUSTER_SECRET": secret}, config=str(config))
    assert both.cluster_secret == secret
    assert secret not in repr(both)
    for elsewhere in ({}, {"MILLSTREAM_SERVE_CLUSTER_SECRET": secret}):
        given = {} if elsewhere else {"cluster_secret": secret}
        with pytest.raises(UsageError, match="nowhere else") as caught:
            load(elsewhere, **given)
        assert secret not in str(caught.value)


@pytest.mark.parametrize("secret", ["x" * 15, "x" * 257, "new\nline" * 4, "\u00e4" * 20])
def test_a_bad_secret_is_refused_and_not_told(secret):
    with pytest.raises(UsageError, match="printable ASCII") as caught:
        load({"MILLSTREAM_CLUSTER_SECRET": secret})
    assert secret not in str(caught.value)


def test_children_inherit_no_passwords():
    environment = {"MILLSTREAM_PASSWORD_ada": "x", "MILLSTREAM_CLUSTER_SECRET": "x", "OTHER": "y"}
    assert secretless_environment(environment) == {"OTHER": "y"}


def test_others_are_told_where_the_node_listens_for_them():
    assert Settings().coordination_host == "127.0.0.1"
    peer, coord = Address("10.0.0.1", 1), Address("10.0.0.2", 1)
    assert Settings(peer=peer, coord=coord).coordination_host == "10.0.0.1"
    assert Settings(peer=None, coord=coord).coordination_host == "10.0.0.2"
    assert Settings(peer=peer, advertise="a.example").coordination_host == "a.example"


def test_sites_are_named_whole():
    settings = load(
        cors_origin=["https://app.example/", "http://localhost:8080", "http://[::1]:3"]
    )
    assert settings.cors_origins == (
        "https://app.example", "http://localhost:8080", "http://[::1]:3",
    )  # fmt: skip
    for bad in ("app.example", "ftp://a", "https://a/b"):
        with pytest.raises(UsageError, match="cors-origin"):
            load(cors_origin=[bad])


def test_all_sites_only_where_there_are_users():
    settings = load(cors_origin="*")
    refuse_exposure(settings, has_users=True)
    with pytest.raises(UsageError, match="every page"):
        refuse_exposure(settings, has_users=False)


@pytest.mark.parametrize("value", ["0", "-1", "two", 33, True, ""])
def test_the_number_of_engines_is_checked(value):
    assert load(engines="2").engines == 2
    with pytest.raises(UsageError, match="--engines"):
        load(engines=value)


def test_a_node_without_data_has_one_engine():
    load(roles="index", join="h:1", engines=1)
    with pytest.raises(UsageError, match="one engine"):
        load(roles="index", join="h:1", engines=2)


def test_a_zone_is_a_short_text():
    assert load(zone="rack 2").zone == "rack 2"
    for zone in ("", "a\nb", "x" * 101):
        with pytest.raises(UsageError, match="--zone"):
            load(zone=zone)
