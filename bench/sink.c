/* A raw stream sink: opens a producer, streams every partition from 0 to its present high seqno,
 * and does nothing with what comes but walk the headers, count, check the order and acknowledge.
 *
 *   sink [options] HOST PORT
 *     -b BUCKET    bucket                                        default
 *     -w BYTES     flow control window; 0 switches it off        16 MiB
 *     -i SECONDS   stop after this long and report what came     wait for the end
 *     -r BYTES/s   read no faster than this (a slow consumer)    as fast as possible
 *     -g           as other clients ask: opaques that are no partition ids, no delete times
 *     -u           the same, and without the JSON bit
 *
 * Prints one JSON object. `errors` counts seqnos that do not ascend, changes outside a snapshot
 * marker, streams refused or ended for another reason than 0, and streams whose last snapshot
 * did not reach the high seqno asked for.
 */
#include "wire.h"

enum { PARTITIONS_MAX = 1024, BUFFER_BYTES = 1 << 20, FOREIGN = 0x5000 };
enum {
    GET_ALL_SEQNOS = 0x48, OPEN = 0x50, STREAM_REQ = 0x53, STREAM_END = 0x55, MARKER = 0x56,
    MUTATION = 0x57, DELETION = 0x58, EXPIRATION = 0x59, NOOP = 0x5c, BUFFER_ACK = 0x5d,
    CONTROL = 0x5e, SEQNO_ADVANCED = 0x64,
};

static struct {
    const char *host, *bucket;
    int port, foreign;
    enum features features;
    unsigned window;
    double seconds, bytes_per_s;
} options = {.bucket = "default", .window = 16 << 20, .features = WITH_EXTENSIONS};

static struct {
    uint64_t high, last, snap_start, snap_end;
    int is_open;
} streams[PARTITIONS_MAX];

static uint64_t items, deletions, markers, stream_bytes, noops, errors;
static unsigned streams_open, unacknowledged;

static void control(int fd, const char *key, const char *value)
{
    ask(fd, CONTROL, NULL, 0, key, strlen(key), value, strlen(value), NULL, 0);
}

static unsigned open_producer(int fd)
{
    uint8_t extras[8] = {0}, reply[PARTITIONS_MAX * 10];
    char window[16], name[32];
    put32(extras + 4, options.foreign ? 0x01 : 0x21); /* producer, include delete times */
    int name_bytes = snprintf(name, sizeof name, "bench-sink-%d", (int)getpid());
    ask(fd, OPEN, extras, 8, name, (size_t)name_bytes, NULL, 0, NULL, 0);
    snprintf(window, sizeof window, "%u", options.window);
    control(fd, "connection_buffer_size", window);
    control(fd, "enable_noop", "true");
    if (!options.foreign) control(fd, "enable_expiry_opcode", "true");
    size_t size = ask(fd, GET_ALL_SEQNOS, NULL, 0, NULL, 0, NULL, 0, reply, sizeof reply);
    for (size_t at = 0; at < size; at += 10) {
        if (get16(reply + at) >= PARTITIONS_MAX) die("too many partitions");
        streams[get16(reply + at)].high = get64(reply + at + 2);
    }
    return (unsigned)(size / 10);
}

static void request_streams(int fd, unsigned partitions)
{
    uint8_t *requests = malloc((size_t)partitions * (HEADER + 48)), extras[48];
    size_t size = 0;
    for (unsigned p = 0; p < partitions; p++) {
        memset(extras, 0, sizeof extras);
        put64(extras + 16, streams[p].high);
        size += put_request(requests + size, STREAM_REQ, (uint16_t)p,
                            p + (options.foreign ? FOREIGN : 0), NULL, 0, extras, 48, NULL, 0,
                            NULL, 0);
        streams[p].is_open = 1;
    }
    streams_open = partitions;
    send_all(fd, requests, size);
    free(requests);
}

static void on_change(const uint8_t *frame, unsigned p)
{
    uint64_t seqno = get64(frame + HEADER);
    items++;
    deletions += frame[1] != MUTATION;
    errors += seqno <= streams[p].last || seqno > streams[p].snap_end;
    streams[p].last = seqno;
}

static void on_end(const uint8_t *frame, unsigned p)
{
    errors += get32(frame + HEADER) != 0 || streams[p].last < streams[p].high;
    streams_open -= (unsigned)streams[p].is_open;
    streams[p].is_open = 0;
}

static void on_response(const uint8_t *frame)
{
    unsigned p = get32(frame + 12) - (options.foreign ? FOREIGN : 0);
    if (frame[1] == STREAM_REQ && get16(frame + 6) != 0) {
        errors++;
        if (p < PARTITIONS_MAX) {
            streams_open -= (unsigned)streams[p].is_open;
            streams[p].is_open = 0;
        }
    }
}

