# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=True
"""Compiled twins of hot functions of Millstream; each says which function it is the twin of.

A twin answers what is plain and common by itself, and hands everything else to the Python
function, which is the specification, before it has changed anything.

Invariants:
1. The state stays in Millstream's own objects. Their slots are read and written by offsets asked
   of their classes at import (`bind_...`), as the interpreter does it; only of objects of exactly
   these classes, whose constructors have set all of them.
2. Nothing is changed before everything that can fail, but for lists that grow, has succeeded.

Elsewhere: when the twins are chosen (`millstream.accelerated`), why these
(docs/design/0007-accelerator.md).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.dict cimport PyDict_GetItemWithError
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject, PyObject_Hash
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

SPECIFICATION = "1d051b022689"

cdef extern from "wire.h":
    uint16_t get16(const uint8_t *at) noexcept nogil
    uint32_t get32(const uint8_t *at) noexcept nogil
    uint64_t get64(const uint8_t *at) noexcept nogil
    uint8_t *put16(uint8_t *at, uint16_t number) noexcept nogil
    uint8_t *put32(uint8_t *at, uint32_t number) noexcept nogil
    uint8_t *put64(uint8_t *at, uint64_t number) noexcept nogil
    uint8_t *put_varint(uint8_t *at, uint64_t number) noexcept nogil
    void crc_prepare(bint may_fold) noexcept nogil
    uint32_t crc_of(const uint8_t *at, size_t size) noexcept nogil

cdef extern from "slots.h":
    Py_ssize_t slot_offset(PyObject *descriptor) noexcept
    PyObject *slot(PyObject *owner, Py_ssize_t offset) noexcept
    void set_slot(PyObject *owner, Py_ssize_t offset, object value) noexcept
    PyObject *PyList_GET_ITEM(list owner, Py_ssize_t index) noexcept
    int order_of(PyObject *one, PyObject *other) noexcept
    void prefetch(PyObject *value) noexcept
    void prefetch_frame(PyObject *value) noexcept
    void set_item(list owner, Py_ssize_t index, object value) noexcept
    bint as_number(PyObject *value, uint64_t *number) noexcept
    uint8_t *room(PyObject **out, Py_ssize_t used, Py_ssize_t need, bint exact) except NULL
    object take(PyObject **out, Py_ssize_t used)
    void Py_CLEAR(PyObject *value) noexcept
    object new_tuple(type kind, Py_ssize_t size)
    void put_item(object owner, Py_ssize_t index, object value) noexcept

cdef extern from *:
    PyObject *Py_True
    PyObject *Py_False
    int PyList_Append(list owner, object item) except -1

cdef enum:
    REQUEST_GET = 0x8000
    REQUEST_SET = 0x8001
    REQUEST_SETQ = 0x8011
    REQUEST_GETQ = 0x8009
    REQUEST_GETK = 0x800C
    REQUEST_GETKQ = 0x800D
    REQUEST_DELETE = 0x8004
    REQUEST_DELETEQ = 0x8014
    TO_RESPONSE = 0x0100
    DELETION_HEAD = 45  # of a deletion: header and extras
    DURABLE_SET = 0x0801  # with framing extras
    PERSISTED_FRAMING = 0x1102  # and one more: the levels that wait for the disk
    HEADER = 24
    FRAME_HEAD = 55  # of a mutation: header and extras
    MUTATION = 0x57
    UNDERSCORE = 0x5F
    RELATIVE_SECONDS_MAX = 30 * 24 * 3600
    SECOND_NS = 1000000000
    BLOCK_BITS = 10
    BLOCK_MASK = 1023
    BLOCKS_MAX = 64  # more are far apart, on a replica
    ENVELOPE = 25  # of a record
    CHANGE = 1
    MARKED_CHANGE = 0x81
    FRAME_BYTES_MAX = 1 << 30  # what is longer is left to Python
    AHEAD = 8  # objects fetched into the processor's cache before they are needed

cdef uint64_t NUMBER_MAX = <uint64_t>1 << 63
"""What is larger is left to Python."""
cdef bytes NOTHING = b""

crc_prepare(True)


cdef Py_ssize_t _offset(owner, name) except -1:
    descriptor = owner.__dict__.get(name)
    cdef Py_ssize_t found = slot_offset(<PyObject *>descriptor)
    if found < 0:
        raise TypeError(f"{owner.__name__}.{name} is no slot")
    return found


# -- KvSession.receive, with KvSession._answer, what is in `plain_requests`, and Partition.store

cdef object python_receive, session_type, partition_type, queue_type, block_type, entry_type
cdef object residents_type, memory_type, departed_type

cdef struct Shape:
    # KvSession
    Py_ssize_t has_rest, is_waiting, is_closing, deferred, out, tables, partitions, bucket, readable
    Py_ssize_t hashes_keys, wants_tokens, datatype_mask, has_changes, needs_care, deferred_bytes
    Py_ssize_t reads
    # Partition
    Py_ssize_t table, queue, last_cas, branch_seqno, residents, partition_id, birth_prefix
    Py_ssize_t expiries, failover_log, epoch, acknowledged
    # Residents
    Py_ssize_t is_complete, ring, memory, has_sidecars, departed
    Py_ssize_t table_of
    # Departed
    Py_ssize_t bits, mask
    # Memory
    Py_ssize_t table_bytes
    # MutationQueue
    Py_ssize_t floor, guarded, frozen, high, frame_bytes, blocks, tail, counters, owed
    # Block
    Py_ssize_t frames, entries, previous, least, greatest
    # Entry
    Py_ssize_t key, frame, side, is_used
    # bounds and sizes
    Py_ssize_t requests_max, key_bytes_max, value_bytes_max, entry_bytes, deferred_max
    uint64_t deferred_bytes_max

cdef Shape shape


def bind_receive(
    session, python, partition, queue, block, entry, residents, departed, memory,
    requests_max, key_bytes_max, value_bytes_max, entry_bytes, deferred_max, deferred_bytes_max,
):
    """Learn slots and bounds; return the twin of `python`, which is `KvSession.receive`."""
    global python_receive, session_type, partition_type, residents_type, memory_type
    global departed_type
    _learn_queue(queue, block, entry)
    shape.has_rest = _offset(session, "_has_rest")
    shape.is_waiting = _offset(session, "is_waiting")
    shape.is_closing = _offset(session, "is_closing")
    shape.deferred = _offset(session, "_deferred")
    shape.out = _offset(session, "out")
    shape.tables = _offset(session, "_open_tables")
    shape.partitions = _offset(session, "_open_partitions")
    shape.readable = _offset(session, "_read_partitions")
    shape.bucket = _offset(session, "bucket")
    shape.hashes_keys = _offset(session, "hashes_keys")
    shape.wants_tokens = _offset(session, "wants_tokens")
    shape.datatype_mask = _offset(session, "datatype_mask")
    shape.has_changes = _offset(session, "has_changes")
    shape.needs_care = _offset(session, "needs_care")
    shape.deferred_bytes = _offset(session, "_deferred_bytes")
    shape.reads = _offset(session, "_reads")
    shape.table = _offset(partition, "table")
    shape.queue = _offset(partition, "queue")
    shape.last_cas = _offset(partition, "last_cas")
    shape.branch_seqno = _offset(partition, "_branch_seqno")
    shape.residents = _offset(partition, "residents")
    shape.partition_id = _offset(partition, "partition_id")
    shape.birth_prefix = _offset(partition, "_birth_prefix")
    shape.expiries = _offset(partition, "expiries")
    shape.failover_log = _offset(partition, "failover_log")
    shape.epoch = _offset(partition, "epoch")
    shape.acknowledged = _offset(partition, "acknowledged")
    shape.is_complete = _offset(residents, "is_complete")
    shape.ring = _offset(residents, "ring")
    shape.departed = _offset(residents, "departed")
    shape.bits = _offset(departed, "bits")
    shape.mask = _offset(departed, "mask")
    shape.has_sidecars = _offset(residents, "has_sidecars")
    shape.memory = _offset(residents, "memory")
    shape.table_bytes = _offset(memory, "table_bytes")
    shape.is_used = _offset(entry, "is_used")
    shape.requests_max, shape.key_bytes_max = requests_max, key_bytes_max
    shape.value_bytes_max, shape.entry_bytes = value_bytes_max, entry_bytes
    shape.deferred_max, shape.deferred_bytes_max = deferred_max, deferred_bytes_max
    python_receive, session_type, partition_type = python, session, partition
    residents_type, memory_type, departed_type = residents, memory, departed
    return receive


cdef _learn_queue(queue, block, entry):
    global queue_type
    shape.floor = _offset(queue, "floor")
    shape.guarded = _offset(queue, "guarded_seqno")
    shape.frozen = _offset(queue, "frozen_seqno")
    shape.high = _offset(queue, "high_seqno")
    shape.frame_bytes = _offset(queue, "frame_bytes")
    shape.blocks = _offset(queue, "blocks")
    shape.tail = _offset(queue, "tail")
    shape.counters = _offset(queue, "counters")
    shape.owed = _offset(queue, "_owed")
    queue_type = queue
    _learn_block(block, entry)


cdef _learn_block(block, entry):
    global block_type, entry_type
    shape.frames = _offset(block, "frames")
    shape.entries = _offset(block, "entries")
    shape.previous = _offset(block, "previous")
    shape.least = _offset(block, "least")
    shape.greatest = _offset(block, "greatest")
    shape.key = _offset(entry, "key")
    shape.frame = _offset(entry, "frame")
    shape.side = _offset(entry, "side")
    block_type, entry_type = block, entry


cdef bytes _store(
    partition, bytes key, const uint8_t *tail, Py_ssize_t tail_bytes,
    uint32_t flags, uint32_t expiry, uint8_t datatype, uint64_t now, bint is_deletion,
):
    """What `Partition.store` does; None, and nothing changed, if it is not plain.

    `is_deletion`: what `Partition.delete` does with a document in memory; the tail is the key.
    """
    cdef PyObject *owner = <PyObject *>partition
    cdef PyObject *table = slot(owner, shape.table)
    cdef PyObject *queue = slot(owner, shape.queue)
    cdef PyObject *residents = slot(owner, shape.residents)
    cdef PyObject *memory
    cdef uint64_t table_bytes
    cdef uint64_t high, floor, guarded, frozen, queue_bytes, branch_seqno, last_cas, partition_id
    cdef uint64_t seqno, cas, old_cas = 0, old_seqno = 0, old_rev = 0
    cdef Py_ssize_t key_bytes = PyBytes_GET_SIZE(key), index, frame_bytes, prefix_bytes
    cdef uint8_t *at
    cdef uint8_t varint[10]
    cdef PyObject *found_block
    cdef bytes old = NOTHING
    cdef bytes frame, lineage, prefix
    cdef PyObject *stored_key
    cdef list frames
    if (
        type(<object>queue) is not queue_type
        or not as_number(slot(queue, shape.high), &high)
        or not as_number(slot(queue, shape.floor), &floor)
        or not as_number(slot(queue, shape.guarded), &guarded)
        or not as_number(slot(queue, shape.frozen), &frozen)
        or not as_number(slot(queue, shape.frame_bytes), &queue_bytes)
        or not as_number(slot(owner, shape.last_cas), &last_cas)
        or not as_number(slot(owner, shape.branch_seqno), &branch_seqno)
        or not as_number(slot(owner, shape.partition_id), &partition_id)
        or partition_id > 0xFFFF or key_bytes > 0xFFFF
        or type(<object>residents) is not residents_type
    ):
        return None
    memory = slot(residents, shape.memory)
    if type(<object>memory) is not memory_type:
        return None
    if not as_number(slot(memory, shape.table_bytes), &table_bytes):
        return None
    seqno = high + 1
    cas = now if now > last_cas else last_cas + 1
    cdef PyObject *found = PyDict_GetItemWithError(<object>table, key)
    if found is NULL and not is_deletion and not _lacks(<object>residents, key):
        try:
            if (<object>residents).find(key) is not None:
                found = PyDict_GetItemWithError(<object>table, key)
        except Exception:  # Python meets it, too
            return None
        if (
            slot(residents, shape.has_sidecars) is not Py_False
            or not as_number(slot(memory, shape.table_bytes), &table_bytes)
        ):
            return None
    if found is NULL:
        if is_deletion:
            return None
        prefix = <bytes>slot(owner, shape.birth_prefix)
        prefix_bytes = PyBytes_GET_SIZE(prefix)
        at = put_varint(varint, seqno)
        lineage = PyBytes_FromStringAndSize(NULL, prefix_bytes + (at - varint))
        memcpy(PyBytes_AS_STRING(lineage), PyBytes_AS_STRING(prefix), prefix_bytes)
        memcpy(PyBytes_AS_STRING(lineage) + prefix_bytes, varint, at - varint)
        entry = entry_type(key, NOTHING, lineage)
        table_bytes += shape.entry_bytes + key_bytes + PyBytes_GET_SIZE(lineage)
    else:
        entry = <object>found
        if type(entry) is not entry_type:
            return None
        old = <bytes?>slot(found, shape.frame)
        if PyBytes_GET_SIZE(old) < 40:
            return None
        at = <uint8_t *>PyBytes_AS_STRING(old)
        old_cas, old_seqno, old_rev = get64(at + 16), get64(at + 24), get64(at + 32)
        if old_seqno <= branch_seqno or (old_cas | old_seqno | old_rev) >= NUMBER_MAX:
            return None
        if old_cas >= cas:
            cas = old_cas + 1
        if floor < old_seqno <= guarded:
            return None
        if is_deletion and not _is_live(old, now):
            return None

    frame_bytes = (DELETION_HEAD if is_deletion else FRAME_HEAD) + tail_bytes
    frame = PyBytes_FromStringAndSize(NULL, frame_bytes)
    at = <uint8_t *>PyBytes_AS_STRING(frame)
    at = put16(at, 0x8058 if is_deletion else 0x8057)
    at = put16(at, key_bytes)
    at = put16(at, 21 << 8 if is_deletion else 31 << 8 | datatype)
    at = put16(at, partition_id)
    at = put32(at, frame_bytes - HEADER)
    at = put32(at, partition_id)
    at = put64(at, cas)
    at = put64(at, seqno)
    at = put64(at, old_rev + 1)
    if is_deletion:
        at = put32(at, now // SECOND_NS)
        at[0] = 0
        at += 1
    else:
        at = put32(at, flags)
        at = put32(at, expiry)
        memcpy(at, "\0\0\0\0\0\0\0", 7)
        at += 7
    memcpy(at, tail, tail_bytes)

    previous = old_seqno
    queue_bytes += frame_bytes
    former = None
    if old_seqno > guarded:
        found_block = PyDict_GetItemWithError(
            <object>slot(queue, shape.blocks), old_seqno >> BLOCK_BITS
        )
        if found_block is NULL or type(<object>found_block) is not block_type:
            return None
        former = <object>found_block
        index = old_seqno & BLOCK_MASK
        if index >= PyList_GET_SIZE(<list>slot(found_block, shape.frames)):
            return None
        if old_seqno > frozen:
            if index >= PyList_GET_SIZE(<list>slot(found_block, shape.previous)):
                return None
            previous = (<list>slot(found_block, shape.previous))[index]
        queue_bytes -= PyBytes_GET_SIZE(old)
    block = <object>slot(queue, shape.tail)
    if type(block) is not block_type:
        return None
    frames = <list>slot(<PyObject *>block, shape.frames)
    if PyList_GET_SIZE(frames) != <Py_ssize_t>(seqno & BLOCK_MASK):
        block = (<object>queue).open_slot(seqno)
        frames = <list>slot(<PyObject *>block, shape.frames)
    if former is not None:
        set_item(<list>slot(<PyObject *>former, shape.frames), index, NOTHING)
    if found is NULL:
        (<dict>table)[key] = entry
        PyList_Append(<list>slot(residents, shape.ring), entry)
    set_slot(<PyObject *>entry, shape.frame, frame)
    if is_deletion:
        set_slot(<PyObject *>entry, shape.is_used, True)
    set_slot(memory, shape.table_bytes, table_bytes + frame_bytes - PyBytes_GET_SIZE(old))
    PyList_Append(frames, frame)
    PyList_Append(<list>slot(<PyObject *>block, shape.entries), entry)
    PyList_Append(<list>slot(<PyObject *>block, shape.previous), previous)
    stored_key = slot(<PyObject *>entry, shape.key)
    if order_of(stored_key, slot(<PyObject *>block, shape.least)) < 0:
        set_slot(<PyObject *>block, shape.least, <object>stored_key)
    if order_of(stored_key, slot(<PyObject *>block, shape.greatest)) > 0:
        set_slot(<PyObject *>block, shape.greatest, <object>stored_key)
    set_slot(owner, shape.last_cas, cas)
    set_slot(queue, shape.high, seqno)
    set_slot(queue, shape.frame_bytes, queue_bytes)
    if expiry:
        (<object>slot(owner, shape.expiries)).add(<object>stored_key, expiry)
    return frame


cdef bint _is_live(bytes frame, uint64_t now) noexcept:
    """Whether a frame is that of a document that has not expired."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(frame)
    cdef uint32_t expiry
    if PyBytes_GET_SIZE(frame) < FRAME_HEAD or at[1] != MUTATION:
        return False
    expiry = get32(at + 44)
    return expiry == 0 or expiry > now // SECOND_NS


