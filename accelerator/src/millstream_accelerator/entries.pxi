# Entries of coordination groups: read from messages, checked, and written to the log.

cdef extern from "blake2b.h":
    void blake2b(uint8_t *digest, size_t digest_size, const uint8_t *data, size_t size) noexcept nogil

cdef enum:
    ENTRY_HEAD = 112  # of a header, without its hash
    ENTRY_HEADER = 128
    ENTRY_HASH = 16
    ENTRY_SLOT = 160
    ENTRY_FIELDS = 14
    KINDS_MAX = 256
    BODY_HASH_AT = 96

    WORD_HEADS = 6  # of a body: how long the principal is, how many groups and arguments
    ITEMS_MAX = 65535

cdef object python_decode_entries, python_encode_log, python_check_chain, python_chain
cdef object python_decode_body
cdef type entry_class, header_class, link_class, body_class, kind_class
cdef object decoded_data = None, decoded_body = None
UNSAID = object()
cdef list entry_kinds
cdef uint64_t entry_body_max


def bind_decode_entries(entries, python, entry, header, kinds, body_bytes_max):
    """Learn the classes; return the twin of `python`, which is `entries.decode_entries`."""
    global python_decode_entries, entry_class, header_class, entry_kinds, entry_body_max
    global kind_class
    _expect(header, ENTRY_FIELDS)
    _expect(entry, 2)
    python_decode_entries, entry_class, header_class = python, entry, header
    entry_kinds = [kinds.get(number) for number in range(KINDS_MAX)]
    kind_class = type(next(iter(kinds.values())))
    entry_body_max = body_bytes_max
    return decode_entries


cdef _expect(kind, Py_ssize_t fields):
    if not issubclass(kind, tuple) or len(kind._fields) != fields:
        raise TypeError(f"{kind.__name__} is no tuple of {fields}")


def decode_entries(data, at, count):
    """Twin of `millstream.vsr.core.entries.decode_entries`."""
    if type(data) is bytes and type(at) is int and type(count) is int and 0 <= at <= len(data):
        found = _decode_entries(<bytes>data, at, count)
        if found is not None:
            return found
    return python_decode_entries(data, at, count)


cdef _decode_entries(bytes data, Py_ssize_t at, count):
    """None: something is not what it should be."""
    cdef const uint8_t *begin = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *p
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), number, wanted
    cdef uint64_t body_length
    cdef uint8_t digest[ENTRY_HASH]
    cdef object group_id = None, instance = None, kind, header
    cdef list found = []
    if not 0 <= count <= size:
        return None
    wanted = count
    for number in range(wanted):
        if size - at < ENTRY_HEADER:
            return None
        p = begin + at
        blake2b(digest, ENTRY_HASH, p, ENTRY_HEAD)
        kind = entry_kinds[p[1]]
        body_length = get32(p + 4)
        if (
            memcmp(digest, p + ENTRY_HEAD, ENTRY_HASH) != 0 or p[0] != 1 or kind is None
            or get16(p + 2) > 1 or body_length > entry_body_max
            or <uint64_t>(size - at - ENTRY_HEADER) < body_length
        ):
            return None
        blake2b(digest, ENTRY_HASH, p + ENTRY_HEADER, body_length)
        if memcmp(digest, p + BODY_HASH_AT, ENTRY_HASH) != 0:
            return None
        group_id = _same_or_new(group_id, p + 8)
        instance = _same_or_new(instance, p + 64)
        header = new_tuple(header_class, ENTRY_FIELDS)
        put_item(header, 0, group_id)
        put_item(header, 1, get32(p + 24))
        put_item(header, 2, get32(p + 28))
        put_item(header, 3, get64(p + 32))
        put_item(header, 4, PyBytes_FromStringAndSize(<const char *>p + 40, ENTRY_HASH))
        put_item(header, 5, kind)
        put_item(header, 6, get64(p + 56))
        put_item(header, 7, instance)
        put_item(header, 8, get64(p + 80))
        put_item(header, 9, get64(p + 88))
        put_item(header, 10, True if get16(p + 2) else False)
        put_item(header, 11, body_length)
        put_item(
            header, 12, PyBytes_FromStringAndSize(<const char *>p + BODY_HASH_AT, ENTRY_HASH)
        )
        put_item(header, 13, PyBytes_FromStringAndSize(<const char *>p, ENTRY_HEADER))
        found.append(_entry_of(
            header, PyBytes_FromStringAndSize(<const char *>p + ENTRY_HEADER, body_length)
        ))
        at += ENTRY_HEADER + body_length
    return tuple(found), at