/* `frame` holds at least the header and 28 bytes of the body, or the whole frame. */
static void on_frame(int fd, const uint8_t *frame, size_t size)
{
    if (frame[0] == RESPONSE) {
        on_response(frame);
        return;
    }
    unsigned p = get16(frame + 6);
    if (frame[0] != REQUEST || p >= PARTITIONS_MAX) die("a frame of magic 0x%02x", frame[0]);
    if (frame[1] == NOOP) {
        uint8_t reply[HEADER] = {RESPONSE, NOOP};
        memcpy(reply + 12, frame + 12, 4);
        send_all(fd, reply, HEADER);
        noops++;
        return;
    }
    unacknowledged += (unsigned)size;
    stream_bytes += size;
    errors += get32(frame + 12) != p + (options.foreign ? FOREIGN : 0);
    switch (frame[1]) {
    case MUTATION:
    case DELETION:
    case EXPIRATION: on_change(frame, p); break;
    case MARKER:
        streams[p].snap_start = get64(frame + HEADER);
        streams[p].snap_end = get64(frame + HEADER + 8);
        markers++;
        break;
    case STREAM_END: on_end(frame, p); break;
    case SEQNO_ADVANCED: break;
    default: die("an unexpected message 0x%02x", frame[1]);
    }
}

static void acknowledge(int fd)
{
    uint8_t frame[HEADER + 4], extras[4];
    if (!options.window || unacknowledged < options.window / 4) return;
    put32(extras, unacknowledged);
    put_request(frame, BUFFER_ACK, 0, 0, NULL, 0, extras, 4, NULL, 0, NULL, 0);
    send_all(fd, frame, sizeof frame);
    unacknowledged = 0;
}

static void rest(uint64_t started_ns)
{
    if (options.bytes_per_s <= 0) return;
    double due_s = (double)stream_bytes / options.bytes_per_s;
    double ahead_s = due_s - (double)(now_ns() - started_ns) / 1e9;
    if (ahead_s > 0) {
        struct timespec t = {(time_t)ahead_s, (long)((ahead_s - (double)(time_t)ahead_s) * 1e9)};
        nanosleep(&t, NULL);
    }
}

static void read_streams(int fd, uint64_t started_ns)
{
    uint8_t *buffer = malloc(BUFFER_BYTES);
    size_t used = 0, skip = 0;
    uint64_t until_ns = started_ns + (uint64_t)(options.seconds * 1e9);
    while (streams_open && (options.seconds <= 0 || now_ns() < until_ns)) {
        ssize_t got = recv(fd, buffer + used, BUFFER_BYTES - used, 0);
        if (got <= 0) die("the server closed the connection: %s", got ? strerror(errno) : "end");
        used += (size_t)got;
        size_t at = skip < used ? skip : used;
        skip -= at;
        while (used - at >= HEADER) {
            size_t size = HEADER + get32(buffer + at + 8);
            if (used - at < size && used - at < HEADER + 28) break;
            on_frame(fd, buffer + at, size);
            if (used - at < size) {
                skip = size - (used - at);
                at = used;
                break;
            }
            at += size;
        }
        used -= at;
        memmove(buffer, buffer + at, used);
        acknowledge(fd);
        rest(started_ns);
    }
    free(buffer);
}

static void parse_options(int argc, char **argv)
{
    int letter;
    while ((letter = getopt(argc, argv, "b:w:i:r:gu")) != -1) {
        switch (letter) {
        case 'b': options.bucket = optarg; break;
        case 'w': options.window = (unsigned)atoi(optarg); break;
        case 'i': options.seconds = atof(optarg); break;
        case 'r': options.bytes_per_s = atof(optarg); break;
        case 'g':
        case 'u':
            options.foreign = 1;
            options.features = letter == 'g' ? WITH_JSON : PLAIN;
            break;
        default: die("unknown option; see the head of sink.c");
        }
    }
    if (argc - optind != 2) die("usage: sink [options] HOST PORT");
    options.host = argv[optind];
    options.port = atoi(argv[optind + 1]);
}

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    int fd = open_socket(options.host, options.port);
    enter_bucket(fd, options.bucket, options.features);
    unsigned partitions = open_producer(fd);
    uint64_t started_ns = now_ns();
    double before = cpu_s();
    request_streams(fd, partitions);
    read_streams(fd, started_ns);
    uint64_t ended_ns = now_ns();
    double seconds = (double)(ended_ns - started_ns) / 1e9;
    printf("{\"items\": %llu, \"deletions\": %llu, \"markers\": %llu, \"bytes\": %llu, "
           "\"noops\": %llu, \"seconds\": %.6f, \"items_per_s\": %.1f, \"errors\": %llu, "
           "\"sink_cpu_s\": %.6f, \"started_ns\": %llu, \"ended_ns\": %llu}\n",
           (unsigned long long)items, (unsigned long long)deletions, (unsigned long long)markers,
           (unsigned long long)stream_bytes, (unsigned long long)noops, seconds,
           (double)items / seconds, (unsigned long long)errors, cpu_s() - before,
           (unsigned long long)started_ns, (unsigned long long)ended_ns);
    return errors != 0;
}
