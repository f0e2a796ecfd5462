/* Load for a coordination service: writes or reads of random keys in a closed loop, one request at a
 * time on each connection, of a Millstream group (RESP) or of etcd (gRPC) by the same code.
 *
 *   coordgen [options] HOST:PORT...
 *     -e           speak etcd's protocol
 *     -n           elements of the namespace /bench, not registers (RESP only)
 *     -o OPERATION put, get, fill (each key once), or first: try a put each 10 ms, at one address after
 *                  the other, each on a connection of its own, until one is acknowledged; -> put.
 *                  With -n also create (sequential elements), count (one counter) and push (one queue)
 *     -c CLIENTS   connections, all to the first address              64
 *     -s SECONDS   how long; another WARM_UP_NS before are not counted 3
 *     -k KEYS      how many keys                                      10000
 *     -v BYTES     length of values                                   256
 *
 * Prints one JSON object. `first` says when the put was acknowledged, by CLOCK_MONOTONIC.
 */
#include "wire.h"

#include <sys/epoll.h>

enum { WARM_UP_NS = 300000000, TRY_NS = 10000000, PATIENCE_S = 60, KEY_BYTES = 12, REQUEST_MAX = 8192,
       REPLY_MAX = 16384, CLIENTS_MAX = 8192, ADDRESSES_MAX = 8, VALUE_MAX = 4096 };
enum frame { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4, FRAME_HEAD = 9 };

static struct {
    int is_etcd, is_tree, clients, keys, value_bytes;
    const char *operation;
    double seconds;
    char *addresses[ADDRESSES_MAX];
    int address_count;
} options = {.operation = "put", .clients = 64, .keys = 10000, .value_bytes = 256, .seconds = 3};

struct client {
    int fd, has_data; /* has_data: of the reply at hand a message has come */
    uint32_t stream;
    uint64_t sent_ns;
    size_t used;
    uint8_t in[REPLY_MAX];
};

static struct { /* of a request; the key's digits and the stream are put in each time */
    uint8_t bytes[REQUEST_MAX];
    size_t size, key_at, stream_at[2];
} request;

static uint64_t latency[LATENCIES], counted, uncounted, errors, seed = 88172645463325252u;
static char error_text[160];
static int poller, next_key;

/* -- requests */

static void add(const void *data, size_t size)
{
    memcpy(request.bytes + request.size, data, size);
    request.size += size;
}

static void add_text(const char *text) { add(text, strlen(text)); }

static void add_key(void)
{
    request.key_at = request.size + KEY_BYTES - 8;
    add("key:00000000", KEY_BYTES);
}

static void add_value(void)
{
    memset(request.bytes + request.size, 'v', (size_t)options.value_bytes);
    request.size += (size_t)options.value_bytes;
}

static int is(const char *operation) { return !strcmp(options.operation, operation); }

/* An element: /bench/key:00000000, or what the operation works on. */
static void make_of_tree(void)
{
    static const char *words[][2] = {
        {"put", "*3\r\n$3\r\nPUT\r\n$19\r\n/bench/"},
        {"first", "*3\r\n$3\r\nPUT\r\n$19\r\n/bench/"},
        {"get", "*2\r\n$3\r\nGET\r\n$19\r\n/bench/"},
        {"fill", "*4\r\n$6\r\nCREATE\r\n$6\r\nBINARY\r\n$19\r\n/bench/"},
        {"create", "*5\r\n$6\r\nCREATE\r\n$6\r\nBINARY\r\n$10\r\nSEQUENTIAL\r\n$24\r\n/bench/many/"},
        {"count", "*3\r\n$7\r\nCOUNTER\r\n$3\r\nINC\r\n$14\r\n/bench/counter\r\n"},
        {"push", "*4\r\n$5\r\nQUEUE\r\n$4\r\nPUSH\r\n$12\r\n/bench/queue\r\n"},
    };
    char head[64];
    unsigned at = 0;
    while (at < sizeof words / sizeof *words && !is(words[at][0])) at++;
    if (at == sizeof words / sizeof *words) die("no operation %s", options.operation);
    add_text(words[at][1]);
    request.key_at = REQUEST_MAX - KEY_BYTES; /* nowhere, where the operation has no key */
    if (!is("count") && !is("push")) {
        add_key();
        add_text("\r\n");
    }
    if (is("get") || is("count")) return;
    add(head, (size_t)snprintf(head, sizeof head, "$%d\r\n", options.value_bytes));
    add_value();
    add_text("\r\n");
}

static void make_resp(int is_put)
{
    char head[64];
    if (options.is_tree) return make_of_tree();
    add_text(is_put ? "*3\r\n$3\r\nSET\r\n$12\r\n" : "*2\r\n$3\r\nGET\r\n$12\r\n");
    add_key();
    add_text("\r\n");
    if (!is_put) return;
    add(head, (size_t)snprintf(head, sizeof head, "$%d\r\n", options.value_bytes));
    add_value();
    add_text("\r\n");
}

