/* What primgen speaks: RESP to a Millstream group, gRPC over HTTP/2 to etcd, and ZooKeeper's protocol.
 * Requests are built in `out` (their fields in `body`) and sent by `transmit`; `take` cuts one message
 * off what came. Header only, one process per program.
 */
#ifndef MILLSTREAM_BENCH_SPEAKERS_H
#define MILLSTREAM_BENCH_SPEAKERS_H

#include "wire.h"

#include <poll.h>

enum { WARM_UP_NS = 300000000, PATIENCE_S = 60, TTL_S = 10, LONG_TTL_S = 600, BUFFER = 8192, REPLY_MAX = 16384,
       CLIENTS_MAX = 20000, ADDRESSES_MAX = 8, VALUE_MAX = 4096, NAME_MAX_BYTES = 64, EVENTS = 512, OPENING = 64 };
enum frame { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4, FRAME_HEAD = 9, MESSAGE_HEAD = 5 };
enum zookeeper { ZK_CREATE = 1, ZK_DELETE = 2, ZK_SET = 5, ZK_CHILDREN = 8, ZK_PING = 11, ZK_ADD_WATCH = 106,
                 ZK_CLOSE = -11, ZK_OF_WATCH = -1, ZK_OF_PING = -2, ZK_EPHEMERAL_SEQUENTIAL = 3 };
enum protocol { NODE, ETCD, ZOOKEEPER };
enum found { NOTHING, REPLY, NOTIFICATION, FAILURE };

static struct {
    enum protocol protocol;
    int clients, value_bytes, address_count;
    const char *operation;
    double seconds;
    char *addresses[ADDRESSES_MAX];
} options = {.operation = "lock", .clients = 64, .value_bytes = 256, .seconds = 3};

struct client {
    int fd, number, step, is_open; /* is_open: ZooKeeper's first reply has no head */
    uint32_t stream;               /* gRPC: of the request at hand */
    int is_stream, has_data;       /* gRPC: a call with many replies; whether one has come */
    uint8_t head[MESSAGE_HEAD];    /* gRPC: of the message that comes */
    size_t head_used, message_left;
    int messages;                  /* gRPC: whole ones that were not looked at */
    uint64_t sent_ns, due_ns;
    unsigned made;                 /* elements so far */
    char name[NAME_MAX_BYTES];     /* ZooKeeper: what was created */
    size_t used;
    uint8_t in[REPLY_MAX];
};

struct bytes { uint8_t data[BUFFER]; size_t size; };

static struct bytes out, body;
static char error_text[160], value[VALUE_MAX];

static int is(const char *operation) { return !strcmp(options.operation, operation); }

/* -- requests */

static void add(struct bytes *to, const void *data, size_t size)
{
    if (to->size + size > BUFFER) die("a request of more than %d bytes", BUFFER);
    memcpy(to->data + to->size, data, size);
    to->size += size;
}

static void add_text(struct bytes *to, const char *text) { add(to, text, strlen(text)); }

static void add32(struct bytes *to, uint32_t number)
{
    uint8_t bytes[4];
    put32(bytes, number);
    add(to, bytes, 4);
}

static void add_varint(struct bytes *to, uint64_t number)
{
    uint8_t byte;
    do {
        byte = (uint8_t)((number & 0x7f) | (number > 0x7f ? 0x80 : 0));
        add(to, &byte, 1);
    } while (number >>= 7);
}

static void transmit(struct client *c)
{
    send_all(c->fd, out.data, out.size);
    out.size = body.size = 0;
}

static void add_word(const char *word, size_t size)
{
    char head[24];
    add(&out, head, (size_t)snprintf(head, sizeof head, "$%zu\r\n", size));
    add(&out, word, size);
    add(&out, "\r\n", 2);
}

/* A command whose words are parted by blanks, with the value behind it or without. */
static void send_words(struct client *c, int has_value, const char *format, ...)
{
    char line[256], head[24], *rest = NULL;
    int words = has_value;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *at = line; *at; at++) words += *at == ' ';
    add(&out, head, (size_t)snprintf(head, sizeof head, "*%d\r\n", words + 1));
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        add_word(word, strlen(word));
    if (has_value) add_word(value, (size_t)options.value_bytes);
    transmit(c);
}