cdef bint _lacks(residents, bytes key) except -1:
    """What `Residents.lacks` returns."""
    cdef uint64_t number, mask, first, second
    cdef const uint8_t *bits
    if slot(<PyObject *>residents, shape.is_complete) is Py_True:
        return True
    departed = <object>slot(<PyObject *>residents, shape.departed)
    if type(departed) is not departed_type:
        return False
    field = <object>slot(<PyObject *>departed, shape.bits)
    if (
        type(field) is not bytearray
        or not as_number(slot(<PyObject *>departed, shape.mask), &mask)
        or mask >> 3 >= <uint64_t>len(<bytearray>field)
    ):
        return False
    bits = <const uint8_t *>PyByteArray_AS_STRING(field)
    number = <uint64_t>PyObject_Hash(key)
    first, second = number & mask, number >> 32 & mask
    return not (bits[first >> 3] >> (first & 7) & bits[second >> 3] >> (second & 7) & 1)


cdef bint _is_missing(session, object table, Py_ssize_t vbucket, bytes key) except -1:
    """Whether a key that is not in a table does not exist, and may be said to."""
    readable = <object>slot(<PyObject *>session, shape.readable)
    if type(readable) is not list or vbucket >= len(readable):
        return False
    partition = readable[vbucket]
    if type(partition) is not partition_type:
        return False
    residents = <object>slot(<PyObject *>partition, shape.residents)
    return (
        <object>slot(<PyObject *>partition, shape.table) is table
        and type(residents) is residents_type
        and _lacks(residents, key)
    )