cdef inline object part(owner, Py_ssize_t index):
    return <object>PyTuple_GET_ITEM(owner, index)


cdef object _entry_of(header, body):
    entry = new_tuple(entry_class, 2)
    put_item(entry, 0, header)
    put_item(entry, 1, body)
    return entry


cdef object _same_or_new(known, const uint8_t *at):
    if known is not None and memcmp(PyBytes_AS_STRING(known), at, ENTRY_HASH) == 0:
        return known
    return PyBytes_FromStringAndSize(<const char *>at, ENTRY_HASH)


cdef bint _is_entry(entry):
    """Whether it has what `decode_entries` and `chain` give it."""
    if type(entry) is not entry_class:
        return False
    header, body = part(entry, 0), part(entry, 1)
    if type(header) is not header_class or type(body) is not bytes:
        return False
    encoded = part(header, 13)
    return type(encoded) is bytes and PyBytes_GET_SIZE(encoded) == ENTRY_HEADER


def bind_check_chain(entries, python, link):
    """Return the twin of `python`, which is `entries.check_chain`."""
    global python_check_chain, link_class
    _expect(link, 3)
    python_check_chain, link_class = python, link
    return check_chain


def check_chain(link, group_id, entries):
    """Twin of `millstream.vsr.core.entries.check_chain`."""
    if (type(entries) is list or type(entries) is tuple) and type(group_id) is bytes:
        found = _check_chain(link, <bytes>group_id, entries)
        if found is not None:
            return found
    return python_check_chain(link, group_id, entries)


cdef _check_chain(link, bytes group_id, entries):
    """None: one does not follow, or there is none."""
    cdef uint64_t lsn, ts_ms, next_lsn, next_ms
    cdef bytes digest, encoded
    cdef object header = None
    if type(link) is not link_class or type(link[1]) is not bytes:
        return None
    if not as_number(PyTuple_GET_ITEM(link, 0), &lsn) or not as_number(PyTuple_GET_ITEM(link, 2), &ts_ms):
        return None
    digest = link[1]
    for entry in entries:
        if not _is_entry(entry):
            return None
        header = part(entry, 0)
        if not as_number(PyTuple_GET_ITEM(header, 3), &next_lsn):
            return None
        if not as_number(PyTuple_GET_ITEM(header, 6), &next_ms):
            return None
        if (
            next_lsn != lsn + 1 or next_ms < ts_ms
            or part(header, 0) != group_id or part(header, 4) != digest
        ):
            return None
        lsn, ts_ms = next_lsn, next_ms
        encoded = <bytes>part(header, 13)
        digest = PyBytes_FromStringAndSize(
            PyBytes_AS_STRING(encoded) + ENTRY_HEAD, ENTRY_HASH
        )
    if header is None:
        return None
    found = new_tuple(link_class, 3)
    put_item(found, 0, lsn)
    put_item(found, 1, digest)
    put_item(found, 2, ts_ms)
    return found


def bind_chain(entries, python, body):
    """Return the twin of `python`, which is `entries.chain`."""
    global python_chain, body_class
    _expect(body, 3)
    if link_class is None or header_class is None:
        raise TypeError("its other classes are not known")
    python_chain, body_class = python, body
    return chain


def chain(
    link, *, group_id, epoch, view, kind, ts_ms, body=UNSAID, instance=UNSAID, session=0, csn=0,
    claim=False,
):
    """Twin of `millstream.vsr.core.entries.chain`."""
    if body is not UNSAID and instance is not UNSAID:
        found = _chain(
            link, group_id, epoch, view, kind, ts_ms, body, instance, session, csn, claim
        )
        if found is not None:
            return found
    given = {"body": body, "instance": instance}
    return python_chain(
        link, group_id=group_id, epoch=epoch, view=view, kind=kind, ts_ms=ts_ms, session=session,
        csn=csn, claim=claim, **{name: value for name, value in given.items() if value is not UNSAID},
    )


