/* Closed-loop load on a memcached binary port, ours or memcached's, or SETs on a Redis port.
 *
 * Every connection sends a batch of P requests that was built before the clock started, waits for
 * its P replies, and sends the next one. P = 1 is the unpipelined case. Replies are checked: order
 * by opaque, status, and for reads the length of the value. Prints one JSON object.
 *
 *   loadgen HOST PORT [options]
 *     -o get|set|fill   what to do (fill: every key once, then stop)     default get
 *     -q                fill: with quiet requests, a NOOP behind each batch no
 *     -c N              connections                                       50
 *     -P N              requests per batch                                1
 *     -t N              threads                                           1
 *     -s SECONDS        how long                                          2
 *     -k N              number of keys (bench-000000000 ...)              100000
 *     -v BYTES          size of a value                                   256
 *     -b BUCKET         say HELLO and select this bucket first            no
 *     -p N              partitions: put the key's partition in the header 0 (always 0)
 *     -w N,N,...        get, set: only keys of these partitions           all
 *     -d LEVEL          durability level of writes (kv port)              none
 *     -r                speak Redis's protocol; writes only               no
 *     -e                values are JSON objects                           random letters
 */
#include "wire.h"

#include <pthread.h>
#include <sys/epoll.h>

enum {
    RECEIVE_BYTES = 256 * 1024,
    BATCH_REQUESTS = 4096, /* requests built ahead per connection; then they repeat */
    OVERHEAD_MAX = 96,     /* of a request beside its value */
    PARTITIONS_MAX = 1024,
    SECONDS_MAX = 600,     /* of which the operations are told second by second */
};

enum operation { GET, SET, FILL };

static struct {
    const char *host, *bucket;
    int port;
    enum operation operation;
    unsigned connections, depth, threads, keys, value_bytes, partitions, durability;
    double seconds;
    int json, is_redis, is_quiet, is_chosen;
    uint8_t chosen[PARTITIONS_MAX];
} options = {.connections = 50, .depth = 1, .threads = 1, .keys = 100000, .value_bytes = 256,
             .seconds = 2};

struct batch {
    uint8_t *data;
    size_t size;
    unsigned requests;
};

struct connection {
    int fd;
    unsigned batches, current;
    struct batch *batch;
    uint64_t next_key, last_key, random; /* fill: batches are built one at a time, in one place */
    size_t sent;          /* of the current batch */
    unsigned answered;    /* replies to the current batch */
    uint8_t *in;
    size_t in_used, skip; /* bytes held; bytes of a body still to come */
    uint64_t started_ns;
    int is_done, wants_write;
};

struct worker {
    pthread_t thread;
    unsigned index, count;
    struct connection *connections;
    int epoll;
    uint64_t operations, misses, errors, disorder, started_ns, ended_ns, longest_ns;
    uint64_t latency[LATENCIES];
    uint64_t each_second[SECONDS_MAX];
};

static uint8_t *value_pool;
enum { POOL_BYTES = 1 << 20 };

static size_t put_value(uint8_t *at, uint64_t *random)
{
    size_t size = options.value_bytes;
    if (options.json && size >= 16) {
        memcpy(at, "{\"text\": \"", 10);
        memcpy(at + 10, value_pool + next_random(random) % (POOL_BYTES - size), size - 12);
        memcpy(at + size - 2, "\"}", 2);
    } else {
        memcpy(at, value_pool + next_random(random) % (POOL_BYTES - size), size);
    }
    return size;
}

static size_t build_redis_set(uint8_t *at, const char *key, int key_bytes, uint64_t *random)
{
    int head = sprintf((char *)at, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%u\r\n", key_bytes, key,
                       options.value_bytes);
    size_t size = (size_t)head + put_value(at + head, random);
    memcpy(at + size, "\r\n", 2);
    return size + 2;
}

static size_t build_request(uint8_t *at, uint64_t key_number, uint32_t opaque, uint64_t *random)
{
    char key[32];
    int key_bytes = snprintf(key, sizeof key, "bench-%09llu", (unsigned long long)key_number);
    if (options.is_redis) return build_redis_set(at, key, key_bytes, random);
    uint16_t partition = partition_of(key, (size_t)key_bytes, options.partitions);
    if (options.operation == GET)
        return put_request(at, 0x00, partition, opaque, NULL, 0, NULL, 0, key, (size_t)key_bytes,
                           NULL, 0);
    static __thread uint8_t value[1 << 21];
    uint8_t framing[2] = {0x11, (uint8_t)options.durability};
    uint8_t extras[8] = {0};
    return put_request(at, options.is_quiet ? 0x11 : 0x01, partition, opaque, framing,
                       options.durability ? 2 : 0, extras, 8, key, (size_t)key_bytes, value,
                       put_value(value, random));
}

