/* Load for what a coordination service coordinates with: locks, ephemeral sequential elements, watches
 * and idle sessions, of a Millstream group (RESP), of etcd (gRPC) or of ZooKeeper by the same code.
 *
 *   primgen [options] HOST:PORT...
 *     -p PROTOCOL  node, etcd or zookeeper                            node
 *     -o OPERATION lock, create, watch or idle                        lock
 *     -c CLIENTS   sessions, or who watches                           64
 *     -s SECONDS   how long; for lock and create WARM_UP_NS before are not counted  3
 *     -v BYTES     length of values                                   256
 *
 * What one operation is, the whole of it timed:
 *   lock    acquire and release, each client a lock of its own, one after the other. LOCK and LOCK
 *           RELEASE; etcd's lock service; ZooKeeper's recipe (create an ephemeral sequential child,
 *           list the children, delete it).
 *   create  an element that ends with the session, named by a number of its own. etcd has none such:
 *           a Put with a lease, whose revision is the number.
 *   watch   one write, until the last of the CLIENTS who watch its element has heard of it; the next
 *           write follows then. They are spread over all addresses, the writer is at the first.
 * idle: CLIENTS sessions, a sign of life by each three times in TTL_S. A line {"opened": ...} is printed
 * as soon as all are open, and SECONDS later the program ends.
 *
 * Sessions are at the first address. Prints one JSON object.
 */
#define _GNU_SOURCE /* memmem */
#include "speakers.h"

#include <sys/epoll.h>

static uint64_t latency[LATENCIES], counted, uncounted, errors, lease_base;
static int poller;

/* -- clients and their sessions */

static uint64_t lease_of(const struct client *c) { return lease_base + (uint64_t)c->number; }

static struct client *connect_to(const char *address, int number)
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
    c->number = number;
    c->stream = 1;
    if (options.protocol == ETCD) send_all(c->fd, hello, sizeof hello - 1);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
    return c;
}

static void send_open(struct client *c)
{
    if (options.protocol == NODE) send_words(c, 0, "SESSION OPEN TTL %d", TTL_S * 1000);
    else if (options.protocol == ETCD) { /* who only works renews no lease */
        add_proto_number(1, is("idle") ? TTL_S : LONG_TTL_S);
        add_proto_number(2, lease_of(c));
        send_call(c, "/etcdserverpb.Lease/LeaseGrant");
    } else {
        static const uint8_t zeros[17];
        add32(&out, 4 + 8 + 4 + 8 + 4 + 16 + 1);
        add(&out, zeros, 4 + 8); /* version, last seen */
        add32(&out, TTL_S * 1000);
        add(&out, zeros, 8);
        add32(&out, 16);
        add(&out, zeros, 17);
        transmit(c);
    }
}

static void open_session(struct client *c)
{
    send_open(c);
    if (await(c) != REPLY) die("no session: %s", error_text);
}

static void close_session(struct client *c)
{
    if (options.protocol == NODE) send_words(c, 0, "SESSION CLOSE");
    else if (options.protocol == ETCD) {
        add_proto_number(1, lease_of(c));
        send_call(c, "/etcdserverpb.Lease/LeaseRevoke");
    } else send_zookeeper(c, 1, ZK_CLOSE);
    if (await(c) != REPLY) die("the session does not end: %s", error_text);
}

static void send_sign_of_life(struct client *c)
{
    if (options.protocol == NODE) send_words(c, 0, "SESSION PING");
    else if (options.protocol == ZOOKEEPER) send_zookeeper(c, ZK_OF_PING, ZK_PING);
    else {
        int is_first = !c->is_stream;
        c->is_stream = 1;
        add_proto_number(1, lease_of(c));
        if (is_first) send_call(c, "/etcdserverpb.Lease/LeaseKeepAlive");
        else {
            add_message(c, 0);
            transmit(c);
        }
    }
}

/* Make an element; it may be there. */
static void make(struct client *c, const char *path)
{
    if (options.protocol == ETCD) return;
    c->step = -1;
    if (options.protocol == NODE) send_words(c, 1, "CREATE BINARY %s", path);
    else send_zookeeper_create(c, path, 0);
    await(c);
    c->step = 0;
}

