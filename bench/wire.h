/* What the programs share: frames of the memcached binary protocol, a blocking prologue (HELLO,
 * SELECT_BUCKET), the clock, and latencies counted. Header only, one process per program.
 *
 * All integers on the wire are big-endian; a header is 24 bytes.
 */
#ifndef MILLSTREAM_BENCH_WIRE_H
#define MILLSTREAM_BENCH_WIRE_H

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { HEADER = 24, REQUEST = 0x80, RESPONSE = 0x81, ALT_REQUEST = 0x08 };

__attribute__((noreturn)) static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

enum { LATENCIES = 64 * 16 }; /* a histogram of nanoseconds: 16 steps per power of two */

static inline unsigned latency_of(uint64_t ns)
{
    unsigned top = 63 - (unsigned)__builtin_clzll(ns | 16);
    return (top - 4) * 16 + (unsigned)(ns >> (top - 4) & 15);
}

static inline double percentile_us(const uint64_t *latency, uint64_t total, double share)
{
    uint64_t wanted = (uint64_t)((double)total * share), seen = 0;
    for (unsigned b = 0; b < LATENCIES; b++)
        if ((seen += latency[b]) > wanted)
            return (double)(16 + b % 16) * (double)(1ull << b / 16) / 1000;
    return 0;
}

static inline uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static inline void put16(uint8_t *at, uint16_t v) { v = htobe16(v); memcpy(at, &v, 2); }
static inline void put32(uint8_t *at, uint32_t v) { v = htobe32(v); memcpy(at, &v, 4); }
static inline void put64(uint8_t *at, uint64_t v) { v = htobe64(v); memcpy(at, &v, 8); }
static inline uint16_t get16(const uint8_t *at) { uint16_t v; memcpy(&v, at, 2); return be16toh(v); }
static inline uint32_t get32(const uint8_t *at) { uint32_t v; memcpy(&v, at, 4); return be32toh(v); }
static inline uint64_t get64(const uint8_t *at) { uint64_t v; memcpy(&v, at, 8); return be64toh(v); }

/* Writes one request at `at`; returns its size. */
static inline size_t put_request(uint8_t *at, uint8_t opcode, uint16_t vbucket, uint32_t opaque,
                                 const void *framing, size_t framing_bytes, const void *extras,
                                 size_t extras_bytes, const void *key, size_t key_bytes,
                                 const void *value, size_t value_bytes)
{
    size_t body = framing_bytes + extras_bytes + key_bytes + value_bytes;
    memset(at, 0, HEADER);
    at[0] = framing_bytes ? ALT_REQUEST : REQUEST;
    at[1] = opcode;
    put16(at + 2, (uint16_t)(framing_bytes << 8 | key_bytes));
    at[4] = (uint8_t)extras_bytes;
    put16(at + 6, vbucket);
    put32(at + 8, (uint32_t)body);
    put32(at + 12, opaque);
    uint8_t *p = at + HEADER;
    if (framing_bytes) { memcpy(p, framing, framing_bytes); p += framing_bytes; }
    if (extras_bytes) { memcpy(p, extras, extras_bytes); p += extras_bytes; }
    if (key_bytes) { memcpy(p, key, key_bytes); p += key_bytes; }
    if (value_bytes) memcpy(p, value, value_bytes);
    return HEADER + body;
}

/* zlib's CRC-32. */
static inline uint32_t crc32_of(const uint8_t *data, size_t size)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

static inline uint16_t partition_of(const void *key, size_t size, unsigned partitions)
{
    return partitions ? (uint16_t)((crc32_of(key, size) >> 16 & 0x7fff) % partitions) : 0;
}

static inline int open_socket(const char *host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("not an IPv4 address: %s", host);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("cannot connect to %s:%d: %s", host, port, strerror(errno));
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static inline void send_all(int fd, const void *data, size_t size)
{
    const uint8_t *p = data;
    while (size) {
        ssize_t sent = send(fd, p, size, MSG_NOSIGNAL);
        if (sent <= 0) die("cannot send: %s", strerror(errno));
        p += sent;
        size -= (size_t)sent;
    }
}

static inline void receive_exactly(int fd, void *data, size_t size)
{
    uint8_t *p = data;
    while (size) {
        ssize_t got = recv(fd, p, size, 0);
        if (got <= 0) die("the server closed the connection: %s", got ? strerror(errno) : "end");
        p += got;
        size -= (size_t)got;
    }
}

/* Blocking request and response, for the prologue. Returns the value's size; dies unless status 0. */
static inline size_t ask(int fd, uint8_t opcode, const void *extras, size_t extras_bytes,
                         const void *key, size_t key_bytes, const void *value, size_t value_bytes,
                         uint8_t *reply, size_t reply_max)
{
    uint8_t buffer[1024], head[HEADER];
    size_t size = put_request(buffer, opcode, 0, 0, NULL, 0, extras, extras_bytes, key, key_bytes,
                              value, value_bytes);
    send_all(fd, buffer, size);
    receive_exactly(fd, head, HEADER);
    size_t body = get32(head + 8), before = head[4] + get16(head + 2);
    uint8_t *whole = malloc(body + 1);
    receive_exactly(fd, whole, body);
    if (head[0] != RESPONSE || head[1] != opcode || get16(head + 6) != 0)
        die("opcode 0x%02x was answered with status 0x%04x", opcode, get16(head + 6));
    if (body - before > reply_max) die("reply to opcode 0x%02x is too long", opcode);
    if (reply) memcpy(reply, whole + before, body - before);
    free(whole);
    return body - before;
}

enum features { PLAIN = 2, WITH_JSON, WITH_EXTENSIONS }; /* how many of those of enter_bucket */

/* HELLO and SELECT_BUCKET. */
static inline void enter_bucket(int fd, const char *bucket, enum features wanted)
{
    static const uint8_t features[] = {0, 0x08, 0, 0x10, 0, 0x0b, 0xff, 0};
    uint8_t reply[64];
    ask(fd, 0x1f, NULL, 0, "bench", 5, features, 2 * wanted, reply, sizeof reply);
    ask(fd, 0x89, NULL, 0, bucket, strlen(bucket), NULL, 0, NULL, 0);
}

#endif