cdef _chain(link, group_id, epoch, view, kind, ts_ms, body, instance, session, csn, claim):
    """None: something is not plain."""
    cdef uint64_t lsn, last_ms, now_ms, epoch_number, view_number, session_number, csn_number
    cdef uint8_t kind_number
    cdef uint8_t *p
    cdef bytes data, digest, encoded, prev_hash
    if type(link) is not link_class or type(link[1]) is not bytes:
        return None
    if (
        not as_number(PyTuple_GET_ITEM(link, 0), &lsn)
        or not as_number(PyTuple_GET_ITEM(link, 2), &last_ms)
        or not as_number(<PyObject *>ts_ms, &now_ms)
        or not as_number(<PyObject *>epoch, &epoch_number) or epoch_number > 0xFFFFFFFF
        or not as_number(<PyObject *>view, &view_number) or view_number > 0xFFFFFFFF
        or not as_number(<PyObject *>session, &session_number)
        or not as_number(<PyObject *>csn, &csn_number)
        or type(claim) is not bool
        or type(group_id) is not bytes or PyBytes_GET_SIZE(group_id) != ENTRY_HASH
        or type(instance) is not bytes or PyBytes_GET_SIZE(instance) != ENTRY_HASH
        or type(kind) is not kind_class
    ):
        return None
    kind_number = <uint8_t>kind
    prev_hash = link[1]
    if PyBytes_GET_SIZE(prev_hash) != ENTRY_HASH:
        return None
    data = _encode_body(body)
    if data is None:
        return None
    if now_ms < last_ms:
        ts_ms, now_ms = link[2], last_ms
    digest = PyBytes_FromStringAndSize(NULL, ENTRY_HASH)
    blake2b(
        <uint8_t *>PyBytes_AS_STRING(digest), ENTRY_HASH,
        <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data),
    )
    encoded = PyBytes_FromStringAndSize(NULL, ENTRY_HEADER)
    p = <uint8_t *>PyBytes_AS_STRING(encoded)
    p[0] = 1
    p[1] = kind_number
    put16(p + 2, 1 if claim is True else 0)
    put32(p + 4, <uint32_t>PyBytes_GET_SIZE(data))
    memcpy(p + 8, PyBytes_AS_STRING(group_id), ENTRY_HASH)
    put32(p + 24, <uint32_t>epoch_number)
    put32(p + 28, <uint32_t>view_number)
    put64(p + 32, lsn + 1)
    memcpy(p + 40, PyBytes_AS_STRING(prev_hash), ENTRY_HASH)
    put64(p + 56, now_ms)
    memcpy(p + 64, PyBytes_AS_STRING(instance), ENTRY_HASH)
    put64(p + 80, session_number)
    put64(p + 88, csn_number)
    memcpy(p + BODY_HASH_AT, PyBytes_AS_STRING(digest), ENTRY_HASH)
    blake2b(p + ENTRY_HEAD, ENTRY_HASH, p, ENTRY_HEAD)
    header = new_tuple(header_class, ENTRY_FIELDS)
    put_item(header, 0, group_id)
    put_item(header, 1, epoch)
    put_item(header, 2, view)
    put_item(header, 3, lsn + 1)
    put_item(header, 4, prev_hash)
    put_item(header, 5, kind)
    put_item(header, 6, ts_ms)
    put_item(header, 7, instance)
    put_item(header, 8, session)
    put_item(header, 9, csn)
    put_item(header, 10, claim)
    put_item(header, 11, PyBytes_GET_SIZE(data))
    put_item(header, 12, digest)
    put_item(header, 13, encoded)
    return _entry_of(header, data)


cdef bytes _encode_body(body):
    """None: it is not plain, or too long."""
    cdef Py_ssize_t size = WORD_HEADS, principal_size
    cdef uint8_t *p
    if type(body) is not body_class:
        return None
    principal, groups, argv = part(body, 0), part(body, 1), part(body, 2)
    if type(principal) is not bytes or type(groups) is not tuple or type(argv) is not tuple:
        return None
    principal_size = PyBytes_GET_SIZE(principal)
    if principal_size > 0xFFFF or len(<tuple>groups) > ITEMS_MAX or len(<tuple>argv) > ITEMS_MAX:
        return None
    size += principal_size
    for item in <tuple>groups:
        if type(item) is not bytes or PyBytes_GET_SIZE(item) > 0xFFFF:
            return None
        size += 2 + PyBytes_GET_SIZE(item)
    for item in <tuple>argv:
        if type(item) is not bytes or PyBytes_GET_SIZE(item) > 0xFFFFFFFF:
            return None
        size += 4 + PyBytes_GET_SIZE(item)
    if <uint64_t>size > entry_body_max:
        return None
    data = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t *>PyBytes_AS_STRING(data)
    put16(p, <uint16_t>principal_size)
    put16(p + 2, <uint16_t>len(<tuple>groups))
    put16(p + 4, <uint16_t>len(<tuple>argv))
    memcpy(p + WORD_HEADS, PyBytes_AS_STRING(principal), principal_size)
    p += WORD_HEADS + principal_size
    for item in <tuple>groups:
        size = PyBytes_GET_SIZE(item)
        put16(p, <uint16_t>size)
        memcpy(p + 2, PyBytes_AS_STRING(item), size)
        p += 2 + size
    for item in <tuple>argv:
        size = PyBytes_GET_SIZE(item)
        put32(p, <uint32_t>size)
        memcpy(p + 4, PyBytes_AS_STRING(item), size)
        p += 4 + size
    return data