def receive(session, data, now_ns, at=None, budget=None):
    """Twin of `millstream.kv.core.session.session.KvSession.receive`."""
    cdef PyObject *owner = <PyObject *>session
    cdef uint64_t now, mask, deferred_bytes
    if (
        at is not None
        or type(session) is not session_type
        or type(data) is not bytes
        or slot(owner, shape.has_rest) is not Py_False
        or slot(owner, shape.is_waiting) is not Py_False
        or slot(owner, shape.is_closing) is not Py_False
        or len(<object>slot(owner, shape.deferred)) > shape.deferred_max - shape.requests_max
        or not as_number(slot(owner, shape.deferred_bytes), &deferred_bytes)
        or deferred_bytes >= shape.deferred_bytes_max
        or len(<object>slot(owner, shape.out)) != 0
        or type(<object>slot(owner, shape.tables)) is not list
        or type(<object>slot(owner, shape.partitions)) is not list
        or not as_number(slot(owner, shape.datatype_mask), &mask)
        or not as_number(<PyObject *>now_ns, &now)
    ):
        if at is None:
            return python_receive(session, data, now_ns)
        return python_receive(session, data, now_ns, at, budget)
    return _answer_plain(session, <bytes>data, now_ns, now, mask)


cdef _answer_plain(session, bytes data, now_ns, uint64_t now, uint32_t mask):
    """Answer plain requests; hand the rest, from the first that is not plain, to Python."""
    cdef PyObject *owner = <PyObject *>session
    cdef const uint8_t *begin = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0, stop, vbucket
    cdef Py_ssize_t budget = shape.requests_max
    cdef const uint8_t *head
    cdef const uint8_t *body_at
    cdef uint8_t *to
    cdef uint32_t kind, key_bytes, extras, body, expiry, shown
    cdef bint hashes_keys = slot(owner, shape.hashes_keys) is Py_True
    cdef bint wants_tokens = slot(owner, shape.wants_tokens) is Py_True
    cdef list tables = <list>slot(owner, shape.tables)
    cdef list partitions = <list>slot(owner, shape.partitions)
    cdef Py_ssize_t table_count = len(tables), partition_count = len(partitions)
    cdef PyObject *found
    cdef PyObject *out = NULL
    cdef Py_ssize_t used = 0, value_bytes, reply_bytes
    cdef uint64_t number
    cdef bytes key, frame, reply
    cdef bint has_written = False
    cdef Py_ssize_t reads = 0
    cdef list counted
    deferred = <object>slot(owner, shape.deferred)
    cdef bint is_deferring = len(deferred) != 0  # then plain replies must wait, too: in Python
    try:
        while size - at >= HEADER and budget > 0:
            head = begin + at
            kind, key_bytes = get16(head), get16(head + 2)
            extras, body = get16(head + 4), get32(head + 8)
            body_at = head + HEADER
            if body > size - at - HEADER:
                break
            stop = at + HEADER + body
            vbucket = get16(head + 6)
            if (
                kind == REQUEST_GET or kind == REQUEST_GETQ
                or kind == REQUEST_GETK or kind == REQUEST_GETKQ
            ) and extras == 0 and body == key_bytes and body != 0:
                if is_deferring:
                    break
                if hashes_keys and table_count:
                    vbucket = (crc_of(body_at, key_bytes) >> 16 & 0x7FFF) % table_count
                if vbucket >= table_count or body_at[0] == UNDERSCORE:
                    break
                key = PyBytes_FromStringAndSize(<const char *>body_at, key_bytes)
                found = PyDict_GetItemWithError(tables[vbucket], key)
                if found is NULL and (kind == REQUEST_GETQ or kind == REQUEST_GETKQ):
                    if (
                        key_bytes > shape.key_bytes_max
                        or not _is_missing(session, tables[vbucket], vbucket, key)
                    ):
                        break
                    budget -= 1
                    reads += 1
                    at = stop
                    continue
                if found is NULL or type(<object>found) is not entry_type:
                    break
                frame = <bytes?>slot(found, shape.frame)
                value_bytes = PyBytes_GET_SIZE(frame) - FRAME_HEAD - key_bytes
                if value_bytes < 0 or (<uint8_t *>PyBytes_AS_STRING(frame))[1] != MUTATION:
                    break
                head = <const uint8_t *>PyBytes_AS_STRING(frame)
                expiry = get32(head + 44)
                if expiry != 0 and expiry <= now // SECOND_NS:
                    break
                if slot(found, shape.is_used) is not Py_True:
                    set_slot(found, shape.is_used, True)
                shown = key_bytes if kind == REQUEST_GETK or kind == REQUEST_GETKQ else 0
                reply_bytes = HEADER + 4 + shown + value_bytes
                to = room(&out, used, reply_bytes, at == 0 and stop == size)
                put16(to, kind ^ TO_RESPONSE)
                put16(to + 2, shown)
                put16(to + 4, 4 << 8 | head[5] & mask)
                put16(to + 6, 0)
                put32(to + 8, 4 + shown + value_bytes)
                memcpy(to + 12, begin + at + 12, 4)
                memcpy(to + 16, head + 16, 8)
                memcpy(to + 24, head + 40, 4)
                memcpy(to + 28, body_at, shown)
                memcpy(to + 28 + shown, head + FRAME_HEAD + key_bytes, value_bytes)
                budget -= reply_bytes >> 10
                reads += 1
            elif (
                (kind == REQUEST_DELETE or kind == REQUEST_DELETEQ)
                and extras == 0 and body == key_bytes and body != 0
                and get64(head + 16) == 0
            ):
                if is_deferring or (hashes_keys and wants_tokens):
                    break
                if hashes_keys and partition_count:
                    vbucket = (crc_of(body_at, key_bytes) >> 16 & 0x7FFF) % partition_count
                if vbucket >= partition_count or body_at[0] == UNDERSCORE:
                    break
                partition = partitions[vbucket]
                if type(partition) is not partition_type:
                    break
                key = PyBytes_FromStringAndSize(<const char *>body_at, key_bytes)
                reply_bytes = HEADER + 16 if wants_tokens else HEADER
                if kind == REQUEST_DELETEQ:
                    reply_bytes = 0
                else:
                    to = room(&out, used, reply_bytes, at == 0 and stop == size)
                frame = _store(partition, key, body_at, key_bytes, 0, 0, 0, now, True)
                if frame is None:
                    break
                has_written = True
                if reply_bytes:
                    _put_stored(to, head, frame, partition, wants_tokens)
                    put16(to, REQUEST_DELETE ^ TO_RESPONSE)
                    if hashes_keys:
                        put64(to + 16, 0)
            elif (kind == REQUEST_SET or kind == REQUEST_SETQ) and extras & ~mask == 8 << 8 and get64(head + 16) == 0:
                value_bytes = <Py_ssize_t>body - 8 - key_bytes
                if (
                    is_deferring or key_bytes == 0 or key_bytes > shape.key_bytes_max
                    or value_bytes < 0 or value_bytes > shape.value_bytes_max
                ):
                    break
                if hashes_keys and partition_count:
                    vbucket = (crc_of(body_at + 8, key_bytes) >> 16 & 0x7FFF) % partition_count
                if vbucket >= partition_count or body_at[8] == UNDERSCORE:
                    break
                partition = partitions[vbucket]
                if type(partition) is not partition_type:
                    break
                expiry = get32(body_at + 4)
                if 0 < expiry <= RELATIVE_SECONDS_MAX:
                    number = now // SECOND_NS + expiry
                    if number > 0xFFFFFFFF:
                        break
                    expiry = number
                key = PyBytes_FromStringAndSize(<const char *>body_at + 8, key_bytes)
                reply_bytes = HEADER + 16 if wants_tokens else HEADER
                if kind == REQUEST_SETQ:
                    reply_bytes = 0
                else:
                    to = room(&out, used, reply_bytes, at == 0 and stop == size)
                frame = _store(
                    partition, key, body_at + 8, body - 8, get32(body_at), expiry,
                    extras & 0xFF, now, False,
                )
                if frame is None:
                    break
                has_written = True
                if reply_bytes:
                    _put_stored(to, head, frame, partition, wants_tokens)
            elif kind == DURABLE_SET and extras & ~mask == 8 << 8 and get64(head + 16) == 0:
                # the framing's two bytes stand before the extras
                value_bytes = <Py_ssize_t>body - 10 - (key_bytes & 0xFF)
                if key_bytes >> 8 != 2 or body < 10 or get16(body_at) & ~1 != PERSISTED_FRAMING:
                    break
                key_bytes &= 0xFF
                if (
                    hashes_keys or key_bytes == 0 or key_bytes > shape.key_bytes_max
                    or value_bytes < 0 or value_bytes > shape.value_bytes_max
                    or vbucket >= partition_count or body_at[10] == UNDERSCORE
                ):
                    break
                partition = partitions[vbucket]
                if (
                    type(partition) is not partition_type
                    or <object>slot(<PyObject *>partition, shape.acknowledged) is not None
                ):
                    break
                expiry = get32(body_at + 6)
                if 0 < expiry <= RELATIVE_SECONDS_MAX:
                    number = now // SECOND_NS + expiry
                    if number > 0xFFFFFFFF:
                        break
                    expiry = number
                key = PyBytes_FromStringAndSize(<const char *>body_at + 10, key_bytes)
                reply = PyBytes_FromStringAndSize(NULL, HEADER + 16 if wants_tokens else HEADER)
                frame = _store(
                    partition, key, body_at + 10, body - 10, get32(body_at + 2), expiry,
                    extras & 0xFF, now, False,
                )
                if frame is None:
                    break
                has_written = is_deferring = True
                _put_stored(
                    <uint8_t *>PyBytes_AS_STRING(reply), head, frame, partition, wants_tokens
                )
                deferred.append((
                    partition,
                    <object>slot(slot(<PyObject *>partition, shape.queue), shape.high),
                    reply,
                    <object>slot(<PyObject *>partition, shape.epoch),
                ))
                set_slot(owner, shape.needs_care, True)
                (<object>slot(owner, shape.bucket)).hurry()
                reply_bytes = 0
            else:
                break
            budget -= 1
            used += reply_bytes
            at = stop
        if reads:
            counted = <list>slot(owner, shape.reads)
            set_item(counted, 0, <object>PyList_GET_ITEM(counted, 0) + reads)
        if has_written and not (<object>slot(owner, shape.bucket)).is_told_soon:
            set_slot(owner, shape.has_changes, True)
        if at == size and at != 0:
            if slot(owner, shape.has_changes) is Py_True:
                session._tell_changed()
            return take(&out, used) if used else NOTHING
        if used:
            (<list>slot(owner, shape.out)).append(take(&out, used))
        return python_receive(session, data, now_ns, at, budget)
    finally:
        Py_CLEAR(out)


