"""The identity of a node in coordination: `coord/node.toml`, and `node.toml.copy`.

Invariants:
1. The id is random, generated once, and never given to another directory. `incarnation` grows,
   durably, before a process sends anything to another node (`core.pool.boot_stamps`).
2. Both files are written in place, one after the other, each synced. A start counts only with
   both. So a start needs no free space, one file is whole after a crash, and later damage to one
   of them restores no older incarnation.
3. A file that the system refuses to read does not count as lost. Only a missing file, or one that
   the disk cannot return, does.
4. A directory with groups or a pool and without a whole file is not served: a node that does not
   know its identity and its promises must not continue. A directory without groups and pool has
   promised nothing.

Elsewhere: the promises of a member of a group (its superblock), the groups (`aio.coordinator`).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import tomllib
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from millstream.coordination.core.pool.boot_stamps import CHANCES, next_incarnation, next_mark
from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.runtime.files import sync_directory
from millstream.vsr.core.entries import ID_BYTES

__all__ = [
    "NODE_FILE",
    "NODE_FILES",
    "Identity",
    "begin_incarnation",
    "directory_unusable",
    "keep_refusal",
    "mark_incarnation",
    "read_identity",
]

NODE_FILE: Final = "node.toml"
NODE_FILES: Final = (NODE_FILE, NODE_FILE + ".copy")
_FORMAT: Final = 1
_REASON_CHARS_MAX: Final = 250
_CHANGING: Final = Lock()
"""Held by the thread that changes what a process has begun with."""
_UNPRINTABLE: Final = re.compile(r'[^ -~]|["\\]')
"""Characters that would have to be escaped in a string of the file."""
_FILE_BYTES: Final = 512
"""Size of each file, filled with line ends, so that writing it anew does not change the length."""


class Identity(NamedTuple):
    """One process of one node; `refusal`: why the others take it for an older copy, if they do."""

    node_id: bytes
    incarnation: int
    refusal: str = ""


def begin_incarnation(directory: Path) -> Identity:
    """Make the directory and its node if there is none, and count this process. Blocks.

    Raises:
        CorruptionError: `bad_node_file`.
        UsageError: `newer_format`.
        UnavailableError: `directory_unusable`.
    """
    try:
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True)
            sync_directory(directory.parent)
        last, _ = read_identity(directory)
        identity = last or Identity(secrets.token_bytes(ID_BYTES), 0)
        incarnation = next_incarnation(identity.incarnation, secrets.randbelow(CHANCES))
        identity = identity._replace(incarnation=incarnation)
        _keep(directory, identity)
    except OSError as error:
        raise directory_unusable(directory, error) from error
    return identity


def mark_incarnation(directory: Path) -> int | None:
    """Count that this process has worked for some time; None: its files are not whole. Blocks.

    Raises:
        CorruptionError: `bad_node_file`.
        OSError: it cannot be written.
    """
    with _CHANGING:
        return _mark(directory)


def _mark(directory: Path) -> int | None:
    known, _ = read_identity(directory)
    if known is None:
        return None
    marked = known._replace(incarnation=next_mark(known.incarnation, secrets.randbelow(CHANCES)))
    _keep(directory, marked)
    return marked.incarnation


def keep_refusal(directory: Path, reason: str) -> None:
    """Record for all later starts that this directory is an older copy of a node's. Blocks.

    Raises:
        CorruptionError: `bad_node_file`.
        OSError: it cannot be written.
    """
    with _CHANGING:
        known, _ = read_identity(directory)
        if known is None:
            return
        text = _UNPRINTABLE.sub("?", reason)[:_REASON_CHARS_MAX]
        _keep(directory, known._replace(refusal=text))


def _keep(directory: Path, identity: Identity) -> None:
    for name in NODE_FILES:
        _write(directory / name, _encoded(identity))
    sync_directory(directory)


def directory_unusable(directory: Path, error: OSError) -> UnavailableError:
    """Return what is to be done about a directory that the system does not let us use."""
    return UnavailableError(
        f"{directory} cannot be used: {error}; make room there, or let the node read and write "
        "it, and start it again",
        code="directory_unusable",
        retry="never",
    )


def read_identity(directory: Path) -> tuple[Identity | None, int]:
    """Return the last process of a node, None if there was none, and how many files are not so.

    Raises:
        CorruptionError: `bad_node_file`: neither is whole.
        UsageError: `newer_format`.
        OSError: the directory or a file cannot be read.
    """
    found = [_read(directory / name) for name in NODE_FILES]
    whole = [one for one in found if one is not None]
    if len({one.node_id for one in whole}) > 1:
        raise _damaged(directory, "are of two nodes")
    newest = max(whole, key=lambda one: one.incarnation, default=None)
    if newest is None and any(one.name not in NODE_FILES for one in directory.iterdir()):
        raise _damaged(directory, "are gone or damaged")
    return newest, sum(one != newest for one in found)


def _encoded(identity: Identity) -> bytes:
    content = (
        f'format = {_FORMAT}\nid = "{identity.node_id.hex()}"\n'
        f"incarnation = {identity.incarnation}\n"
    )
    if identity.refusal:
        content += f'refusal = "{identity.refusal}"\n'
    return f'{content}hash = "{_hash_of(content)}"\n'.encode().ljust(_FILE_BYTES, b"\n")


def _hash_of(content: str) -> str:
    return blake2b(content.encode(), digest_size=16).hexdigest()


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> Identity | None:
    """Return what a file says; None if it is not there or not what was written.

    Raises OSError if that is not known.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EIO):
            return None
        raise
    try:
        text = raw.decode()
        said, _, rest = text.partition("hash = ")
        if rest.strip() != f'"{_hash_of(said)}"':
            return None
        content = tomllib.loads(said)
        if content["format"] > _FORMAT:
            raise UsageError(
                f"{path} has format {content['format']}; use the newer Millstream that wrote it",
                code="newer_format",
            )
        return Identity(
            bytes.fromhex(content["id"]), int(content["incarnation"]),
            str(content.get("refusal", "")),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError):
        return None


def _damaged(directory: Path, what: str) -> CorruptionError:
    return CorruptionError(
        f"{directory / NODE_FILE} and its copy {what}, but something of a pool is beside them: "
        "the disk has lost who this node is and what it has promised. What its groups hold is on "
        "their other members. Stop the node, move that directory aside, start it again with "
        "--join and the address of a node of its pool, and have it take the lost one's place "
        "with ADMIN GROUP REPLACE <group> <lost node> <new node>; a group that had no other "
        "member comes back with ADMIN RESTORE",
        code="bad_node_file",
    )
