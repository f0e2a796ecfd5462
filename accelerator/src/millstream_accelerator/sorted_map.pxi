# The sorted map of coordination's tables: keys are bytes, values anything but None.

cdef object sorted_map_module, cut_class


def bind_SortedMap(owner, python, cut):
    """Learn the class of cuts; return the twin of `python`, which is `sorted_map.SortedMap`.

    Its bounds are those that the module has when a map is made.
    """
    global sorted_map_module, cut_class
    if not issubclass(cut, tuple) or cut._fields != ("chunks", "items"):
        raise TypeError(f"{cut.__name__} has other fields")
    sorted_map_module, cut_class = owner, cut
    return SortedMap


cdef int _order(bytes one, bytes other) noexcept:
    """Less than, equal to, or greater than 0, as `one` comes before `other` or not."""
    return order_of(<PyObject *>one, <PyObject *>other)


cdef Py_ssize_t _left(list keys, bytes key) noexcept:
    """As `bisect_left`."""
    cdef Py_ssize_t low = 0, high = PyList_GET_SIZE(keys), middle
    while low < high:
        middle = (low + high) >> 1
        if _order(<bytes>PyList_GET_ITEM(keys, middle), key) < 0:
            low = middle + 1
        else:
            high = middle
    return low


cdef Py_ssize_t _last_up_to(list firsts, bytes key) noexcept:
    """Return the index of the last one that is not above `key`: `bisect_right` - 1."""
    cdef Py_ssize_t low = 0, high = PyList_GET_SIZE(firsts), middle
    while low < high:
        middle = (low + high) >> 1
        if _order(key, <bytes>PyList_GET_ITEM(firsts, middle)) < 0:
            high = middle
        else:
            low = middle + 1
    return low - 1


cdef bint _is_there(list keys, Py_ssize_t at, bytes key) noexcept:
    return at < PyList_GET_SIZE(keys) and _order(<bytes>PyList_GET_ITEM(keys, at), key) == 0


cdef class _Chunk:
    cdef uint64_t age
    cdef list keys, values

    @staticmethod
    cdef _Chunk made(uint64_t age, list keys, list values):
        cdef _Chunk chunk = _Chunk.__new__(_Chunk)
        chunk.age, chunk.keys, chunk.values = age, keys, values
        return chunk