cdef _put_stored(
    uint8_t *to, const uint8_t *head, bytes frame, partition, bint wants_tokens
):
    """Write the reply to a SET: its request's head, what was stored, with or without a token."""
    put16(to, 0x8101)
    put16(to + 2, 0)
    put16(to + 4, 0)
    put16(to + 6, 0)
    put32(to + 8, 0)
    memcpy(to + 12, head + 12, 4)
    memcpy(to + 16, PyBytes_AS_STRING(frame) + 16, 8)
    if wants_tokens:
        put16(to + 4, 16 << 8)
        put32(to + 8, 16)
        failover_log = <object>slot(<PyObject *>partition, shape.failover_log)
        put64(to + 24, failover_log[0].uuid)
        memcpy(to + 32, PyBytes_AS_STRING(frame) + 24, 8)


# -- Residents.sweep

cdef object python_sweep


def bind_sweep(residents, python, entry, memory, departed, entry_bytes):
    """Learn slots; return the twin of `python`, which is `Residents.sweep`."""
    global python_sweep, residents_type, entry_type, memory_type, departed_type
    shape.table_of = _offset(residents, "table")
    shape.ring = _offset(residents, "ring")
    shape.memory = _offset(residents, "memory")
    shape.is_complete = _offset(residents, "is_complete")
    shape.departed = _offset(residents, "departed")
    shape.key = _offset(entry, "key")
    shape.frame = _offset(entry, "frame")
    shape.side = _offset(entry, "side")
    shape.is_used = _offset(entry, "is_used")
    shape.table_bytes = _offset(memory, "table_bytes")
    shape.bits = _offset(departed, "bits")
    shape.mask = _offset(departed, "mask")
    shape.entry_bytes = entry_bytes
    python_sweep, residents_type, entry_type = python, residents, entry
    memory_type, departed_type = memory, departed
    return sweep