def bind_decode_body(entries, python, body):
    """Return the twin of `python`, which is `entries.decode_body`."""
    global python_decode_body, body_class
    _expect(body, 3)
    python_decode_body, body_class = python, body
    return decode_body


def decode_body(data):
    """Twin of `millstream.vsr.core.entries.decode_body`; it, too, knows the last one."""
    global decoded_data, decoded_body
    if decoded_data is not None and data is decoded_data:
        return decoded_body
    found = _decode_body(<bytes>data) if type(data) is bytes else None
    if found is None:
        return python_decode_body(data)
    decoded_data, decoded_body = data, found
    return found


cdef _decode_body(bytes data):
    """None: lengths and bytes do not fit."""
    cdef const uint8_t *begin = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at, length, number, group_count, count
    if size < WORD_HEADS:
        return None
    length, group_count, count = get16(begin), get16(begin + 2), get16(begin + 4)
    at = WORD_HEADS + length
    if at > size or count > size or group_count > size:
        return None
    principal = PyBytes_FromStringAndSize(<const char *>begin + WORD_HEADS, length)
    groups, argv = [], []
    for number in range(group_count):
        if size - at < 2:
            return None
        length = get16(begin + at)
        at += 2
        if size - at < length:
            return None
        groups.append(PyBytes_FromStringAndSize(<const char *>begin + at, length))
        at += length
    for number in range(count):
        if size - at < 4:
            return None
        length = get32(begin + at)
        at += 4
        if size - at < length:
            return None
        argv.append(PyBytes_FromStringAndSize(<const char *>begin + at, length))
        at += length
    if at != size:
        return None
    body = new_tuple(body_class, 3)
    put_item(body, 0, principal)
    put_item(body, 1, tuple(groups))
    put_item(body, 2, tuple(argv))
    return body


def bind_encode_log(durable, python):
    """Return the twin of `python`, which is `durable.encode_log`."""
    global python_encode_log
    python_encode_log = python
    return encode_log


def encode_log(entries, segment, offset):
    """Twin of `millstream.vsr.core.disk.durable_steps.encode_log`."""
    if type(entries) is list or type(entries) is tuple:
        found = _encode_log(entries, segment, offset)
        if found is not None:
            return found
    return python_encode_log(entries, segment, offset)


cdef _encode_log(entries, segment, offset):
    """None: these are no plain entries, or there is none."""
    cdef uint64_t number, at
    cdef Py_ssize_t size = 0, count = 0
    cdef uint8_t *data_at
    cdef uint8_t *slot_at
    cdef bytes encoded, body, data, slots
    if not as_number(<PyObject *>segment, &number) or not as_number(<PyObject *>offset, &at):
        return None
    for entry in entries:
        if not _is_entry(entry):
            return None
        size += ENTRY_HEADER + PyBytes_GET_SIZE(part(entry, 1))
        count += 1
    if count == 0 or at + <uint64_t>size > NUMBER_MAX:
        return None
    data = PyBytes_FromStringAndSize(NULL, size)
    slots = PyBytes_FromStringAndSize(NULL, count * ENTRY_SLOT)
    data_at, slot_at = <uint8_t *>PyBytes_AS_STRING(data), <uint8_t *>PyBytes_AS_STRING(slots)
    for entry in entries:
        encoded = <bytes>part(part(entry, 0), 13)
        body = <bytes>part(entry, 1)
        memcpy(slot_at, PyBytes_AS_STRING(encoded), ENTRY_HEADER)
        put64(slot_at + ENTRY_HEADER, number)
        put64(slot_at + ENTRY_HEADER + 8, at)
        blake2b(slot_at + ENTRY_HEADER + 16, ENTRY_HASH, slot_at, ENTRY_HEADER + 16)
        memcpy(data_at, PyBytes_AS_STRING(encoded), ENTRY_HEADER)
        memcpy(data_at + ENTRY_HEADER, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        size = ENTRY_HEADER + PyBytes_GET_SIZE(body)
        data_at += size
        slot_at += ENTRY_SLOT
        at += <uint64_t>size
    return data, slots