static void add_field(const char *name, const char *text)
{
    uint8_t size = (uint8_t)strlen(text);
    add_text(&out, name);
    add(&out, &size, 1);
    add_text(&out, text);
}

static size_t begin_frame(struct client *c, enum frame type, int flags)
{
    uint8_t head[FRAME_HEAD] = {0, 0, 0, (uint8_t)type, (uint8_t)flags};
    put32(head + 5, c->stream);
    add(&out, head, sizeof head);
    return out.size;
}

static void end_frame(size_t began)
{
    put16(out.data + began - FRAME_HEAD + 1, (uint16_t)(out.size - began));
}

/* A message of the call at hand: what stands in `body`. */
static void add_message(struct client *c, int flags)
{
    size_t began = begin_frame(c, DATA, flags);
    add(&out, "\0", 1);
    add32(&out, (uint32_t)body.size);
    add(&out, body.data, body.size);
    end_frame(began);
}

/* Begin a call with `body` as its (first) message. */
static void send_call(struct client *c, const char *path)
{
    c->has_data = 0;
    size_t began = begin_frame(c, HEADERS, END_HEADERS);
    add(&out, "\x83\x86", 2); /* POST, http */
    add_field("\x04", path);
    add_field("\x01", options.addresses[0]);
    add_field("\x0f\x10", "application/grpc");
    add(&out, "\0\x02te", 4);
    add_field("", "trailers");
    end_frame(began);
    add_message(c, c->is_stream ? 0 : END_STREAM);
    transmit(c);
}

static void add_proto_bytes(int field, const char *data, size_t size)
{
    add_varint(&body, (uint64_t)field << 3 | 2);
    add_varint(&body, size);
    add(&body, data, size);
}

static void add_proto_number(int field, uint64_t number)
{
    add_varint(&body, (uint64_t)field << 3);
    add_varint(&body, number);
}

static void add_string(const char *text)
{
    add32(&body, (uint32_t)strlen(text));
    add_text(&body, text);
}

static void add_value(void)
{
    add32(&body, (uint32_t)options.value_bytes);
    add(&body, value, (size_t)options.value_bytes);
}

/* A request of ZooKeeper with the fields in `body`. */
static void send_zookeeper(struct client *c, int number, enum zookeeper type)
{
    add32(&out, (uint32_t)body.size + 8);
    add32(&out, (uint32_t)number);
    add32(&out, (uint32_t)type);
    add(&out, body.data, body.size);
    transmit(c);
}

static void send_zookeeper_create(struct client *c, const char *path, int flags)
{
    add_string(path);
    add_value();
    add32(&body, 1); /* one entry of the access list: all of it, to anyone */
    add32(&body, 31);
    add_string("world");
    add_string("anyone");
    add32(&body, (uint32_t)flags);
    send_zookeeper(c, 1, ZK_CREATE);
}

/* -- replies: `found`, and of what came the first message, which `drop` takes away */

/* Size of the RESP value that begins at `at`, 0 if it is not whole. */
static size_t resp_size(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *line = memchr(at, '\n', (size_t)(end - at));
    if (!line) return 0;
    size_t size = (size_t)(line - at) + 1;
    long number = strtol((const char *)at + 1, NULL, 10);
    if (*at == '$') {
        size += number < 0 ? 0 : (size_t)number + 2;
        return (size_t)(end - at) < size ? 0 : size;
    }
    if (*at != '*') return size;
    for (; number > 0; number--) {
        size_t one = at + size < end ? resp_size(at + size, end) : 0;
        if (!one) return 0;
        size += one;
    }
    return size;
}

static void drop(struct client *c, size_t size)
{
    memmove(c->in, c->in + size, c->used -= size);
}

static enum found failure(const uint8_t *text, size_t size)
{
    snprintf(error_text, sizeof error_text, "%.*s", (int)size, text);
    return FAILURE;
}

static enum found take_resp(struct client *c)
{
    size_t size = c->used ? resp_size(c->in, c->in + c->used) : 0;
    enum found found = REPLY;
    if (!size) return NOTHING;
    if (c->in[0] == '-') found = failure(c->in, size - 2);
    else if (size > 16 && !memcmp(c->in, "*3\r\n$7\r\nmessage", 15))
        found = memmem(c->in, size, "\"put\"", 5) ? NOTIFICATION : REPLY;
    drop(c, size);
    return found;
}

