"""What the system group has for everybody: the newest counts, and goes around."""

from __future__ import annotations

from millstream.coordination.core.pool.effects import NodeStart, Posted, Say
from millstream.coordination.core.pool.messages import Address, Board, Ping, PoolEnvelope
from millstream.coordination.core.pool.pool import Pool

ME, OTHER = b"m" * 16, b"o" * 16
NAMES = ((b"app", 1), (b"web", 2))


def started() -> tuple[Pool, bytes]:
    """Return the pool of a node with a group of its own, and the group's id."""
    pool = Pool(lambda: 0.5)
    here = Address("127.0.0.1", 7380)
    pool.step(0.0, NodeStart(None, ME, 1, (), here, here))
    [group_id] = pool.tables.foundings
    pool.step(0.0, Posted(None, {}))
    return pool, group_id


def test_the_board_of_the_highest_lsn_counts() -> None:
    pool, group_id = started()
    board = Board(group_id, 5, NAMES, ((b"GLOBAL.AUTH.ISSUER", b"me"),))
    assert pool.board.post(Posted(board, {group_id: 3}))
    assert (pool.board.lsn, pool.board.group_with(b"web"), pool.state.elements) == (
        5,
        2,
        {group_id: 3},
    )
    assert pool.board.setting(b"GLOBAL.AUTH.ISSUER") == b"me"
    assert not pool.board.post(Posted(board._replace(lsn=6), {}))
    assert not pool.board.post(Posted(board._replace(lsn=4, names=()), {}))
    pool.board.on_board(PoolEnvelope(OTHER, 1, board), board._replace(lsn=7, names=NAMES[:1]))
    assert (pool.board.group_with(b"web"), pool.board.namespaces) == (None, {b"app": 1})
    pool.board.forget()
    assert (pool.board.lsn, pool.board.setting(b"GLOBAL.AUTH.ISSUER")) == (0, None)


def test_a_board_of_a_group_that_is_not_known_is_nothing() -> None:
    pool, group_id = started()
    assert not pool.board.post(Posted(Board(b"x" * 16, 9, NAMES, ()), {}))
    assert pool.board.post(Posted(Board(group_id, 1, NAMES, ()), {}))


def test_who_has_an_older_one_is_told() -> None:
    pool, group_id = started()
    board = Board(group_id, 5, NAMES, ())
    pool.board.post(Posted(board, {}))
    info = pool.me._replace(node_id=OTHER, peer=Address("127.0.0.1", 7381))
    pool.incarnations.note_node(info)
    for lsn, said in ((4, [board]), (5, []), (6, [])):
        pool.state.effects.clear()
        ping = Ping(pool.tables.pool_ids, info, pool.tables.digest, (), True, lsn)
        pool.gossip.on_ping(PoolEnvelope(OTHER, 1, ping), ping)
        told = [
            effect.envelope.payload for effect in pool.state.effects if isinstance(effect, Say)
        ]
        assert told == said