/* A frame's head, with a length that `end_frame` fills in. */
static size_t begin_frame(enum frame type, int flags, int number)
{
    uint8_t head[FRAME_HEAD] = {0, 0, 0, (uint8_t)type, (uint8_t)flags};
    request.stream_at[number] = request.size + 5;
    add(head, sizeof head);
    return request.size;
}

static void end_frame(size_t began)
{
    size_t size = request.size - began;
    put16(request.bytes + began - FRAME_HEAD + 1, (uint16_t)size);
}

/* A header field: HPACK's form for one that is not to be remembered, name given by its index. */
static void add_field(const char *name, const char *value)
{
    uint8_t size = (uint8_t)strlen(value);
    add_text(name);
    add(&size, 1);
    add_text(value);
}

static void add_number(uint64_t value)
{
    uint8_t byte;
    do {
        byte = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        add(&byte, 1);
    } while (value >>= 7);
}

static void make_grpc(int is_put)
{
    size_t began = begin_frame(HEADERS, END_HEADERS, 0);
    add("\x83\x86", 2); /* POST, http */
    add_field("\x04", is_put ? "/etcdserverpb.KV/Put" : "/etcdserverpb.KV/Range");
    add_field("\x01", options.addresses[0]);
    add_field("\x0f\x10", "application/grpc");
    add("\0\x02te", 4);
    add_field("", "trailers");
    end_frame(began);
    began = begin_frame(DATA, END_STREAM, 1);
    add("\0\0\0\0\0", 5);
    add("\x0a", 1); /* field 1, bytes */
    add_number(KEY_BYTES);
    add_key();
    if (is_put) {
        add("\x12", 1);
        add_number((uint64_t)options.value_bytes);
        add_value();
    }
    put32(request.bytes + began + 1, (uint32_t)(request.size - began - 5));
    end_frame(began);
}

static void send_request(struct client *c)
{
    char digits[16];
    int key = strcmp(options.operation, "fill") ? (int)(next_random(&seed) % (uint64_t)options.keys)
                                                : next_key++;
    snprintf(digits, sizeof digits, "%08d", key);
    memcpy(request.bytes + request.key_at, digits, 8);
    if (options.is_etcd) {
        put32(request.bytes + request.stream_at[0], c->stream);
        put32(request.bytes + request.stream_at[1], c->stream);
    }
    c->sent_ns = now_ns();
    send_all(c->fd, request.bytes, request.size);
}

/* -- replies: 1 if the one waited for is whole, 0 if not, -1 if it is an error */

static int take_resp(struct client *c)
{
    uint8_t *end = memchr(c->in, '\n', c->used);
    if (!end) return 0;
    size_t size = (size_t)(end - c->in) + 1;
    long length = c->in[0] == '$' ? strtol((char *)c->in + 1, NULL, 10) : -1;
    if (!strncmp((char *)c->in, "*1\r\n$", 5)) { /* one text in a list */
        uint8_t *inner = memchr(c->in + 4, '\n', c->used - 4);
        if (!inner) return 0;
        length = strtol((char *)c->in + 5, NULL, 10);
        size = (size_t)(inner - c->in) + 1;
    } else if (c->in[0] == '*' && c->used < 6) return 0;
    if (length >= 0) size += (size_t)length + 2;
    if (c->used < size) return 0;
    if (c->used > size) die("more bytes than one reply");
    c->used = 0;
    if (c->in[0] == '+' || c->in[0] == ':' || length >= 0) return 1;
    snprintf(error_text, sizeof error_text, "%.*s", (int)(end - c->in > 1 ? end - c->in - 1 : 0), c->in);
    return -1;
}

static int take_frame(struct client *c, uint8_t *frame, size_t size)
{
    int flags = frame[4], is_mine = get32(frame + 5) == c->stream;
    switch (frame[3]) {
    case DATA: c->has_data |= is_mine; break;
    case GOAWAY: die("etcd closes the connection");
    case RST_STREAM: return is_mine ? -1 : 0;
    case HEADERS: if (is_mine && (flags & END_STREAM)) return c->has_data ? 1 : -1; break;
    case SETTINGS: if (!(flags & ACK)) send_all(c->fd, "\0\0\0\4\1\0\0\0\0", FRAME_HEAD); break;
    case PING:
        if (flags & ACK) break;
        frame[4] = ACK;
        send_all(c->fd, frame, size);
    }
    return 0;
}

static int take_grpc(struct client *c)
{
    size_t at = 0, size;
    int found = 0;
    while (c->used - at >= FRAME_HEAD) {
        size = FRAME_HEAD + ((size_t)c->in[at] << 16 | get16(c->in + at + 1));
        if (size > REPLY_MAX) die("a frame of %zu bytes", size);
        if (c->used - at < size) break;
        int one = take_frame(c, c->in + at, size);
        if (one) found = one;
        at += size;
    }
    memmove(c->in, c->in + at, c->used -= at);
    if (found) {
        c->stream += 2;
        c->has_data = 0;
        if (found < 0) snprintf(error_text, sizeof error_text, "a call failed");
    }
    return found;
}