def sweep(self, hand, steps, floor, left_at, low_bytes):
    """Twin of `millstream.kv.core.partition.residents.Residents.sweep`."""
    cdef PyObject *owner = <PyObject *>self
    cdef uint64_t top, newest, table_bytes, mask = 0, seqno, number
    cdef int64_t low
    cdef Py_ssize_t at = hand, left = steps, count = 0
    cdef bint may_go = False, is_mutation
    cdef uint8_t *bits = NULL
    cdef const uint8_t *head
    cdef list ring
    cdef dict table
    cdef PyObject *found
    cdef bytes frame, key
    if (
        type(self) is not residents_type
        or slot(owner, shape.is_complete) is not Py_False  # the first one begins a filter
        or type(<object>slot(owner, shape.ring)) is not list
        or type(<object>slot(owner, shape.table_of)) is not dict
        or type(<object>slot(owner, shape.memory)) is not memory_type
        or not as_number(slot(slot(owner, shape.memory), shape.table_bytes), &table_bytes)
        or not as_number(<PyObject *>floor, &top)
        or not as_number(<PyObject *>left_at, &newest)
    ):
        return python_sweep(self, hand, steps, floor, left_at, low_bytes)
    ring, table = <list>slot(owner, shape.ring), <dict>slot(owner, shape.table_of)
    memory = <object>slot(owner, shape.memory)
    departed = <object>slot(owner, shape.departed)
    low = low_bytes
    if departed is not None:
        if type(departed) is not departed_type:
            return python_sweep(self, hand, steps, floor, left_at, low_bytes)
        field = <object>slot(<PyObject *>departed, shape.bits)
        if (
            type(field) is not bytearray
            or not as_number(slot(<PyObject *>departed, shape.mask), &mask)
            or mask >> 3 >= <uint64_t>len(<bytearray>field)
        ):
            return python_sweep(self, hand, steps, floor, left_at, low_bytes)
        bits = <uint8_t *>PyByteArray_AS_STRING(field)
    while at < PyList_GET_SIZE(ring) and left > 0 and <int64_t>table_bytes > low:
        found = PyList_GET_ITEM(ring, at)
        if type(<object>found) is not entry_type:
            raise TypeError("a ring has entries only")
        if at + AHEAD < PyList_GET_SIZE(ring):
            prefetch(PyList_GET_ITEM(ring, at + AHEAD))
        left -= 1
        entry = <object>found
        frame = <bytes?>slot(found, shape.frame)
        head = <const uint8_t *>PyBytes_AS_STRING(frame)
        seqno = get64(head + 24)
        if seqno > top:
            at += 1
            continue
        may_go = True
        is_mutation = head[1] == MUTATION
        if is_mutation and seqno > newest:
            at += 1
        elif is_mutation and slot(found, shape.is_used) is Py_True:
            set_slot(found, shape.is_used, False)
            at += 1
        else:
            key = <bytes?>slot(found, shape.key)
            last = ring.pop()
            if last is not entry:
                set_item(ring, at, last)
            del table[key]
            table_bytes -= (
                shape.entry_bytes + PyBytes_GET_SIZE(key) + PyBytes_GET_SIZE(frame)
                + PyBytes_GET_SIZE(<bytes?>slot(found, shape.side))
            )
            if bits is not NULL:
                number = <uint64_t>PyObject_Hash(key)
                bits[(number & mask) >> 3] |= 1 << (number & mask & 7)
                number = number >> 32 & mask
                bits[number >> 3] |= 1 << (number & 7)
            count += 1
    set_slot(<PyObject *>memory, shape.table_bytes, table_bytes)
    return at, count, may_go