static void make_namespace(struct client *c)
{
    static const char *words[] = {"CREATENAMESPACE /bench", "CONFIG SET /bench LIMIT.CHILDREN 1000000"};
    for (unsigned i = 0; options.protocol == NODE && i < sizeof words / sizeof *words; i++) {
        send_words(c, 0, "%s", words[i]);
        if (await(c) == FAILURE) die("%s: %s", words[i], error_text);
    }
    if (options.protocol == ZOOKEEPER) make(c, "/bench");
}

/* -- lock and create */

static void lock_step(struct client *c)
{
    char path[NAME_MAX_BYTES];
    snprintf(path, sizeof path, "/bench/lock-%04d%s", c->number,
             options.protocol == ZOOKEEPER && c->step == 0 ? "/n-" : "");
    if (options.protocol == NODE)
        send_words(c, 0, c->step ? "LOCK RELEASE %s" : "LOCK WRITE %s TOKEN", path);
    else if (options.protocol == ETCD && c->step == 0) {
        add_proto_bytes(1, path, strlen(path));
        add_proto_number(2, lease_of(c));
        send_call(c, "/v3lockpb.Lock/Lock");
    } else if (options.protocol == ETCD) {
        char key[2 * NAME_MAX_BYTES];
        int size = snprintf(key, sizeof key, "%s/%llx", path, (unsigned long long)lease_of(c));
        add_proto_bytes(1, key, (size_t)size);
        send_call(c, "/v3lockpb.Lock/Unlock");
    } else if (c->step == 0) send_zookeeper_create(c, path, ZK_EPHEMERAL_SEQUENTIAL);
    else {
        add_string(c->step == 1 ? path : c->name);
        if (c->step == 1) add(&body, "\0", 1); /* no watch */
        else add32(&body, (uint32_t)-1);       /* any version */
        send_zookeeper(c, 1, c->step == 1 ? ZK_CHILDREN : ZK_DELETE);
    }
}

static void create_step(struct client *c)
{
    static const char path[] = "/bench/many/n-";
    if (options.protocol == NODE) send_words(c, 1, "CREATE BINARY EPHEMERAL SEQUENTIAL %s", path);
    else if (options.protocol == ZOOKEEPER) send_zookeeper_create(c, path, ZK_EPHEMERAL_SEQUENTIAL);
    else {
        char key[NAME_MAX_BYTES];
        int size = snprintf(key, sizeof key, "%s%04d-%08u", path, c->number, c->made++);
        add_proto_bytes(1, key, (size_t)size);
        add_proto_bytes(2, value, (size_t)options.value_bytes);
        add_proto_number(3, lease_of(c));
        send_call(c, "/etcdserverpb.KV/Put");
    }
}

static void step(struct client *c)
{
    if (c->step == 0) c->sent_ns = now_ns();
    (is("lock") ? lock_step : create_step)(c);
}

static struct client **open_clients(void)
{
    struct client **clients = calloc((size_t)options.clients, sizeof *clients);
    for (int i = 0; i < options.clients; i++) {
        char path[NAME_MAX_BYTES];
        struct client *c = clients[i] = connect_to(options.addresses[0], i);
        open_session(c);
        if (i == 0) make_namespace(c);
        snprintf(path, sizeof path, "/bench/lock-%04d", i);
        if (is("lock")) make(c, path);
        else if (i == 0) make(c, "/bench/many");
    }
    return clients;
}

static void print_figures(double seconds)
{
    printf("{\"operations\": %llu, \"uncounted\": %llu, \"seconds\": %.6f, \"operations_per_s\": %.1f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"errors\": %llu, \"error\": \"%s\", \"generator_cpu_s\": %.6f}\n",
           (unsigned long long)counted, (unsigned long long)uncounted, seconds, (double)counted / seconds,
           percentile_us(latency, counted, 0.5), percentile_us(latency, counted, 0.99),
           (unsigned long long)errors, error_text, cpu_s());
}