static uint64_t next_key(uint64_t *random)
{
    for (;;) {
        char key[32];
        uint64_t number = next_random(random) % options.keys;
        int bytes = snprintf(key, sizeof key, "bench-%09llu", (unsigned long long)number);
        if (!options.is_chosen || options.chosen[partition_of(key, (size_t)bytes, options.partitions)])
            return number;
    }
}

static void build_batch(struct batch *batch, uint64_t first, unsigned requests, uint64_t *random)
{
    batch->size = 0;
    for (batch->requests = 0; batch->requests < requests; batch->requests++) {
        uint64_t key = options.operation == FILL ? first++ : next_key(random);
        batch->size += build_request(batch->data + batch->size, key, batch->requests, random);
    }
    if (options.is_quiet) /* NOOP, whose reply comes when all are done */
        batch->size += put_request(batch->data + batch->size, 0x0a, 0, 0, NULL, 0, NULL, 0, NULL, 0,
                                   NULL, 0);
}

/* The next keys of a connection that fills. */
static void build_next(struct connection *c)
{
    unsigned left = (unsigned)(c->batches - c->current - 1);
    uint64_t last = c->next_key + options.depth;
    if (left == 0) last = c->last_key;
    build_batch(c->batch, c->next_key, (unsigned)(last - c->next_key), &c->random);
    c->next_key = last;
}

static void build_batches(struct connection *c, unsigned number)
{
    size_t batch_max = (OVERHEAD_MAX + options.value_bytes) * options.depth + OVERHEAD_MAX;
    c->random = 0x9e3779b97f4a7c15ull * (number + 1);
    if (options.operation == FILL) {
        c->next_key = (uint64_t)options.keys * number / options.connections;
        c->last_key = (uint64_t)options.keys * (number + 1) / options.connections;
        c->batches = (unsigned)((c->last_key - c->next_key + options.depth - 1) / options.depth);
        c->batch = calloc(1, sizeof *c->batch);
        c->batch->data = malloc(batch_max);
        c->is_done = c->batches == 0;
        if (!c->is_done) build_next(c);
        return;
    }
    c->batches = (BATCH_REQUESTS + options.depth - 1) / options.depth;
    c->batch = calloc(c->batches, sizeof *c->batch);
    for (unsigned b = 0; b < c->batches; b++) {
        struct batch *batch = &c->batch[b];
        batch->data = malloc(batch_max);
        build_batch(batch, 0, options.depth, &c->random);
        batch->data = realloc(batch->data, batch->size);
    }
}

/* Where the present batch of a connection is. */
static struct batch *batch_of(struct connection *c)
{
    return &c->batch[options.operation == FILL ? 0 : c->current];
}

static void watch(struct worker *w, struct connection *c, int wants_write)
{
    struct epoll_event event = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(w->epoll, EPOLL_CTL_MOD, c->fd, &event);
    c->wants_write = wants_write;
}

static void send_batch(struct worker *w, struct connection *c)
{
    struct batch *batch = batch_of(c);
    if (c->sent == 0) c->started_ns = now_ns();
    while (c->sent < batch->size) {
        ssize_t sent = send(c->fd, batch->data + c->sent, batch->size - c->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            if (!c->wants_write) watch(w, c, 1);
            return;
        }
        if (sent < 0) die("cannot send: %s", strerror(errno));
        c->sent += (size_t)sent;
    }
    if (c->wants_write) watch(w, c, 0);
}

static void count_reply(struct worker *w, struct connection *c, const uint8_t *head)
{
    uint16_t status = get16(head + 6);
    if (options.is_quiet) { /* a refusal, or the end of the batch */
        if (head[1] == 0x0a) c->answered = batch_of(c)->requests;
        w->errors += status != 0;
        return;
    }
    w->disorder += get32(head + 12) != c->answered || head[0] != RESPONSE;
    c->answered++;
    if (status == 1 && options.operation == GET)
        w->misses++;
    else if (status != 0)
        w->errors++;
    else if (options.operation == GET && get32(head + 8) != 4 + options.value_bytes)
        w->errors++;
}

