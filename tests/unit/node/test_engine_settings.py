import dataclasses
import socket
from pathlib import Path

import pytest

from millstream.access.users import UserStore
from millstream.errors import UsageError
from millstream.model.limits import MEMORY_QUOTA_BYTES_MIN
from millstream.node import engine_settings
from millstream.node.engine_settings import (
    check_engines,
    directory_of,
    engine_directories,
    settings_of,
)
from millstream.node.settings import Address, Credential, load_settings

PEER = Address("127.0.0.1", 9005)


def load(tmp_path, **given):
    named = {name.replace("_", "-"): value for name, value in given.items()}
    return load_settings({"data": str(tmp_path / "data"), **named}, {})


def made(settings, number=2, peer=PEER):
    return settings_of(settings, number, secret="generated", peer=peer)


def test_each_engine_has_a_directory_and_ports_of_its_own(tmp_path):
    settings = load(tmp_path, engines="3", port_base=9000)
    first, third = made(settings, 1, None), made(settings, 3)
    assert (first.data, third.data) == (settings.data, f"{settings.data}/engine-3")
    assert (first.kv, third.kv) == (settings.kv, Address("127.0.0.1", 9200))
    assert third.peer == Address("127.0.0.1", 9205)
    assert (first.join, third.join) == (None, PEER)
    assert (first.engine, third.engine, third.engines) == (1, 3, 3)
    assert made(load(tmp_path, engines=2, kv="127.0.0.1:0")).kv == Address("127.0.0.1", 0)


def test_only_engine_1_has_the_files_of_namespaces_and_none_has_plain_memcached(tmp_path):
    settings = load(tmp_path, engines=2)
    first, second = made(settings, 1), made(settings, 2)
    assert first.ninep is not None
    assert (second.ninep, first.memcached, second.memcached) == (None, None, None)


def test_all_engines_are_in_one_zone_which_is_the_machine_unless_another_is_named(tmp_path):
    settings = load(tmp_path, engines=2)
    assert made(settings, 1).zone == made(settings, 2).zone == socket.gethostname()
    assert made(load(tmp_path, engines=2, advertise="db1.example")).zone == "db1.example"
    assert made(load(tmp_path, engines=2, zone="rack2", advertise="db1")).zone == "rack2"


def test_the_memory_is_shared_by_the_engines(tmp_path, monkeypatch):
    assert made(load(tmp_path, engines=2, memory_quota="1GiB")).memory_quota_bytes == 512 << 20
    monkeypatch.setattr(engine_settings, "machine_bytes", lambda: 32 << 30)
    assert made(load(tmp_path, engines=4)).memory_quota_bytes == 2 << 30
    least = made(load(tmp_path, engines=32, memory_quota="16MiB"))
    assert least.memory_quota_bytes == MEMORY_QUOTA_BYTES_MIN


def test_engines_with_users_have_a_secret_and_others_none(tmp_path):
    settings = load(tmp_path, engines=2)
    assert made(settings).cluster_secret == ""
    ada = dataclasses.replace(settings, users=(Credential("ada", "secret"),))
    assert made(ada).cluster_secret == "generated"
    assert made(dataclasses.replace(ada, cluster_secret="given")).cluster_secret == "given"
    Path(settings.data).mkdir()
    UserStore(Path(settings.data) / "users.json").ensure_admin("ada", "secret")
    assert made(settings).cluster_secret == "generated"


def test_fewer_engines_than_directories_are_refused(tmp_path):
    settings = load(tmp_path)
    data = Path(settings.data)
    check_engines(settings)
    for name in ("engine-2", "engine-3", "engine-x", "buckets"):
        (data / name).mkdir(parents=True)
    (data / "engine-9").touch()
    assert engine_directories(data) == {n: directory_of(data, n) for n in (2, 3)}
    for count in (1, 2):
        with pytest.raises(UsageError, match="cluster remove") as raised:
            check_engines(load(tmp_path, engines=count))
        assert raised.value.code == "fewer_engines"
    check_engines(load(tmp_path, engines=3))
    check_engines(load(tmp_path, engines=4))


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"no_http": True}, "--no-http"),
        ({"no_peer": True}, "--no-peer"),
        ({"memcached": "127.0.0.1:1"}, "--memcached"),
        ({"roles": "data,index"}, "--roles"),
        ({"port_base": 65530}, "too large"),
        ({"join": "h:1", "bucket": "orders"}, "--bucket"),
        ({"join": "h:1", "user": "ada:secret"}, "MILLSTREAM_CLUSTER_SECRET"),
    ],
)
def test_options_that_engines_cannot_have_are_refused(tmp_path, given, word):
    check_engines(load(tmp_path, **given))
    with pytest.raises(UsageError, match=word):
        check_engines(load(tmp_path, engines=2, **given))
