import socket
import ssl
from contextlib import suppress

import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.node.listeners import (
    bind,
    bind_all,
    bound_address,
    peer_context,
    peer_server_context,
    peer_tls_context,
    tls_context,
    trust_of,
)
from millstream.node.settings import Address
from support.node.authorities import Authority


def test_a_free_port_is_told(make_settings):
    settings = make_settings()
    bound = bind_all(settings)
    assert sorted(bound) == ["http", "kv"]
    assert bound_address(settings.kv, bound["kv"]).port > 0
    for listening in bound.values():
        listening.close()


def test_a_busy_port_frees_the_others(make_settings):
    with socket.socket() as taken, socket.socket() as probe:
        for one in (taken, probe):
            one.bind(("127.0.0.1", 0))
        taken.listen()
        free = Address("127.0.0.1", probe.getsockname()[1])
        probe.close()
        settings = make_settings(kv=free, http=Address("127.0.0.1", taken.getsockname()[1]))
        with pytest.raises(UnavailableError, match=r"--http .* in use"):
            bind_all(settings)
        bind("kv", free).close()


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_an_address_that_is_not_ours_is_refused(host):
    with pytest.raises(UnavailableError, match="cannot listen there"):
        bind("kv", Address(host, 0))


def test_without_a_certificate_there_is_no_tls(make_settings):
    assert tls_context(make_settings()) is None
    assert peer_tls_context(make_settings()) is None


def test_an_unreadable_certificate_is_named(make_settings, tmp_path):
    (tmp_path / "c.pem").write_text("nonsense")
    for name in ("/nothing", str(tmp_path / "c.pem")):
        with pytest.raises(UsageError, match=name):
            tls_context(make_settings(tls_cert=name))
        with pytest.raises(UsageError, match=name):
            peer_tls_context(make_settings(tls_cert=name))
    assert issubclass(ssl.SSLError, OSError)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in (*ends, *ends, *ends):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    ends[1].write(b"done")  # with TLS 1.3 a client learns only here that it is not let in
    assert ends[0].read() == b"done"


@pytest.mark.parametrize("has_chain", [False, True])
def test_without_an_authority_nodes_believe_their_own_certificate_only(tmp_path, has_chain):
    authority = Authority(tmp_path, "ours")
    own, other = authority.issue("node"), authority.issue("other")
    if has_chain:
        own.write_bytes(own.read_bytes() + authority.file.read_bytes())
    shake_hands(peer_server_context(str(own), None, None), peer_context(str(own), None, None))
    for one, two in ((own, other), (other, own)):
        server = peer_server_context(str(one), None, None)
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(server, peer_context(str(two), None, None))
        everyone = ssl.create_default_context(cafile=authority.file)
        everyone.load_cert_chain(two)
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(server, everyone)


def test_replications_trust_the_system_and_the_authority_of_the_node(make_settings, tmp_path):
    assert trust_of(make_settings()) is None
    authority = Authority(tmp_path, "ours")
    own = trust_of(make_settings(tls_ca=str(authority.file)))
    assert own is not None
    system = ssl.create_default_context()
    assert len(own.get_ca_certs()) == len(system.get_ca_certs()) + 1
    with pytest.raises(UsageError, match="--tls-ca /dev/null"):
        trust_of(make_settings(tls_ca="/dev/null"))
