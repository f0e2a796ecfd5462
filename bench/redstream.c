/* A Redis stream, filled or read from its start: the peer of a bucket and of sink.c.
 *
 *   redstream fill|read HOST PORT ITEMS VALUE_BYTES
 *
 * `read` asks for COUNT entries at a time and keeps DEPTH questions under way, which the ids that
 * `fill` gave allow, so that the server never waits for its reader. Prints one JSON object.
 */
#include "redis.h"

enum { COUNT = 1000, DEPTH = 4, BATCH = 100, OVERHEAD_MAX = 128 };

static void fill(int fd, uint64_t items, size_t value_bytes)
{
    uint8_t *batch = malloc(BATCH * (value_bytes + OVERHEAD_MAX)), *value = malloc(value_bytes);
    uint8_t replies[4096];
    uint64_t random = 42, answered = 0;
    for (uint64_t sent = 0; sent < items;) {
        size_t size = 0;
        for (unsigned i = 0; i < BATCH && sent < items; i++) {
            for (size_t at = 0; at < value_bytes; at++)
                value[at] = (uint8_t)('a' + next_random(&random) % 26);
            size += put_xadd(batch + size, ++sent, value, value_bytes);
        }
        send_all(fd, batch, size);
        while (answered < 2 * sent) { /* a length line and the id */
            ssize_t got = recv(fd, replies, sizeof replies, 0);
            if (got <= 0) die("Redis closed the connection");
            for (ssize_t at = 0; at < got; at++) {
                if (replies[at] == '-' && (!at || replies[at - 1] == '\n'))
                    die("Redis: %.60s", replies + at);
                answered += replies[at] == '\n';
            }
        }
    }
    printf("{\"items\": %llu}\n", (unsigned long long)items);
}

static void read_all(int fd, uint64_t items)
{
    struct replies replies = {0};
    uint8_t question[256];
    uint64_t asked = 0, due = (items + COUNT - 1) / COUNT;
    uint64_t started_ns = now_ns();
    double before = cpu_s();
    while (replies.done < due) {
        while (asked < due && asked - replies.done < DEPTH) {
            send_all(fd, question, put_xread(question, asked * COUNT, COUNT, 0));
            asked++;
        }
        receive_replies(fd, &replies);
    }
    double seconds = (double)(now_ns() - started_ns) / 1e9;
    printf("{\"items\": %llu, \"seconds\": %.6f, \"items_per_s\": %.1f, \"sink_cpu_s\": %.6f}\n",
           (unsigned long long)replies.items, seconds, (double)replies.items / seconds,
           cpu_s() - before);
}

int main(int argc, char **argv)
{
    if (argc != 6) die("usage: redstream fill|read HOST PORT ITEMS VALUE_BYTES");
    int fd = open_socket(argv[2], atoi(argv[3]));
    uint64_t items = strtoull(argv[4], NULL, 10);
    if (!strcmp(argv[1], "fill")) fill(fd, items, (size_t)atoi(argv[5]));
    else read_all(fd, items);
    return 0;
}