cdef class SortedMap:
    """Twin of `millstream.coordination.core.sorted_map.SortedMap`."""

    cdef uint64_t age
    cdef Py_ssize_t size, chunk_keys_max, recent_max
    cdef list firsts, chunks
    cdef dict recent

    def __cinit__(self):
        self.age = self.size = 0
        self.firsts, self.chunks, self.recent = [], [], {}
        self.chunk_keys_max = sorted_map_module.CHUNK_KEYS_MAX
        self.recent_max = sorted_map_module.RECENT_MAX

    def __class_getitem__(cls, _):
        return cls

    def __len__(self):
        return self.size

    cpdef get(self, bytes key):
        """Return what is kept under a key."""
        cdef PyObject *found = PyDict_GetItemWithError(self.recent, key)
        return <object>found if found != NULL else self.searched(key)

    cdef searched(self, bytes key):
        cdef Py_ssize_t index = _last_up_to(self.firsts, key), at
        if index < 0:
            return None
        cdef _Chunk chunk = <_Chunk>PyList_GET_ITEM(self.chunks, index)
        at = _left(chunk.keys, key)
        if not _is_there(chunk.keys, at, key):
            return None
        found = chunk.values[at]
        self.remember(key, found)
        return found

    cdef remember(self, bytes key, value):
        if len(self.recent) >= self.recent_max:
            self.recent.clear()
        self.recent[key] = value

    cpdef put(self, bytes key, value):
        """Keep something under a key, instead of what was there; return that."""
        cdef Py_ssize_t index = _last_up_to(self.firsts, key), at
        self.remember(key, value)
        if index < 0:
            index = 0
            if not PyList_GET_SIZE(self.chunks):
                self.firsts.append(b"")
                self.chunks.append(_Chunk.made(self.age, [], []))
        cdef _Chunk chunk = self.own(index)
        at = _left(chunk.keys, key)
        if _is_there(chunk.keys, at, key):
            before = chunk.values[at]
            chunk.values[at] = value
            return before
        chunk.keys.insert(at, key)
        chunk.values.insert(at, value)
        self.size += 1
        self.firsts[index] = chunk.keys[0]
        if PyList_GET_SIZE(chunk.keys) > self.chunk_keys_max:
            self.split(index, chunk)
        return None

    cpdef delete(self, bytes key):
        """Forget a key; return what was kept under it."""
        cdef Py_ssize_t index = _last_up_to(self.firsts, key), at
        if index < 0:
            return None
        cdef _Chunk chunk = <_Chunk>PyList_GET_ITEM(self.chunks, index)
        at = _left(chunk.keys, key)
        if not _is_there(chunk.keys, at, key):
            return None
        chunk = self.own(index)
        self.recent.pop(key, None)
        del chunk.keys[at]
        gone = chunk.values.pop(at)
        self.size -= 1
        if PyList_GET_SIZE(chunk.keys):
            self.firsts[index] = chunk.keys[0]
        else:
            del self.firsts[index]
            del self.chunks[index]
        return gone

    def after(self, bytes key):
        """Yield keys from this one on, and what they stand for; nothing may change meanwhile."""
        return _After.made(self, key, None)

    def under(self, bytes prefix, bytes start=b""):
        """Yield keys that begin so, from `prefix + start` on; nothing may change meanwhile."""
        return _After.made(self, prefix + start, prefix)

    def number(self, bytes begin, bytes end):
        """Return how many keys there are from one on up to, not including, another."""
        cdef Py_ssize_t found = 0, index = max(_last_up_to(self.firsts, begin), 0)
        cdef list keys
        while index < PyList_GET_SIZE(self.chunks) and _order(self.firsts[index], end) < 0:
            keys = (<_Chunk>PyList_GET_ITEM(self.chunks, index)).keys
            found += _left(keys, end) - _left(keys, begin)
            index += 1
        return found

    def cut(self, bytes begin, bytes end):
        """Forget the keys from one on up to, not including, another; whole chunks go at once."""
        cdef Py_ssize_t index = max(_last_up_to(self.firsts, begin), 0), first, last
        cdef _Chunk chunk
        cdef list chunks = [], items = []
        self.recent.clear()
        while index < PyList_GET_SIZE(self.chunks) and _order(self.firsts[index], end) < 0:
            chunk = <_Chunk>PyList_GET_ITEM(self.chunks, index)
            first, last = _left(chunk.keys, begin), _left(chunk.keys, end)
            if first == 0 and last == PyList_GET_SIZE(chunk.keys):
                chunks.append(self.chunks.pop(index))
                del self.firsts[index]
            else:
                items.extend(zip(chunk.keys[first:last], chunk.values[first:last]))
                index += 1
        for key, _ in items:
            self.delete(key)
        for chunk in chunks:
            self.size -= PyList_GET_SIZE(chunk.keys)
        return cut_class(chunks, items)

    def paste(self, cut):
        """Have again what was cut; nothing has changed since."""
        cdef list chunks = cut.chunks
        cdef Py_ssize_t at = 0
        cdef _Chunk chunk
        if chunks:
            at = _left(self.firsts, (<_Chunk>chunks[0]).keys[0])
        self.chunks[at:at] = chunks
        self.firsts[at:at] = [(<_Chunk>chunk).keys[0] for chunk in chunks]
        for chunk in chunks:
            self.size += PyList_GET_SIZE(chunk.keys)
        for key, value in cut.items:
            self.put(key, value)

    cdef _Chunk own(self, Py_ssize_t index):
        """Return a chunk that no frozen view shares."""
        cdef _Chunk chunk = <_Chunk>PyList_GET_ITEM(self.chunks, index)
        if chunk.age != self.age:
            chunk = _Chunk.made(self.age, chunk.keys[:], chunk.values[:])
            self.chunks[index] = chunk
        return chunk

    cdef split(self, Py_ssize_t index, _Chunk chunk):
        cdef Py_ssize_t half = PyList_GET_SIZE(chunk.keys) // 2
        cdef _Chunk upper = _Chunk.made(self.age, chunk.keys[half:], chunk.values[half:])
        del chunk.keys[half:]
        del chunk.values[half:]
        self.firsts.insert(index + 1, upper.keys[0])
        self.chunks.insert(index + 1, upper)

    def items(self):
        """Return all keys, ascending, and what they stand for, as of now."""
        self.age += 1
        return _frozen(self.chunks[:])


cdef class _After:
    """Keys of a map from one on; those that begin with `prefix`, if there is one."""

    cdef SortedMap owner
    cdef bytes key, prefix
    cdef _Chunk chunk
    cdef Py_ssize_t index, at, end

    @staticmethod
    cdef _After made(SortedMap owner, bytes key, bytes prefix):
        cdef _After found = _After.__new__(_After)
        found.owner, found.key, found.prefix = owner, key, prefix
        found.index = -1
        return found

    def __iter__(self):
        return self

    def __next__(self):
        cdef bytes key
        if self.owner is None:
            raise StopIteration
        if self.index < 0:
            self.index = max(_last_up_to(self.owner.firsts, self.key), 0)
            self.enter()
        while self.chunk is not None and self.at >= self.end:
            self.index += 1
            self.enter()
        if self.chunk is None:
            self.owner = None
            raise StopIteration
        key = <bytes>self.chunk.keys[self.at]
        if self.prefix is not None and (
            PyBytes_GET_SIZE(key) < PyBytes_GET_SIZE(self.prefix)
            or memcmp(
                PyBytes_AS_STRING(key), PyBytes_AS_STRING(self.prefix),
                PyBytes_GET_SIZE(self.prefix),
            )
        ):
            self.owner = self.chunk = None
            raise StopIteration
        value = self.chunk.values[self.at]
        self.at += 1
        return key, value

    cdef enter(self):
        """Go into the chunk of the index."""
        if self.index < PyList_GET_SIZE(self.owner.chunks):
            self.chunk = <_Chunk>PyList_GET_ITEM(self.owner.chunks, self.index)
            self.at, self.end = _left(self.chunk.keys, self.key), PyList_GET_SIZE(self.chunk.keys)
        else:
            self.chunk = None


def _frozen(list chunks):
    cdef _Chunk chunk
    chunks.reverse()
    while chunks:
        chunk = chunks.pop()  # each goes when it is done: all at once would take long
        yield from zip(chunk.keys, chunk.values)