# -- MutationQueue.freeze

cdef object python_freeze, frozen_type


def bind_freeze(queue, python, block, entry, frozen):
    """Learn slots; return the twin of `python`, which is `MutationQueue.freeze`."""
    global python_freeze, frozen_type
    _learn_queue(queue, block, entry)
    python_freeze, frozen_type = python, frozen
    return freeze


def freeze(self):
    """Twin of `millstream.kv.core.queue.mutation_queue.MutationQueue.freeze`."""
    cdef PyObject *queue = <PyObject *>self
    cdef uint64_t high, frozen, number
    cdef PyObject *found
    cdef list keys = [], frames = [], previous = [], sides = [], seqnos = []
    if (
        type(self) is not queue_type
        or len(<dict>slot(queue, shape.counters)) != 0
        or len(<dict>slot(queue, shape.owed)) != 0
        or not as_number(slot(queue, shape.high), &high)
        or not as_number(slot(queue, shape.frozen), &frozen)
        or high - frozen > BLOCKS_MAX << BLOCK_BITS
    ):
        return python_freeze(self)
    set_slot(queue, shape.frozen, <object>slot(queue, shape.high))
    for number in range((frozen + 1) >> BLOCK_BITS, (high >> BLOCK_BITS) + 1):
        found = PyDict_GetItemWithError(<object>slot(queue, shape.blocks), number)
        if found is not NULL:
            _take(
                <object>found, number << BLOCK_BITS, frozen + 1,
                seqnos, keys, frames, previous, sides,
            )
    return frozen_type(seqnos, keys, frames, previous, sides)