/* Redis answers a SET by the line "+OK", an error by one that begins with a minus sign. */
static size_t take_lines(struct worker *w, struct connection *c)
{
    size_t at = 0;
    const uint8_t *end;
    while ((end = memchr(c->in + at, '\n', c->in_used - at))) {
        w->errors += c->in[at] != '+';
        c->answered++;
        at = (size_t)(end - c->in) + 1;
    }
    return at;
}

/* Walks the headers of what has come; bodies are stepped over, not copied. */
static void take_replies(struct worker *w, struct connection *c)
{
    size_t at = options.is_redis ? take_lines(w, c) : 0;
    while (!options.is_redis && c->in_used - at >= HEADER) {
        const uint8_t *head = c->in + at;
        size_t size = HEADER + get32(head + 8);
        count_reply(w, c, head);
        if (at + size > c->in_used) {
            c->skip = at + size - c->in_used;
            at = c->in_used;
            break;
        }
        at += size;
    }
    c->in_used -= at;
    if (c->in_used && at) memmove(c->in, c->in + at, c->in_used);
}

static void receive_some(struct worker *w, struct connection *c)
{
    ssize_t got = recv(c->fd, c->in + c->in_used, RECEIVE_BYTES - c->in_used, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die("the server closed a connection: %s", got ? strerror(errno) : "end");
    if (c->skip) { /* only ever with in_used == 0 */
        size_t skipped = (size_t)got < c->skip ? (size_t)got : c->skip;
        c->skip -= skipped;
        memmove(c->in, c->in + skipped, (size_t)got - skipped);
        got -= (ssize_t)skipped;
    }
    c->in_used += (size_t)got;
    take_replies(w, c);
}

/* The whole batch is answered: note it and begin the next. Returns 0 when this connection is done. */
static int begin_next(struct worker *w, struct connection *c, uint64_t deadline_ns)
{
    uint64_t now = now_ns();
    uint64_t second = (now - w->started_ns) / 1000000000;
    w->operations += batch_of(c)->requests;
    if (second < SECONDS_MAX) w->each_second[second] += batch_of(c)->requests;
    w->latency[latency_of(now - c->started_ns)]++;
    if (now - c->started_ns > w->longest_ns) w->longest_ns = now - c->started_ns;
    c->answered = 0;
    c->sent = 0;
    c->current++;
    if (options.operation == FILL ? c->current == c->batches : now >= deadline_ns) {
        c->is_done = 1;
        return 0;
    }
    if (options.operation == FILL) build_next(c);
    else if (c->current == c->batches) c->current = 0;
    send_batch(w, c);
    return 1;
}

static void *run_worker(void *argument)
{
    struct worker *w = argument;
    unsigned active = 0;
    w->started_ns = now_ns();
    uint64_t deadline = w->started_ns + (uint64_t)(options.seconds * 1e9);
    for (unsigned i = 0; i < w->count; i++)
        if (!w->connections[i].is_done) {
            active++;
            send_batch(w, &w->connections[i]);
        }
    struct epoll_event events[256];
    while (active) {
        int count = epoll_wait(w->epoll, events, 256, 10000);
        if (count == 0) die("no reply for 10 s");
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (c->is_done) continue;
            if (events[i].events & EPOLLOUT) send_batch(w, c);
            if (events[i].events & ~(unsigned)EPOLLOUT) receive_some(w, c);
            if (c->answered > batch_of(c)->requests) die("more replies than requests");
            if (c->answered == batch_of(c)->requests && !c->skip && !c->in_used)
                active -= !begin_next(w, c, deadline);
        }
    }
    w->ended_ns = now_ns();
    return NULL;
}

static void open_connections(struct worker *w)
{
    unsigned first = options.connections * w->index / options.threads;
    w->count = options.connections * (w->index + 1) / options.threads - first;
    w->connections = calloc(w->count, sizeof *w->connections);
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < w->count; i++) {
        struct connection *c = &w->connections[i];
        build_batches(c, first + i);
        c->in = malloc(RECEIVE_BYTES);
        c->fd = open_socket(options.host, options.port);
        if (options.bucket) enter_bucket(c->fd, options.bucket, PLAIN);
        fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(w->epoll, EPOLL_CTL_ADD, c->fd, &event);
    }
}