static void run_steps(void)
{
    struct client **clients = open_clients();
    struct epoll_event events[EVENTS];
    int pending = options.clients, steps = is("create") ? 1 : options.protocol == ZOOKEEPER ? 3 : 2;
    error_text[0] = 0; /* what was there already is no error */
    uint64_t began_ns = now_ns() + WARM_UP_NS, until_ns = began_ns + (uint64_t)(options.seconds * 1e9);
    for (int i = 0; i < options.clients; i++) step(clients[i]);
    while (pending) {
        int ready = epoll_wait(poller, events, EVENTS, PATIENCE_S * 1000);
        if (ready <= 0) die("no reply within %d s", PATIENCE_S);
        for (int i = 0; i < ready; i++) {
            struct client *c = events[i].data.ptr;
            receive(c);
            for (enum found found; (found = take(c));) {
                uint64_t now = now_ns();
                if (found == FAILURE) errors++;
                if (++c->step < steps && found != FAILURE) {
                    step(c);
                    continue;
                }
                c->step = 0;
                if (found != FAILURE && now >= began_ns && now < until_ns) {
                    latency[latency_of(now - c->sent_ns)]++;
                    counted++;
                } else uncounted++;
                if (now < until_ns) step(c);
                else pending--;
            }
        }
    }
    print_figures(options.seconds);
    fflush(stdout);
    for (int i = 0; i < options.clients; i++) close_session(clients[i]);
}

/* -- watch */

static void begin_watch(struct client *c, const char *path)
{
    if (options.protocol == NODE) {
        send_words(c, 0, "SUBSCRIBE %s", path);
        if (await(c) != REPLY) die("no subscription: %s", error_text); /* then `start` comes */
    } else if (options.protocol == ETCD) {
        uint8_t head[2] = {0x0a, (uint8_t)(strlen(path) + 2)}; /* create_request */
        c->is_stream = 1;
        add(&body, head, 2);
        add_proto_bytes(1, path, strlen(path));
        send_call(c, "/etcdserverpb.Watch/Watch");
    } else {
        open_session(c);
        c->step = -1;
        add_string(path);
        add32(&body, 0); /* persistent */
        send_zookeeper(c, 1, ZK_ADD_WATCH);
    }
    if (await(c) == FAILURE) die("no watch: %s", error_text);
}

static void send_write(struct client *c, const char *path)
{
    c->sent_ns = now_ns();
    if (options.protocol == NODE) send_words(c, 1, "PUT %s", path);
    else if (options.protocol == ETCD) {
        add_proto_bytes(1, path, strlen(path));
        add_proto_bytes(2, value, (size_t)options.value_bytes);
        send_call(c, "/etcdserverpb.KV/Put");
    } else {
        add_string(path);
        add_value();
        add32(&body, (uint32_t)-1);
        send_zookeeper(c, 1, ZK_SET);
    }
}

/* Wait until everybody has heard of a write and its writer has the answer; when the last one heard. */
static uint64_t hear_all(void)
{
    struct epoll_event events[EVENTS];
    uint64_t last_ns = 0;
    for (int heard = 0, is_answered = 0; heard < options.clients || !is_answered;) {
        int ready = epoll_wait(poller, events, EVENTS, PATIENCE_S * 1000);
        if (ready <= 0) die("%d of %d heard of a write within %d s", heard, options.clients, PATIENCE_S);
        for (int i = 0; i < ready; i++) {
            struct client *c = events[i].data.ptr;
            receive(c);
            for (enum found found; (found = take(c));) {
                if (found == FAILURE) die("a write or a watch failed: %s", error_text);
                if (found == NOTIFICATION) {
                    last_ns = now_ns();
                    heard++;
                } else if (c->number < 0) is_answered = 1;
            }
        }
        if (heard > options.clients) die("%d heard of a write, of %d", heard, options.clients);
    }
    return last_ns;
}

