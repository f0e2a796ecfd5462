"""The asyncio client of namespaces: elements, their attributes and lists, transactions, settings.

    async with AsyncClient(["127.0.0.1:7379"]) as client:
        await client.create_namespace("/app")
        await client.create("/app/port", b"8080")
        data, version = await client.get("/app/port")
        await client.put("/app/port", b"8081", version=version)

Invariants:
1. Changes are done once, or not at all, as `Client` has it; `OutcomeUnknownError` is the only
   error after which a change may have been made.
2. One client has one session in each group that it uses; what is ephemeral, held or taken belongs
   to it.

Elsewhere: connections, numbers and repeats (`group_client`, `core.client.caller`), what can be
held (`held`), changes (`subscription`), errors (`core.client.errors`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self

from millstream.coordination.aio.client.group_client import Client
from millstream.coordination.aio.client.group_clients import GroupClients, words_of
from millstream.coordination.aio.client.held import Barrier, Election, Lock, Semaphore
from millstream.coordination.aio.client.structured_elements import Counter, Items, Members, Queue
from millstream.coordination.aio.client.subscription import Subscription
from millstream.coordination.core.client.replies import (
    Attributes,
    Created,
    Found,
    Page,
    Versioned,
    attributes_of,
    data_of,
    version_of,
)
from millstream.coordination.core.client.resumed_subscription import Following
from millstream.vsr.core.versions import Version

__all__ = ["AsyncClient", "Transaction"]


class AsyncClient(GroupClients):
    """One client with one session, for namespaces.

    Args:
        addresses: `HOST:PORT` of one node or several; others are learned from them.
        user, password: of the node's users; `token` and a token of an identity provider.
        deadline_s: for each call; then `UnavailableError` (not done) or `OutcomeUnknownError`.
        session_s: how long the client may be silent before its session ends, 0.5 to 10.
        tls: how to check the nodes, if they speak TLS.
        on_session_lost: called in the loop when the group has ended the session. The next call
            begins a new one; ephemeral elements, locks and items taken are gone.

    All methods may raise `MillstreamError`; `core.client.errors` says which, and what to do.

    Raises:
        UsageError: `bad_address`.
    """

    async def _change(self, name: str, *words: str | bytes, at: str) -> Any:
        return await self.execute_at(at, *words_of((name, *words)), is_change=True)

    async def _read(self, *words: str | bytes, at: str, stale: bool = False) -> Any:
        if stale:
            return await self.read_stale(at, *words_of(words))
        return await self.execute_at(at, *words_of(words), is_change=False)

    # ---- namespaces

    async def create_namespace(self, root: str, data: bytes = b"") -> bool:
        """Make a namespace, `/name`; return False if there was one."""
        return bool(await self._change("CREATENAMESPACE", root, data, at="") == b"OK")

    async def delete_namespace(self, root: str, *, force: bool = False) -> None:
        """Delete a namespace; one with elements only by `force`."""
        await self._change("DELETENAMESPACE", root, *(("FORCE",) if force else ()), at="")

    # ---- elements

    async def create(
        self, path: str, *data: bytes, type: str = "BINARY", options: Sequence[str] = (),
        ephemeral: bool = False, sequential: bool = False, parents: bool = False,
    ) -> Created:  # fmt: skip
        """Make an element.

        Args:
            path: `/namespace/name...`; a sequential one gets ten digits behind it.
            data: one value of a BINARY element, the first items of a LIST, SET or QUEUE.
            type: BINARY, LIST, SET, QUEUE, COUNTER.
            options: of a counter: `UNSIGNED`, `BIT`, `128`, `WRAP`.
            ephemeral: it ends with this client's session.
            sequential: named by the parent's next number.
            parents: make what is missing above.

        Returns:
            where it is, and whether it is new: that there is one already is no error.

        Raises:
            MissingError: there is no parent.

        For example:

            place = await client.create("/app/in-", b"host-a", ephemeral=True, sequential=True)
            assert place.path == "/app/in-0000000000"
        """
        flags = [
            *(["EPHEMERAL"] if ephemeral else []), *(["SEQUENTIAL"] if sequential else []),
            *(["PARENTS"] if parents else []),
        ]  # fmt: skip
        reply = await self._change("CREATE", type, *flags, *options, path, *data, at=path)
        if reply in (b"OK", b"EXISTS"):
            return Created(path, reply == b"OK")
        return Created(reply.decode(), True)

    async def put(
        self, path: str, data: bytes, *, version: Version | None = None,
        token: Version | None = None,
    ) -> None:  # fmt: skip
        """Set the data of an element.

        Args:
            path: of a BINARY element.
            data: up to 1 MiB.
            version: only if this is its version.
            token: only while the lock that gave this token is held (`Lock.token`), of this element
                or of one above.

        Raises:
            VersionError, NotHeldError, MissingError, LockedError.
        """
        conditions = [] if version is None else [b"CAS", version.text]
        conditions += [] if token is None else [b"IFLOCK", token.text]
        await self._change("PUT", path, data, *conditions, at=path)

    async def put_attributes(self, path: str, **attributes: bytes) -> None:
        """Set attributes of users, `name=value` for `u.name`; an empty value takes one away.

        For example:

            await client.put_attributes("/app/job", color=b"red")
            assert (await client.attributes("/app/job")).user == {"u.color": b"red"}
        """
        words = [word for name, value in attributes.items() for word in (f"u.{name}", value)]
        await self._change("PUT", path, "ATTR", *words, at=path)

    async def get(self, path: str, *, stale: bool = False) -> Versioned:
        """Return the data of an element and its version.

        Args:
            path: of a BINARY element.
            stale: the node answers by itself, without a question to the others: perhaps with what
                is old by now, never older than what this client has seen before.

        Raises:
            MissingError, LockedError; UsageError: `wrongtype`, it has no data but items.
        """
        version, data = await self._read("GET", path, "CAS", at=path, stale=stale)
        return Versioned(data, version_of(version))

    async def attributes(self, path: str, *, stale: bool = False) -> Attributes:
        """Return what is known of an element; also while others have it locked."""
        return attributes_of(await self._read("GET", path, "ATTR", "NODATA", at=path, stale=stale))

    async def delete(
        self, path: str, *, recursive: bool = False, version: Version | None = None
    ) -> None:
        """Delete an element; one with children only if `recursive`, up to 10,000 of them.

        Raises:
            MissingError, VersionError; ConditionError: `notempty`.
        """
        words = ["RECURSIVE"] if recursive else []
        await self._change(
            "DELETE", path, *words, *([] if version is None else [b"CAS", version.text]), at=path
        )

    async def move(self, source: str, target: str, *, force: bool = False) -> None:
        """Move an element, and all below it, within a namespace; `force`: delete what is there.

        Raises:
            MissingError; ConditionError: `name_conflict`, there is something.
        """
        await self._change("MOVE", source, target, *(["FORCE_MOVE"] if force else []), at=source)

    async def list(
        self, path: str, *, page: int = 1000, stale: bool = False
    ) -> AsyncIterator[str]:
        """Yield the names of an element's children in the order of their bytes; `/`: namespaces.

        Each page of `page` names is of one state of the tree; what changes between pages shows.
        For example:

            async for name in client.list("/app"):
                print(name)
        """
        token: bytes | None = None
        while True:
            found = await self.list_page(path, token=token, count=page, stale=stale)
            for name in found.items:
                yield name.decode()
            if (token := found.token) is None:
                return

    async def list_page(
        self, path: str, *, token: bytes | None = None, count: int = 1000, stale: bool = False
    ) -> Page:
        """Return some names, from the first one or from what an earlier page has named."""
        start: tuple[bytes, ...] = () if token is None else (b"TOKEN", token)
        words: tuple[str | bytes, ...] = ("LIST", path, *start, "COUNT", str(count))
        following, names = await self._read(*words, at=path, stale=stale)
        return Page(names, following)

    async def lookup(self, path: str, *, stale: bool = False) -> Found:
        """Return whether there is such an element, and how far down the path something is."""
        reply = await self._read("LOOKUP", path, at=path, stale=stale)
        return Found(False, reply[1].decode()) if isinstance(reply, list) else Found(True, path)

    async def tree(self, path: str, *, stale: bool = False) -> dict[str, Versioned]:
        """Return an element and all below it, by path, as of one moment; up to 32 MiB of data.

        The data of a counter is its value in digits. The data of lists, sets, queues, and of what
        may not be read, is empty.
        """
        found = await self._read("TREE", path, at=path, stale=stale)
        return {row[0].decode(): Versioned(data_of(row[2]), version_of(row[1])) for row in found}

    # ---- what an element may be

    def counter(self, path: str) -> Counter:
        """Return the counter at a path. Nothing is sent."""
        return Counter(self, path)

    def items(self, path: str) -> Items:
        """Return the LIST element at a path. Nothing is sent."""
        return Items(self, path)

    def members(self, path: str) -> Members:
        """Return the SET element at a path. Nothing is sent."""
        return Members(self, path)

    def queue(self, path: str) -> Queue:
        """Return the queue at a path. Nothing is sent."""
        return Queue(self, path)

    # ---- what is held

    def lock(self, *paths: str, shared: bool = False) -> Lock:
        """Return a lock of one element, or of several, all or none; nothing is asked for yet.

        Args:
            paths: up to 128, of one namespace group.
            shared: a READ lock, which others may have, too.
        """
        return Lock(self, paths, shared=shared)

    def semaphore(self, path: str) -> Semaphore:
        """Return a unit of the semaphore at a path; nothing is asked for yet."""
        return Semaphore(self, path)

    def barrier(self, path: str) -> Barrier:
        """Return the barrier at a path."""
        return Barrier(self, path)

    def election(self, path: str, data: bytes = b"") -> Election:
        """Return a candidate for leading by an element, which says `data` if it wins."""
        return Election(self, path, data)

    # ---- changes

    def subscribe(
        self, path: str, scope: str = "ELEMENT", *, with_data: bool = False,
        after: int | Version | None = None, durable: str | None = None,
    ) -> Subscription:  # fmt: skip
        """Return the changes of an element, to be iterated over; on a connection of its own.

        Args:
            path: of the element; if it is moved, it is followed.
            scope: `ELEMENT`; `CHILDREN`: also which children it has; `TREE`: also all below.
            with_data: changes have the data of their moment.
            after: go on after this LSN (`Subscription.lsn`), or after the change with this
                version, which also tells whether it is of this history; None: from now on.
            durable: a name under which the group remembers, for this client's session, what was
                worked off. A change was, once the next one is asked for or `async with` is left
                without an error; who subscribes under the name again goes on behind that. `after`
                comes first.

        Raises:
            UsageError: `bad_scope`.

        For example:

            async with client.subscribe("/app", "TREE", durable="index") as changes:
                async for change in changes:
                    print(change.op, change.path)
        """
        groups: list[Client] = []

        async def look() -> Version:
            groups[:] = [await self.at(path)]
            return (await self.attributes(path)).version

        def on_seen(lsn: int) -> None:
            self.note_seen(groups[0], lsn)

        following = Following(path, scope, with_data=with_data, after=after)
        place = None
        if durable is not None:
            words = words_of((path, *(() if scope == "ELEMENT" else (scope,))))
            place = self.places.named(durable.encode(), lambda: self.at(path), words)
        return Subscription(
            self.addresses, self.greeting, self.tls, following, look, on_seen, place
        )

    # ---- transactions

    def transaction(self) -> Transaction:
        """Return a transaction to be filled, and executed as one."""
        return Transaction(self)

    # ---- settings and access lists

    async def get_config(self, path: str, keys: str = "*") -> dict[str, bytes]:
        """Return what counts at an element, by key; in `keys`, `*` and `?` stand for letters."""
        found = await self._read("CONFIG", "GET", path, keys, at=path)
        return {key.decode(): value for key, value in found.items()}

    async def set_config(self, path: str, key: str, value: str) -> None:
        """Set a key for an element and what is below it; `value` with its unit, as `3 s`.

        For example:

            await client.set_config("/app/job", "LIMIT.ITEMS", "100")
            assert await client.get_config("/app/job", "LIMIT.I*") == {"LIMIT.ITEMS": b"100"}
        """
        await self._change("CONFIG", "SET", path, key, *value.split(), at=path)

    async def unset_config(self, path: str, key: str) -> None:
        """Remove a setting, so that the setting above applies again."""
        await self._change("CONFIG", "UNSET", path, key, at=path)

    async def get_acl(self, path: str) -> dict[str, Any]:
        """Return `owner group mode entries default_mode default_entries` as the wire has them."""
        found = await self._read("ACL", "GET", path, at=path)
        return {key.decode(): value for key, value in found.items()}

    async def set_acl(self, path: str, *words: str) -> None:
        """Change an access list: `"MODE", "750"`, `"ENTRY", "user:ada:rw-"`.

        For example:

            await client.set_acl("/app/job", "MODE", "750")
            assert (await client.get_acl("/app/job"))["mode"] == b"0750"
        """
        await self._change("ACL", "SET", path, *words, at=path)


class Transaction:
    """Changes and conditions that are made as one, or not at all; up to 128.

        transaction = client.transaction()
        transaction.check("/app/job", "EXISTS")
        transaction.create("/app/done", b"1")
        replies = await transaction.commit()

    As a context manager it commits at the end, unless an error leaves it:

        async with client.transaction() as transaction:
            transaction.delete("/app/done").put("/app/job", b"2")
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._commands: list[tuple[bytes, ...]] = []
        self.replies: list[Any] = []
        """One for each command, once it was committed."""

    def add(self, *words: str | bytes) -> Self:
        """Add any command of namespaces, as the wire has it."""
        self._commands.append(words_of(words))
        return self

    def check(self, path: str, *condition: str | bytes) -> Self:
        """Do all only if `EXISTS`, `ABSENT`, `CAS` and a version, or `CHILDREN` and one."""
        return self.add("CHECK", path, *condition)

    def create(self, path: str, *data: bytes, type: str = "BINARY") -> Self:
        """Make an element."""
        return self.add("CREATE", type, path, *data)

    def put(self, path: str, data: bytes) -> Self:
        """Set the data of an element."""
        return self.add("PUT", path, data)

    def delete(self, path: str) -> Self:
        """Delete an element."""
        return self.add("DELETE", path)

    async def commit(self) -> list[Any]:
        """Commit all commands; return the replies as on the wire.

        Raises:
            AbortedError: nothing was done; `index` names the command, `reason` its error's code.
            OutcomeUnknownError: all of it may have been done.
        """
        before = [(b"MULTI",), *self._commands]
        words = [word for command in self._commands for word in command]
        path = next((word for word in words if word.startswith(b"/")), b"")
        raw = await self._client.at(path.decode(errors="replace"))
        self.replies = await raw.execute(b"EXEC", is_change=True, before=before)
        return self.replies

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is None:
            await self.commit()
