"""Errors of file operations: errors of the API as errno (9P2000.L) or text (9P2000).

Invariants:
1. Every error has a number that the caller's system knows. An unexpected one is EIO.

Elsewhere: the codes (reference of the coordination commands).
"""

from __future__ import annotations

import errno
from typing import Final

__all__ = ["ERRNOS", "NinepError"]

ERRNOS: Final = {
    "ERROR_DOES_NOT_EXISTS": errno.ENOENT,
    "NOPERM": errno.EACCES, "NOAUTH": errno.EACCES,
    "LOCKED": errno.EBUSY, "DESTROYING": errno.EBUSY,
    "EXISTS": errno.EEXIST, "NAME_CONFLICT": errno.EEXIST,
    "ISROOT": errno.EINVAL, "LOOP": errno.EINVAL, "BADARG": errno.EINVAL,
    "WRONGTYPE": errno.EINVAL, "BADPATH": errno.EINVAL, "UNKNOWN_COMMAND": errno.EINVAL,
    "EPHEMERAL_PARENT": errno.EINVAL, "SYNCTYPE": errno.EINVAL, "NOTHELD": errno.EINVAL,
    "CROSS_NAMESPACE": errno.EXDEV,
    "TOOBIG": errno.EFBIG,
    "QUOTA": errno.EDQUOT,
    "NOTEMPTY": errno.ENOTEMPTY,
    "CAS_MISMATCH": errno.ESTALE, "FENCED": errno.ESTALE,
    "DEADLOCK": errno.EDEADLK,
    "BUSY": errno.EAGAIN, "WOULDBLOCK": errno.EAGAIN,
    "TIMEOUT": errno.ETIMEDOUT, "NOQUORUM": errno.ETIMEDOUT, "NOTPRIMARY": errno.ETIMEDOUT,
    "UNKNOWN": errno.ETIMEDOUT, "BEHIND": errno.ETIMEDOUT, "CSNGONE": errno.ETIMEDOUT,
    "PERM": errno.EPERM,
    "UNSUPPORTED": errno.EOPNOTSUPP,
    "NOT_A_DIRECTORY": errno.ENOTDIR,
    "IS_A_DIRECTORY": errno.EISDIR,
    "BADFID": errno.EBADF,
    "TOO_MANY_FIDS": errno.EMFILE,
    "INTERRUPTED": errno.EINTR,
    "NOMEM": errno.ENOMEM,
}  # fmt: skip
"""Error texts by the codes of the API, and codes that only files have."""


class NinepError(Exception):
    """An operation that was refused; `code` is the text that 9P2000 shows."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code

    @property
    def errno(self) -> int:
        """The number that 9P2000.L shows."""
        return ERRNOS.get(self.code, errno.EIO)
