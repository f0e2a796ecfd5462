/* From a write to its reader: writes at a fixed rate on one connection, and on another one a reader
 * of the change stream, or of a Redis stream, that says how long after its sending each write came.
 *
 *   latency [options] HOST PORT
 *     -w WRITES/s  rate                                       10000
 *     -s SECONDS   how long                                   2
 *     -b BUCKET    bucket                                     default
 *     -p N         its partitions                             64
 *     -r           speak Redis's protocol
 *
 * Every write is of a new key; its value begins with the time of its sending. What earlier runs have
 * left is read before the first write; what is sent in the first half second is not counted. Prints one JSON object.
 */
#include "redis.h"

#include <pthread.h>
#include <sys/prctl.h>

enum {
    VALUE_BYTES = 256, BUFFER_BYTES = 1 << 20, FRAME_HEAD = 24 + 31,
    WARM_UP_NS = 500000000, REQUEST_MAX = 512, PATIENCE_S = 30, MUTATION = 0x57, OPEN = 0x50, STREAM_REQ = 0x53,
};

static struct {
    const char *host, *bucket;
    int port, is_redis;
    unsigned partitions;
    double rate, seconds;
} options = {.bucket = "default", .partitions = 64, .rate = 10000, .seconds = 2};

static uint64_t latency[LATENCIES], seen, counted, started_ns;
static uint64_t total, first; /* writes of this run, and the number before the first of them */
static double writer_late_s;

static void on_value(const uint8_t *value)
{
    char digits[STAMP_DIGITS + 1] = {0};
    memcpy(digits, value, STAMP_DIGITS);
    uint64_t sent_ns = strtoull(digits, NULL, 16), now = now_ns();
    if (sent_ns < started_ns) return; /* of an earlier run */
    seen++;
    if (sent_ns - started_ns < WARM_UP_NS) return;
    latency[latency_of(now - sent_ns)]++;
    counted++;
}

/* -- the writer */

static size_t put_write(uint8_t *at, uint64_t number)
{
    static uint8_t value[VALUE_BYTES];
    char stamp[STAMP_DIGITS + 1], key[32];
    memset(value, 'v', sizeof value);
    int key_bytes = snprintf(key, sizeof key, "bench-%llu", (unsigned long long)number);
    uint16_t partition = partition_of(key, (size_t)key_bytes, options.partitions);
    snprintf(stamp, sizeof stamp, "%016llx", (unsigned long long)now_ns());
    memcpy(value, stamp, STAMP_DIGITS);
    if (options.is_redis) return put_xadd(at, number, value, sizeof value);
    uint8_t extras[8] = {0};
    return put_request(at, 0x01, partition, 0, NULL, 0, extras, 8, key, (size_t)key_bytes, value,
                       sizeof value);
}

static void *write_all(void *argument)
{
    int fd = *(int *)argument;
    uint8_t request[REQUEST_MAX], replies[65536];
    uint64_t number = 0;
    prctl(PR_SET_TIMERSLACK, 1000UL);
    while (number < total) {
        uint64_t due_ns = started_ns + (uint64_t)((double)number / options.rate * 1e9);
        struct timespec due = {(time_t)(due_ns / 1000000000), (long)(due_ns % 1000000000)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
        send_all(fd, request, put_write(request, first + ++number));
        while (recv(fd, replies, sizeof replies, MSG_DONTWAIT) > 0) continue;
    }
    writer_late_s = (double)(now_ns() - started_ns) / 1e9 - options.seconds;
    return NULL;
}

/* -- the readers */

static int open_stream(void)
{
    int fd = open_socket(options.host, options.port);
    uint8_t open[8] = {0, 0, 0, 0, 0, 0, 0, 0x21}, extras[48] = {0}, request[HEADER + 48];
    enter_bucket(fd, options.bucket, WITH_EXTENSIONS);
    ask(fd, OPEN, open, 8, "bench-latency", 13, NULL, 0, NULL, 0);
    memset(extras + 16, 0xff, 8); /* without end */
    for (unsigned p = 0; p < options.partitions; p++)
        send_all(fd, request, put_request(request, STREAM_REQ, (uint16_t)p, p, NULL, 0, extras, 48,
                                          NULL, 0, NULL, 0));
    return fd;
}

static void read_stream(int fd)
{
    uint8_t *buffer = malloc(BUFFER_BYTES);
    size_t used = 0;
    while (seen < total) {
        ssize_t got = recv(fd, buffer + used, BUFFER_BYTES - used, 0);
        if (got <= 0) die("the server closed the connection: %s", got ? strerror(errno) : "end");
        used += (size_t)got;
        size_t at = 0, size;
        while (used - at >= HEADER && used - at >= (size = HEADER + get32(buffer + at + 8))) {
            const uint8_t *frame = buffer + at;
            if (frame[0] == RESPONSE && get16(frame + 6) != 0) die("a stream was refused");
            if (frame[0] == REQUEST && frame[1] == MUTATION)
                on_value(frame + FRAME_HEAD + get16(frame + 2));
            at += size;
        }
        used -= at;
        memmove(buffer, buffer + at, used);
    }
}

static void read_redis(int fd)
{
    struct replies replies = {.on_value = on_value};
    uint8_t question[256];
    while (seen < total) {
        uint64_t done = replies.done;
        send_all(fd, question, put_xread(question, first + seen, 1000, 1));
        while (replies.done == done) receive_replies(fd, &replies);
    }
}

static void parse_options(int argc, char **argv)
{
    int letter;
    while ((letter = getopt(argc, argv, "w:s:b:p:r")) != -1) {
        switch (letter) {
        case 'w': options.rate = atof(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'b': options.bucket = optarg; break;
        case 'p': options.partitions = (unsigned)atoi(optarg); break;
        case 'r': options.is_redis = 1; break;
        default: die("unknown option; see the head of latency.c");
        }
    }
    if (argc - optind != 2) die("usage: latency [options] HOST PORT");
    options.host = argv[optind];
    options.port = atoi(argv[optind + 1]);
}

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    int writing = open_socket(options.host, options.port);
    if (!options.is_redis) enter_bucket(writing, options.bucket, PLAIN);
    int reading = options.is_redis ? open_socket(options.host, options.port) : open_stream();
    started_ns = now_ns() + 50000000;
    first = started_ns / 1000;
    total = (uint64_t)(options.rate * options.seconds);
    alarm((unsigned)options.seconds + PATIENCE_S);
    pthread_t writer;
    if (pthread_create(&writer, NULL, write_all, &writing)) die("cannot start a thread");
    (options.is_redis ? read_redis : read_stream)(reading);
    pthread_join(writer, NULL);
    printf("{\"writes\": %llu, \"p50_us\": %.1f, \"p99_us\": %.1f, "
           "\"writer_late_s\": %.6f, \"generator_cpu_s\": %.6f}\n",
           (unsigned long long)total,
           percentile_us(latency, counted, 0.5), percentile_us(latency, counted, 0.99),
           writer_late_s, cpu_s());
    return 0;
}
