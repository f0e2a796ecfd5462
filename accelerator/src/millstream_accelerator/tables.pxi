# A table of coordination's state: a sorted map whose changes are noted.

cdef bytes NUMBER_0 = bytes(8)
UNHURRIED = ("clear", "freeze", "restore", "revert")


def bind_Table(owner, python):
    """Return the twin of `python`, which is `namespace.tables.Table`; what is rare stays Python.

    It needs maps that are twins, too.
    """
    methods = {name: vars(python)[name] for name in UNHURRIED}
    return type("Table", (_Table,), {"__slots__": (), "__doc__": python.__doc__, **methods})


cdef bytes _end_of(bytes prefix):
    """Return the least key behind all that begin so."""
    cdef bytes kept = prefix.rstrip(b"\xff")
    cdef Py_ssize_t size = PyBytes_GET_SIZE(kept)
    if not size:
        raise IndexError("no key is behind these")
    cdef bytes end = PyBytes_FromStringAndSize(PyBytes_AS_STRING(kept), size)
    (<uint8_t *>PyBytes_AS_STRING(end))[size - 1] += 1
    return end


cdef class _Table:
    """What is done to tables all the time."""

    cdef public SortedMap _map
    cdef public list _undo
    cdef public object _encode, _decode, since, changes

    def __init__(self, list undo, encode, decode, since):
        self._undo, self._encode, self._decode, self.since = undo, encode, decode, since
        self.changes = 0
        self._begin_anew()

    def _begin_anew(self):
        self._map = SortedMap()

    def __class_getitem__(cls, _):
        return cls

    def __len__(self):
        return self._map.size

    def get(self, bytes key):
        """Return the record of a key."""
        return self._map.get(key)

    def descend(self, names):
        """Return where names lead from number 0, each kept under a number and itself as one."""
        cdef bytes name, key
        cdef bytes above = NUMBER_0
        cdef Py_ssize_t size
        cdef char *p
        for name in names:
            size = PyBytes_GET_SIZE(above)
            key = PyBytes_FromStringAndSize(NULL, size + PyBytes_GET_SIZE(name))
            p = PyBytes_AS_STRING(key)
            memcpy(p, PyBytes_AS_STRING(above), size)
            memcpy(p + size, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            found = self._map.get(key)
            if found is None:
                return None
            above = found
        return int.from_bytes(above, "big")

    def put(self, bytes key, value):
        """Have this record under a key."""
        self.changes += 1
        self._undo.append((self, key, self._map.put(key, value)))

    def delete(self, bytes key):
        """Have nothing under a key; return what was there."""
        gone = self._map.delete(key)
        if gone is not None:
            self.changes += 1
            self._undo.append((self, key, gone))
        return gone

    def after(self, bytes key):
        """Yield keys from this one on, with their records; the table must not change meanwhile."""
        return self._map.after(key)

    def under(self, bytes prefix, bytes start=b""):
        """Yield keys that begin so, from `prefix + start` on; the same holds."""
        return self._map.under(prefix, start)

    def number_under(self, bytes prefix):
        """Return how many keys begin so, at little cost however many they are."""
        return self._map.number(prefix, _end_of(prefix))

    def _pieces(self, count, items):
        cdef bytes key, text, piece
        cdef uint8_t *p
        yield count.to_bytes(8, "big")
        encode = self._encode
        for key, value in items:
            text = encode(value)
            piece = PyBytes_FromStringAndSize(
                NULL, 8 + PyBytes_GET_SIZE(key) + PyBytes_GET_SIZE(text)
            )
            p = <uint8_t *>PyBytes_AS_STRING(piece)
            put32(p, <uint32_t>PyBytes_GET_SIZE(key))
            put32(p + 4, <uint32_t>PyBytes_GET_SIZE(text))
            memcpy(p + 8, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
            memcpy(
                p + 8 + PyBytes_GET_SIZE(key), PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
            )
            yield piece