/* Returns -2 if the server is gone. */
static int receive(struct client *c)
{
    ssize_t got = recv(c->fd, c->in + c->used, sizeof c->in - c->used, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) return -2;
    c->used += (size_t)got;
    return options.is_etcd ? take_grpc(c) : take_resp(c);
}

/* -- connections */

static struct client *connect_to(const char *address)
{
    static const char hello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        "\0\0\6\4\0\0\0\0\0" "\0\4\x7f\xff\xff\xff" /* SETTINGS: a window for each stream */
        "\0\0\4\x8\0\0\0\0\0" "\x7f\xff\0\0";       /* WINDOW_UPDATE: one for all of them */
    char host[64];
    const char *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= sizeof host) die("not HOST:PORT: %s", address);
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    struct client *c = calloc(1, sizeof *c);
    c->fd = open_socket(host, atoi(colon + 1));
    c->stream = 1;
    if (options.is_etcd) send_all(c->fd, hello, sizeof hello - 1);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
    return c;
}

static void run_loop(void)
{
    struct epoll_event events[512];
    int is_fill = !strcmp(options.operation, "fill"), pending = 0;
    for (int i = 0; i < options.clients && !(is_fill && next_key >= options.keys); i++, pending++)
        send_request(connect_to(options.addresses[0]));
    uint64_t began_ns = now_ns() + (is_fill ? 0 : WARM_UP_NS);
    uint64_t until_ns = began_ns + (uint64_t)(options.seconds * 1e9), now = 0;
    while (pending) {
        int ready = epoll_wait(poller, events, 512, PATIENCE_S * 1000);
        if (ready <= 0) die("no reply within %d s", PATIENCE_S);
        for (int i = 0; i < ready; i++) {
            struct client *c = events[i].data.ptr;
            int found = receive(c);
            if (found == -2) die("the server closed the connection");
            if (!found) continue;
            now = now_ns();
            if (found < 0) errors++;
            else if (now >= began_ns && (is_fill || now < until_ns)) {
                latency[latency_of(now - c->sent_ns)]++;
                counted++;
            } else uncounted++;
            if (is_fill ? next_key < options.keys : now < until_ns) send_request(c);
            else pending--;
        }
    }
    double seconds = is_fill ? (double)(now - began_ns) / 1e9 : options.seconds;
    printf("{\"operations\": %llu, \"uncounted\": %llu, \"seconds\": %.6f, \"operations_per_s\": %.1f, \"p50_us\": %.1f, "
           "\"p99_us\": %.1f, \"errors\": %llu, \"error\": \"%s\", \"generator_cpu_s\": %.6f}\n",
           (unsigned long long)counted, (unsigned long long)uncounted, seconds, (double)counted / seconds,
           percentile_us(latency, counted, 0.5), percentile_us(latency, counted, 0.99),
           (unsigned long long)errors, error_text, cpu_s());
}

static void run_first(void)
{
    uint64_t began_ns = now_ns(), next_ns = began_ns;
    struct epoll_event event;
    for (unsigned tries = 0;;) {
        uint64_t now = now_ns();
        if (now - began_ns > PATIENCE_S * 1000000000ull) die("no write was acknowledged: %s", error_text);
        if (now >= next_ns) {
            send_request(connect_to(options.addresses[tries++ % (unsigned)options.address_count]));
            next_ns += TRY_NS;
        }
        if (epoll_wait(poller, &event, 1, 1) != 1) continue;
        struct client *c = event.data.ptr;
        int found = receive(c);
        if (found == 1) {
            printf("{\"acknowledged_ns\": %llu, \"tries\": %u}\n", (unsigned long long)now_ns(), tries);
            return;
        }
        if (found < 0) {
            close(c->fd);
            free(c);
        }
    }
}

static void parse_options(int argc, char **argv)
{
    int letter;
    while ((letter = getopt(argc, argv, "eno:c:s:k:v:")) != -1) {
        switch (letter) {
        case 'e': options.is_etcd = 1; break;
        case 'n': options.is_tree = 1; break;
        case 'o': options.operation = optarg; break;
        case 'c': options.clients = atoi(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'k': options.keys = atoi(optarg); break;
        case 'v': options.value_bytes = atoi(optarg); break;
        default: die("unknown option; see the head of coordgen.c");
        }
    }
    for (; optind < argc && options.address_count < ADDRESSES_MAX; optind++)
        options.addresses[options.address_count++] = argv[optind];
    if (!options.address_count || options.value_bytes > VALUE_MAX || options.clients > CLIENTS_MAX)
        die("usage: coordgen [options] HOST:PORT...");
}

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    poller = epoll_create1(0);
    (options.is_etcd ? make_grpc : make_resp)(strcmp(options.operation, "get") != 0);
    (strcmp(options.operation, "first") ? run_loop : run_first)();
    return 0;
}
