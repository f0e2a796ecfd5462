/* Replies of Redis to XREAD of one stream of entries with one field, walked as they come.
 *
 * Such a reply is: array of 1, array of 2, name of the stream, array of N entries, and of each an
 * array of 2, its id, an array of 2, field, value. A reply without entries is "*-1".
 */
#ifndef MILLSTREAM_BENCH_REDIS_H
#define MILLSTREAM_BENCH_REDIS_H

#include "wire.h"

enum { REPLY_BYTES = 1 << 20, STAMP_DIGITS = 16 };

struct replies {
    uint8_t *data;
    size_t used, skip;        /* bytes held; bytes of a string and its line end still to come */
    unsigned arrays, strings; /* seen of the reply at hand */
    long entries;             /* of the reply at hand still to come */
    uint64_t items, done;     /* entries seen, replies finished */
    void (*on_value)(const uint8_t *value); /* its first STAMP_DIGITS bytes are there; or none */
};

static inline void end_reply(struct replies *r)
{
    r->arrays = r->strings = 0;
    r->entries = 0;
    r->done++;
}

/* A string begins at `at` whose line says `size`; returns 0 if too little of it is there. */
static inline int take_string(struct replies *r, size_t at, long size)
{
    int is_value = r->strings && r->strings % 3 == 0; /* name, then id, field, value of each */
    if (is_value && r->on_value) {
        if (r->used < at + STAMP_DIGITS || size < STAMP_DIGITS) return 0;
        r->on_value(r->data + at);
    }
    r->strings++;
    r->skip = (size_t)size + 2;
    if (is_value) {
        r->items++;
        if (--r->entries == 0) end_reply(r);
    }
    return 1;
}

static inline void take_array(struct replies *r, long size)
{
    r->arrays++;
    if (r->arrays == 1 && size < 0) end_reply(r);
    else if (r->arrays == 3) r->entries = size;
}

static inline void walk_replies(struct replies *r)
{
    size_t at = 0;
    for (;;) {
        size_t skipped = r->skip < r->used - at ? r->skip : r->used - at;
        r->skip -= skipped;
        at += skipped;
        const uint8_t *end = at < r->used ? memchr(r->data + at, '\n', r->used - at) : NULL;
        if (!end) break;
        long size = strtol((const char *)r->data + at + 1, NULL, 10);
        size_t next = (size_t)(end - r->data) + 1;
        if (r->data[at] == '*') take_array(r, size);
        else if (r->data[at] != '$') die("Redis: %.60s", r->data + at);
        else if (!take_string(r, next, size)) break;
        at = next;
    }
    r->used -= at;
    memmove(r->data, r->data + at, r->used);
}

/* Waits for bytes and walks what came. */
static inline void receive_replies(int fd, struct replies *r)
{
    if (!r->data) r->data = calloc(1, REPLY_BYTES + 1);
    ssize_t got = recv(fd, r->data + r->used, REPLY_BYTES - r->used, 0);
    if (got <= 0) die("Redis closed the connection: %s", got ? strerror(errno) : "end");
    r->used += (size_t)got;
    walk_replies(r);
}

/* XADD with the id 1-number, so that a reader knows ids before it sees them. */
static inline size_t put_xadd(uint8_t *at, uint64_t number, const uint8_t *value, size_t size)
{
    char id[32];
    int id_bytes = snprintf(id, sizeof id, "1-%llu", (unsigned long long)number);
    int head = sprintf((char *)at, "*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$%d\r\n%s\r\n$1\r\nv\r\n$%zu\r\n",
                       id_bytes, id, size);
    memcpy(at + head, value, size);
    memcpy(at + (size_t)head + size, "\r\n", 2);
    return (size_t)head + size + 2;
}

/* XREAD of what is behind the id 1-number. */
static inline size_t put_xread(uint8_t *at, uint64_t number, unsigned count, int blocks)
{
    char id[32];
    int id_bytes = snprintf(id, sizeof id, "1-%llu", (unsigned long long)number);
    return (size_t)sprintf((char *)at,
                           "*%d\r\n$5\r\nXREAD\r\n$5\r\nCOUNT\r\n$4\r\n%04u\r\n%s"
                           "$7\r\nSTREAMS\r\n$1\r\ns\r\n$%d\r\n%s\r\n",
                           blocks ? 8 : 6, count, blocks ? "$5\r\nBLOCK\r\n$1\r\n0\r\n" : "",
                           id_bytes, id);
}

#endif