static void run_watch(void)
{
    static const char path[] = "/bench/watched";
    struct client *writer = connect_to(options.addresses[0], -1);
    if (options.protocol == ZOOKEEPER) open_session(writer);
    make_namespace(writer);
    make(writer, path);
    writer->step = -1;
    for (int i = 0; i < options.clients; i++)
        begin_watch(connect_to(options.addresses[i % options.address_count], i), path);
    error_text[0] = 0;
    uint64_t began_ns = now_ns(), until_ns = began_ns + (uint64_t)(options.seconds * 1e9), now = began_ns;
    while (now < until_ns) {
        send_write(writer, path);
        now = hear_all();
        latency[latency_of(now - writer->sent_ns)]++;
        counted++;
    }
    print_figures((double)(now - began_ns) / 1e9);
}

/* -- idle */

/* Show of those that are open and whose time has come that they live, and take what they hear. */
static void keep(struct client **clients, int open, int *next, int timeout_ms)
{
    struct epoll_event events[EVENTS];
    uint64_t now = now_ns();
    while (clients[*next]->due_ns <= now) {
        struct client *c = clients[*next];
        send_sign_of_life(c);
        c->due_ns = now + TTL_S * 1000000000ull / 3;
        *next = (*next + 1) % open;
    }
    int ready = epoll_wait(poller, events, EVENTS, timeout_ms);
    for (int i = 0; i < ready; i++) {
        struct client *c = events[i].data.ptr;
        receive(c);
        for (enum found found; (found = take(c));)
            if (found == FAILURE) errors++;
            else counted++;
    }
}

static void run_idle(void)
{
    struct client **clients = calloc((size_t)options.clients, sizeof *clients);
    uint64_t began_ns = now_ns();
    int next = 0;
    for (int open = 0, end; open < options.clients;) {
        end = open + OPENING < options.clients ? open + OPENING : options.clients;
        for (int i = open; i < end; i++) send_open(clients[i] = connect_to(options.addresses[0], i));
        for (; open < end; open++) {
            if (await(clients[open]) != REPLY) die("no session: %s", error_text);
            clients[open]->step = -1;
            clients[open]->due_ns = now_ns() + TTL_S * 1000000000ull / 3;
        }
        keep(clients, open, &next, 0);
    }
    printf("{\"opened\": %d, \"seconds\": %.3f}\n", options.clients, (double)(now_ns() - began_ns) / 1e9);
    fflush(stdout);
    counted = 0;
    uint64_t open_ns = now_ns(), until_ns = open_ns + (uint64_t)(options.seconds * 1e9);
    while (now_ns() < until_ns) keep(clients, options.clients, &next, 5);
    print_figures(options.seconds);
}

static void parse_options(int argc, char **argv)
{
    static const char *names[] = {"node", "etcd", "zookeeper"};
    int letter, is_known = 1;
    while ((letter = getopt(argc, argv, "p:o:c:s:v:")) != -1) {
        switch (letter) {
        case 'p':
            is_known = 0;
            for (int i = 0; i < 3; i++)
                if (!strcmp(optarg, names[i])) is_known = 1, options.protocol = (enum protocol)i;
            break;
        case 'o': options.operation = optarg; break;
        case 'c': options.clients = atoi(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'v': options.value_bytes = atoi(optarg); break;
        default: die("unknown option; see the head of primgen.c");
        }
    }
    for (; optind < argc && options.address_count < ADDRESSES_MAX; optind++)
        options.addresses[options.address_count++] = argv[optind];
    if (!options.address_count || options.value_bytes > VALUE_MAX || options.clients > CLIENTS_MAX || !is_known)
        die("usage: primgen [options] HOST:PORT...");
}

int main(int argc, char **argv)
{
    struct rlimit files;
    parse_options(argc, argv);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    lease_base = (now_ns() & 0xffffffffffull) << 16; /* no other run has the same */
    memset(value, 'v', sizeof value);
    poller = epoll_create1(0);
    if (is("lock") || is("create")) run_steps();
    else if (is("watch")) run_watch();
    else if (is("idle")) run_idle();
    else die("no operation %s", options.operation);
    return 0;
}