static void report(struct worker *workers, double cpu)
{
    struct worker sum = {0};
    uint64_t batches = 0;
    sum.started_ns = UINT64_MAX;
    for (unsigned i = 0; i < options.threads; i++) {
        struct worker *w = &workers[i];
        sum.operations += w->operations;
        sum.misses += w->misses;
        sum.errors += w->errors;
        sum.disorder += w->disorder;
        if (w->started_ns < sum.started_ns) sum.started_ns = w->started_ns;
        if (w->ended_ns > sum.ended_ns) sum.ended_ns = w->ended_ns;
        if (w->longest_ns > sum.longest_ns) sum.longest_ns = w->longest_ns;
        for (unsigned n = 0; n < SECONDS_MAX; n++) sum.each_second[n] += w->each_second[n];
        for (unsigned b = 0; b < LATENCIES; b++) {
            sum.latency[b] += w->latency[b];
            batches += w->latency[b];
        }
    }
    double seconds = (double)(sum.ended_ns - sum.started_ns) / 1e9;
    printf("{\"operations\": %llu, \"seconds\": %.6f, \"operations_per_s\": %.1f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"misses\": %llu, \"errors\": %llu, "
           "\"disorder\": %llu, \"generator_cpu_s\": %.6f, \"longest_s\": %.6f, \"each_second\": [",
           (unsigned long long)sum.operations, seconds, (double)sum.operations / seconds,
           percentile_us(sum.latency, batches, 0.5), percentile_us(sum.latency, batches, 0.99),
           (unsigned long long)sum.misses, (unsigned long long)sum.errors,
           (unsigned long long)sum.disorder, cpu, (double)sum.longest_ns / 1e9);
    for (unsigned n = 0; n < SECONDS_MAX && n < seconds; n++)
        printf("%s%llu", n ? ", " : "", (unsigned long long)sum.each_second[n]);
    printf("]}\n");
}

static void choose(const char *list)
{
    while (*list) {
        char *end;
        unsigned long partition = strtoul(list, &end, 10);
        if (end == list || partition >= PARTITIONS_MAX) die("no partitions: %s", list);
        options.chosen[partition] = 1;
        options.is_chosen = 1;
        list = *end == ',' ? end + 1 : end;
    }
}

static void parse_options(int argc, char **argv)
{
    int letter;
    while ((letter = getopt(argc, argv, "o:c:P:t:s:k:v:b:p:w:d:eqr")) != -1) {
        switch (letter) {
        case 'o':
            options.operation = !strcmp(optarg, "get") ? GET : !strcmp(optarg, "set") ? SET : FILL;
            break;
        case 'c': options.connections = (unsigned)atoi(optarg); break;
        case 'P': options.depth = (unsigned)atoi(optarg); break;
        case 't': options.threads = (unsigned)atoi(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'k': options.keys = (unsigned)atoi(optarg); break;
        case 'v': options.value_bytes = (unsigned)atoi(optarg); break;
        case 'b': options.bucket = optarg; break;
        case 'p': options.partitions = (unsigned)atoi(optarg); break;
        case 'w': choose(optarg); break;
        case 'd': options.durability = (unsigned)atoi(optarg); break;
        case 'e': options.json = 1; break;
        case 'q': options.is_quiet = 1; break;
        case 'r': options.is_redis = 1; break;
        default: die("unknown option; see the head of loadgen.c");
        }
    }
    if (argc - optind != 2) die("usage: loadgen [options] HOST PORT");
    options.host = argv[optind];
    options.port = atoi(argv[optind + 1]);
    if (!options.connections || !options.depth || !options.threads || !options.keys ||
        options.value_bytes > POOL_BYTES / 2 || options.partitions > PARTITIONS_MAX ||
        (options.is_chosen && (!options.partitions || options.operation == FILL)) || options.threads > options.connections ||
        (options.is_redis && (options.operation == GET || options.bucket)) ||
        (options.is_quiet && (options.operation != FILL || options.is_redis)))
        die("an option is out of range");
}

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    uint64_t random = 42;
    value_pool = malloc(POOL_BYTES);
    for (size_t i = 0; i < POOL_BYTES; i++)
        value_pool[i] = (uint8_t)('a' + next_random(&random) % 26);
    struct worker *workers = calloc(options.threads, sizeof *workers);
    for (unsigned i = 0; i < options.threads; i++) {
        workers[i].index = i;
        open_connections(&workers[i]);
    }
    double before = cpu_s();
    for (unsigned i = 0; i < options.threads; i++)
        pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]);
    for (unsigned i = 0; i < options.threads; i++) pthread_join(workers[i].thread, NULL);
    report(workers, cpu_s() - before);
    return 0;
}