static enum found take_zookeeper(struct client *c)
{
    if (c->used < 4) return NOTHING;
    size_t size = 4 + get32(c->in);
    if (size > REPLY_MAX) die("a reply of %zu bytes", size);
    if (c->used < size) return NOTHING;
    enum found found = REPLY;
    if (!c->is_open) {
        if (!get32(c->in + 8)) die("no session");
        c->is_open = 1;
    } else if (get32(c->in + 4) == (uint32_t)ZK_OF_WATCH) found = NOTIFICATION;
    else if (get32(c->in + 16)) {
        snprintf(error_text, sizeof error_text, "error %d", (int)get32(c->in + 16));
        found = FAILURE;
    } else if (c->step == 0 && size > 24) { /* what was created, which `lock` deletes */
        snprintf(c->name, sizeof c->name, "%.*s", (int)get32(c->in + 20), (char *)c->in + 24);
    } else if (c->step == 1 && get32(c->in + 20) != 1) die("a lock has %u children", get32(c->in + 20));
    drop(c, size);
    return found;
}

static void count_messages(struct client *c, const uint8_t *data, size_t size)
{
    for (;;) {
        while (c->head_used < MESSAGE_HEAD && size) {
            c->head[c->head_used++] = *data++;
            size--;
            if (c->head_used == MESSAGE_HEAD) c->message_left = get32(c->head + 1);
        }
        if (c->head_used < MESSAGE_HEAD) return;
        size_t taken = size < c->message_left ? size : c->message_left;
        data += taken;
        size -= taken;
        if (c->message_left -= taken) return;
        c->head_used = 0;
        c->messages++;
    }
}

static enum found take_frame(struct client *c, uint8_t *frame, size_t size)
{
    int flags = frame[4], is_mine = get32(frame + 5) == c->stream;
    switch (frame[3]) {
    case DATA:
        if (!is_mine) break;
        c->has_data = 1;
        if (c->is_stream) count_messages(c, frame + FRAME_HEAD, size - FRAME_HEAD);
        break;
    case GOAWAY: die("etcd closes the connection");
    case RST_STREAM: return is_mine ? failure((const uint8_t *)"reset", 5) : NOTHING;
    case HEADERS:
        if (!is_mine || !(flags & END_STREAM)) break;
        c->stream += 2;
        return c->has_data && !c->is_stream ? REPLY : failure((const uint8_t *)"a call failed", 13);
    case SETTINGS: if (!(flags & ACK)) send_all(c->fd, "\0\0\0\4\1\0\0\0\0", FRAME_HEAD); break;
    case PING:
        if (flags & ACK) break;
        frame[4] = ACK;
        send_all(c->fd, frame, size);
    }
    return NOTHING;
}

static enum found take_grpc(struct client *c)
{
    enum found found = NOTHING;
    while (!found && !c->messages && c->used >= FRAME_HEAD) {
        size_t size = FRAME_HEAD + ((size_t)c->in[0] << 16 | get16(c->in + 1));
        if (size > REPLY_MAX) die("a frame of %zu bytes", size);
        if (c->used < size) break;
        found = take_frame(c, c->in, size);
        drop(c, size);
    }
    if (found || !c->messages) return found;
    c->messages--;
    return NOTIFICATION;
}

static enum found take(struct client *c)
{
    return options.protocol == NODE ? take_resp(c) : options.protocol == ETCD ? take_grpc(c) : take_zookeeper(c);
}

static void receive(struct client *c)
{
    ssize_t got = recv(c->fd, c->in + c->used, sizeof c->in - c->used, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die("the server closed connection %d", c->number);
    c->used += (size_t)got;
}

/* Wait for the next message of one client. */
static enum found await(struct client *c)
{
    uint64_t until_ns = now_ns() + PATIENCE_S * 1000000000ull;
    for (enum found found; now_ns() < until_ns; receive(c)) {
        if ((found = take(c))) return found;
        struct pollfd one = {.fd = c->fd, .events = POLLIN};
        poll(&one, 1, 1000);
    }
    die("no reply within %d s", PATIENCE_S);
}

#endif