cdef _take(
    block, uint64_t base, uint64_t first,
    list seqnos, list keys, list taken, list previous, list sides,
):
    """Add what a block has from seqno `first` on to the columns."""
    cdef list frames = <list>slot(<PyObject *>block, shape.frames)
    cdef list entries = <list>slot(<PyObject *>block, shape.entries)
    cdef list numbers = <list>slot(<PyObject *>block, shape.previous)
    cdef Py_ssize_t index = first - base if first > base else 0
    cdef Py_ssize_t count = min(
        PyList_GET_SIZE(frames), PyList_GET_SIZE(entries), PyList_GET_SIZE(numbers)
    )
    cdef PyObject *entry
    for index in range(index, count):
        if index + AHEAD < count:
            prefetch(PyList_GET_ITEM(entries, index + AHEAD))
        if index + AHEAD // 2 < count:
            entry = PyList_GET_ITEM(entries, index + AHEAD // 2)
            prefetch(slot(entry, shape.key))
            prefetch(slot(entry, shape.side))
        frame = frames[index]
        if PyBytes_GET_SIZE(frame) != 0:
            entry = PyList_GET_ITEM(entries, index)
            if type(<object>entry) is not entry_type:
                raise TypeError("a queue has entries only")
            seqnos.append(base + index)
            keys.append(<object>slot(entry, shape.key))
            taken.append(frame)
            previous.append(numbers[index])
            sides.append(<object>slot(entry, shape.side))


# -- Block.unlogged_keys

cdef object python_unlogged_keys


def bind_unlogged_keys(block, python, entry):
    """Learn slots; return the twin of `python`, which is `Block.unlogged_keys`."""
    global python_unlogged_keys
    _learn_block(block, entry)
    python_unlogged_keys = python
    return unlogged_keys


def unlogged_keys(self, begin, logged_seqno, purge_seqno, low, high):
    """Twin of `millstream.kv.core.queue.blocks.Block.unlogged_keys`."""
    cdef uint64_t first, logged, purged, replaced
    if (
        type(self) is not block_type
        or type(low) is not bytes
        or type(high) is not bytes
        or not as_number(<PyObject *>begin, &first)
        or not as_number(<PyObject *>logged_seqno, &logged)
        or not as_number(<PyObject *>purge_seqno, &purged)
    ):
        return python_unlogged_keys(self, begin, logged_seqno, purge_seqno, low, high)
    cdef list frames = <list>slot(<PyObject *>self, shape.frames)
    cdef list entries = <list>slot(<PyObject *>self, shape.entries)
    cdef list numbers = <list>slot(<PyObject *>self, shape.previous)
    cdef Py_ssize_t index, count = min(
        PyList_GET_SIZE(frames), PyList_GET_SIZE(entries), PyList_GET_SIZE(numbers)
    )
    cdef PyObject *entry
    cdef PyObject *key
    cdef list found = []
    for index in range(<Py_ssize_t>min(first, <uint64_t>count), count):
        if index + AHEAD < count:
            prefetch(PyList_GET_ITEM(entries, index + AHEAD))
        if index + AHEAD // 2 < count:
            prefetch(slot(PyList_GET_ITEM(entries, index + AHEAD // 2), shape.key))
        if PyList_GET_ITEM(frames, index) is <PyObject *>NOTHING:
            continue
        if not as_number(PyList_GET_ITEM(numbers, index), &replaced):
            return python_unlogged_keys(self, begin, logged_seqno, purge_seqno, low, high)
        if purged < replaced <= logged:
            continue
        entry = PyList_GET_ITEM(entries, index)
        if type(<object>entry) is not entry_type:
            raise TypeError("a block has entries only")
        key = slot(entry, shape.key)
        if order_of(<PyObject *>low, key) <= 0 and order_of(key, <PyObject *>high) < 0 and frames[index]:
            found.append(<object>key)
    return found


# -- new_keys.keys_within

cdef object python_keys_within


def bind_keys_within(_, python):
    """Return the twin of `python`, which is `new_keys.keys_within`."""
    global python_keys_within
    python_keys_within = python
    return keys_within


def keys_within(keys, begin, end, low, high):
    """Twin of `millstream.storage.core.new_keys.keys_within`."""
    cdef uint64_t first, stop
    if (
        type(keys) is not list
        or type(low) is not bytes
        or type(high) is not bytes
        or not as_number(<PyObject *>begin, &first)
        or not as_number(<PyObject *>end, &stop)
    ):
        return python_keys_within(keys, begin, end, low, high)
    cdef Py_ssize_t index, count = <Py_ssize_t>min(stop, <uint64_t>PyList_GET_SIZE(keys))
    cdef PyObject *key
    cdef list found = []
    for index in range(<Py_ssize_t>min(first, <uint64_t>count), count):
        if index + AHEAD < count:
            prefetch(PyList_GET_ITEM(keys, index + AHEAD))
        key = PyList_GET_ITEM(keys, index)
        if type(<object>key) is not bytes:
            return python_keys_within(keys, begin, end, low, high)
        if order_of(<PyObject *>low, key) <= 0 and order_of(key, <PyObject *>high) < 0:
            found.append(<object>key)
    return found


# -- records.encode_many

cdef object python_encode_many


def bind_encode_many(records, python):
    """Return the twin of `python`, which is `records.encode_many`."""
    global python_encode_many
    python_encode_many = python
    return encode_many


def encode_many(batches, list parts not None):
    """Twin of `millstream.storage.core.records.encode_many`."""
    cdef Py_ssize_t total = 0
    cdef list found = []
    cdef uint8_t *at
    cdef bytes out
    for batch in batches:
        lengths = _lengths(batch.partition_id, batch.previous_seqnos, batch.lineages, batch.frames)
        if lengths is None:
            return python_encode_many(batches, parts)
        total += sum(lengths)
        found.append(lengths)
    out = PyBytes_FromStringAndSize(NULL, total)
    at = <uint8_t *>PyBytes_AS_STRING(out)
    for batch in batches:
        at = _put_batch(
            at, batch.partition_id, batch.previous_seqnos, batch.lineages, batch.frames
        )
    parts.append(out)
    return found


cdef list _lengths(partition_id, previous, lineages, frames):
    """Return the records' lengths; None if the columns are not plain."""
    cdef Py_ssize_t count, n
    cdef uint64_t number
    cdef list found = []
    if (
        type(frames) is not list or type(previous) is not list or type(lineages) is not list
        or not as_number(<PyObject *>partition_id, &number) or number > 0xFFFF
    ):
        return None
    count = PyList_GET_SIZE(frames)
    if count == 0 or count != PyList_GET_SIZE(previous) or count != PyList_GET_SIZE(lineages):
        return None
    for n in range(count):
        frame, lineage = (<list>frames)[n], (<list>lineages)[n]
        if (
            type(frame) is not bytes or type(lineage) is not bytes
            or PyBytes_GET_SIZE(lineage) > 0xFFFF or PyBytes_GET_SIZE(frame) > FRAME_BYTES_MAX
            or not as_number(PyList_GET_ITEM(previous, n), &number)
        ):
            return None
        found.append(ENVELOPE + PyBytes_GET_SIZE(lineage) + PyBytes_GET_SIZE(frame))
    return found


cdef uint8_t *_put_batch(
    uint8_t *at, uint16_t partition_id, list previous, list lineages, list frames
) except NULL:
    cdef Py_ssize_t n, count = PyList_GET_SIZE(frames)
    for n in range(count):
        if n + 2 < count:
            prefetch_frame(PyList_GET_ITEM(frames, n + 2))
        at = _put_record(
            at, MARKED_CHANGE if n == count - 1 else CHANGE, partition_id, previous[n],
            <bytes>lineages[n], <bytes>frames[n],
        )
    return at


cdef uint8_t *_put_record(
    uint8_t *begin, uint8_t kind, uint16_t partition_id, uint64_t previous,
    bytes lineage, bytes frame,
) noexcept:
    cdef uint8_t *at = begin + 8
    at[0] = kind
    at = put16(at + 1, partition_id)
    at = put64(at, previous)
    at = put16(at, PyBytes_GET_SIZE(lineage))
    at = put32(at, 0)
    at = _put_bytes(at, lineage)
    at = _put_bytes(at, frame)
    put32(begin + 4, at - begin)
    put32(begin, crc_of(begin + 4, at - begin - 4))
    return at


cdef inline uint8_t *_put_bytes(uint8_t *at, bytes part) noexcept:
    memcpy(at, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
    return at + PyBytes_GET_SIZE(part)


# -- records.cut_frames

cdef object python_cut_frames


def bind_cut_frames(records, python):
    """Return the twin of `python`, which is `records.cut_frames`."""
    global python_cut_frames
    python_cut_frames = python
    return cut_frames


def cut_frames(data, start, offsets, stops):
    """Twin of `millstream.storage.core.records.cut_frames`."""
    if type(data) is bytes and type(offsets) is list and type(stops) is list:
        cut = _cut_frames(<bytes>data, start, <list>offsets, <list>stops)
        if cut is not None:
            return cut
    return python_cut_frames(data, start, offsets, stops)


cdef list _cut_frames(bytes data, Py_ssize_t start, list offsets, list stops):
    """None: some record is not where records can be."""
    cdef const uint8_t *begin = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), count = len(offsets), n, at, stop, frame_at
    cdef list cut = []
    if count == 0 or len(stops) != count:
        return None
    for n in range(count):
        at, stop = <Py_ssize_t>offsets[n] - start, <Py_ssize_t>stops[n] - start
        if at < 0 or stop < at + ENVELOPE:
            return None
        if stop > size:
            break
        if crc_of(begin + at + 4, stop - at - 4) != get32(begin + at):
            break
        frame_at = at + ENVELOPE + get16(begin + at + 19) + get32(begin + at + 21)
        cut.append(PyBytes_FromStringAndSize(
            <const char *>begin + frame_at, stop - frame_at if stop > frame_at else 0
        ))
    return cut


include "entries.pxi"
include "sorted_map.pxi"
include "tables.pxi"
