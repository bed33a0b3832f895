/* A closed-loop HTTP/1.1 load generator that reads every byte of every answer.
 *
 *     load --port P --path /v1/completions --bodies FILE --connections C
 *          --warm-up SECONDS --seconds SECONDS [--events N]
 *
 * One thread, one epoll. C connections to 127.0.0.1:P each send the next body of FILE (one a line,
 * in turn) as soon as their last answer has ended. What began in the warm-up has no latency here.
 *
 * An answer is good if its status is 200, its framing is whole and its body ends as it should: with
 * N events of which the last is [DONE] where `--events` is given, with `}` otherwise. The shortest
 * and the longest body are told, so that the caller can compare them with what the engine sent.
 *
 * Prints one JSON object. Times are microseconds; `first` is the time to the first byte of the
 * body, `gap` between two reads of one stream that brought events.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_EVENTS = 256, HEAD_SIZE = 16384, TAIL_SIZE = 14, LINE_SIZE = 32 };
static const char LAST_EVENT[] = "data: [DONE]\n\n"; /* TAIL_SIZE bytes */

/* Where in an answer the next byte stands. */
enum place { HEAD, SIZED_BODY, CHUNK_SIZE, CHUNK_BYTES, CHUNK_END, TRAILER };

struct request {
    char *bytes;
    size_t length;
};

struct connection {
    int fd;
    bool writing;                  /* epoll watches for room to send */
    struct request *request;
    size_t sent;
    uint64_t began, first, last;   /* of the request, its first body byte, its latest events */
    enum place place;
    char head[HEAD_SIZE];
    size_t head_used;
    int status;
    bool closes;
    size_t left;                   /* of the sized body, or of the chunk */
    char line[LINE_SIZE];          /* of a chunk's size, or of the trailer */
    size_t line_used;
    size_t body_length;
    char tail[TAIL_SIZE];          /* the last bytes of the body */
    int events;
    bool after_newline;
};

struct samples {
    uint32_t *values;
    size_t count, size;
};

static struct options {
    int port, connections, events;
    double warm_up, seconds;
    const char *path, *bodies;
} options = {.connections = 1, .warm_up = 0.5, .seconds = 2, .path = "/v1/completions"};

static struct request *requests;
static size_t request_count, next_request;
static struct sockaddr_in target;
static int poller;
static uint64_t window_begins, window_ends;
static struct samples latencies, first_bytes, gaps;
static size_t shortest = SIZE_MAX, longest;
/* `all_` counts warm-up too: what a router's CPU time is divided by. */
static unsigned long all_answers, all_events, window_events, bad_status, bad_body, broken;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static bool in_window(uint64_t at) { return at >= window_begins && at < window_ends; }

static void add_sample(struct samples *samples, uint64_t nanoseconds) {
    if (samples->count == samples->size) {
        samples->size = samples->size ? samples->size * 2 : 65536;
        samples->values = realloc(samples->values, samples->size * sizeof *samples->values);
        if (samples->values == NULL) abort();
    }
    samples->values[samples->count++] = (uint32_t)(nanoseconds / 1000);
}

/* ---- sending ----------------------------------------------------------------------------- */

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void watch(struct connection *c, bool writing) {
    if (c->writing == writing) return;
    c->writing = writing;
    struct epoll_event wanted = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &wanted);
}

static void next_answer(struct connection *c) {
    c->request = &requests[next_request++ % request_count];
    c->sent = 0;
    c->began = now_ns();
    c->first = c->last = 0;
    c->place = HEAD;
    c->head_used = c->line_used = c->left = c->body_length = 0;
    c->status = c->events = 0;
    c->closes = c->after_newline = false;
    memset(c->tail, 0, sizeof c->tail);
}

static void connect_anew(struct connection *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) fail("socket");
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (struct sockaddr *)&target, sizeof target) != 0 && errno != EINPROGRESS)
        fail("connect");
    struct epoll_event wanted = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    c->writing = true;
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &wanted);
    next_answer(c);
}

static void break_off(struct connection *c) {
    broken++;
    if (broken > 1000) {
        fprintf(stderr, "load: over 1000 connections broke\n");
        exit(1);
    }
    connect_anew(c);
}

static void send_request(struct connection *c) {
    while (c->sent < c->request->length) {
        ssize_t sent = send(c->fd, c->request->bytes + c->sent, c->request->length - c->sent,
                            MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == ENOTCONN)) {
            watch(c, true);
            return;
        }
        if (sent < 0) {
            break_off(c);
            return;
        }
        c->sent += (size_t)sent;
    }
    watch(c, false);
}

/* ---- reading ----------------------------------------------------------------------------- */

static bool is_good_body(const struct connection *c) {
    if (options.events > 0)
        return c->events == options.events && memcmp(c->tail, LAST_EVENT, TAIL_SIZE) == 0;
    return c->body_length > 0 && c->tail[TAIL_SIZE - 1] == '}';
}

/* `surplus`: bytes came that nobody asked for. */
static void end_answer(struct connection *c, uint64_t now, bool surplus) {
    all_answers++;
    bool good = c->status == 200 && is_good_body(c) && !surplus;
    if (c->status != 200) bad_status++;
    else if (!good) bad_body++;
    if (c->body_length < shortest) shortest = c->body_length;
    if (c->body_length > longest) longest = c->body_length;
    if (good && in_window(now) && c->began >= window_begins) {
        add_sample(&latencies, now - c->began);
        add_sample(&first_bytes, c->first - c->began);
    }
    if (c->closes) {
        connect_anew(c);
        return;
    }
    next_answer(c);
    send_request(c);
}

/* Events end with an empty line; routers may cut the stream anywhere. */
static int count_events(struct connection *c, const char *bytes, size_t length) {
    int events = 0;
    for (size_t at = 0; at < length;) {
        if (c->after_newline) {
            c->after_newline = bytes[at] == '\r';
            if (bytes[at] == '\n') events++;
            at++;
            continue;
        }
        const char *newline = memchr(bytes + at, '\n', length - at);
        if (newline == NULL) break;
        at = (size_t)(newline - bytes) + 1;
        c->after_newline = true;
    }
    return events;
}

static void read_body(struct connection *c, const char *bytes, size_t length, uint64_t now) {
    if (c->first == 0) c->first = now;
    c->body_length += length;
    if (length >= TAIL_SIZE) memcpy(c->tail, bytes + length - TAIL_SIZE, TAIL_SIZE);
    else {
        memmove(c->tail, c->tail + length, TAIL_SIZE - length);
        memcpy(c->tail + TAIL_SIZE - length, bytes, length);
    }
    if (options.events == 0) return;
    int events = count_events(c, bytes, length);
    if (events == 0) return;
    c->events += events;
    all_events += (unsigned long)events;
    if (!in_window(now)) return;
    window_events += (unsigned long)events;
    if (c->last != 0 && c->last != now) add_sample(&gaps, now - c->last);
    c->last = now;
}

static const char *header(const char *head, const char *name) {
    const char *found = strcasestr(head, name);
    return found == NULL ? NULL : found + strlen(name);
}

/* Take in bytes of the head: how many of them belong to it. */
static size_t read_head(struct connection *c, const char *bytes, size_t length) {
    size_t room = HEAD_SIZE - 1 - c->head_used, taken = length < room ? length : room;
    size_t before = c->head_used;
    memcpy(c->head + before, bytes, taken);
    c->head_used += taken;
    c->head[c->head_used] = 0;
    char *end = memmem(c->head, c->head_used, "\r\n\r\n", 4);
    if (end == NULL) {
        if (taken < length) {
            fprintf(stderr, "load: an answer's head is over %d bytes\n", HEAD_SIZE);
            exit(1);
        }
        return taken;
    }
    end[2] = 0;
    c->status = atoi(c->head + 9); /* "HTTP/1.1 " */
    const char *sized = header(c->head, "\r\ncontent-length:");
    const char *coded = header(c->head, "\r\ntransfer-encoding: chunked");
    c->closes = header(c->head, "\r\nconnection: close") != NULL;
    c->left = sized == NULL ? 0 : strtoull(sized, NULL, 10);
    c->place = coded != NULL ? CHUNK_SIZE : SIZED_BODY;
    return (size_t)(end - c->head) + 4 - before;
}

/* Take in bytes to the end of a line: how many. The line is whole when its place has changed. */
static size_t read_line(struct connection *c, const char *bytes, size_t length) {
    const char *newline = memchr(bytes, '\n', length);
    size_t taken = newline == NULL ? length : (size_t)(newline - bytes) + 1;
    size_t kept = taken < LINE_SIZE - 1 - c->line_used ? taken : LINE_SIZE - 1 - c->line_used;
    memcpy(c->line + c->line_used, bytes, kept);
    c->line_used += kept;
    c->line[c->line_used] = 0;
    return taken;
}

static bool line_is_whole(const struct connection *c) { return strchr(c->line, '\n') != NULL; }

static size_t read_part(struct connection *c, const char *bytes, size_t length, uint64_t now) {
    size_t taken = length < c->left ? length : c->left;
    read_body(c, bytes, taken, now);
    c->left -= taken;
    return taken;
}

/* Take in some of the bytes: how many. `ended` is set at the answer's end. */
static size_t read_some(struct connection *c, const char *bytes, size_t length, uint64_t now,
                        bool *ended) {
    size_t taken = 0;
    switch (c->place) {
    case HEAD:
        taken = read_head(c, bytes, length);
        if (c->place == SIZED_BODY && c->left == 0) *ended = true;
        return taken;
    case SIZED_BODY:
        taken = read_part(c, bytes, length, now);
        *ended = c->left == 0;
        return taken;
    case CHUNK_BYTES:
        taken = read_part(c, bytes, length, now);
        if (c->left == 0) c->place = CHUNK_END;
        return taken;
    case CHUNK_SIZE:
    case CHUNK_END:
    case TRAILER:
        break;
    }
    taken = read_line(c, bytes, length);
    if (!line_is_whole(c)) return taken;
    bool empty = c->line[0] == '\r' || c->line[0] == '\n';
    if (c->place == CHUNK_SIZE) {
        c->left = strtoul(c->line, NULL, 16);
        c->place = c->left > 0 ? CHUNK_BYTES : TRAILER;
    } else if (c->place == CHUNK_END) {
        c->place = CHUNK_SIZE;
    } else {
        *ended = empty;
    }
    c->line_used = 0;
    c->line[0] = 0;
    return taken;
}

static void receive(struct connection *c) {
    static char bytes[262144];
    for (;;) {
        ssize_t got = recv(c->fd, bytes, sizeof bytes, 0);
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) {
            break_off(c);
            return;
        }
        uint64_t now = now_ns();
        for (size_t at = 0; at < (size_t)got;) {
            bool ended = false;
            at += read_some(c, bytes + at, (size_t)got - at, now, &ended);
            if (!ended) continue;
            end_answer(c, now, at < (size_t)got);
            return;
        }
        if ((size_t)got < sizeof bytes) return;
    }
}

/* ---- start and end ----------------------------------------------------------------------- */

static void read_bodies(void) {
    FILE *file = fopen(options.bodies, "r");
    if (file == NULL) fail(options.bodies);
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    while ((length = getline(&line, &size, file)) > 0) {
        if (line[length - 1] == '\n') line[--length] = 0;
        if (length == 0) continue;
        requests = realloc(requests, (request_count + 1) * sizeof *requests);
        if (requests == NULL) abort();
        struct request *request = &requests[request_count++];
        int whole = asprintf(&request->bytes,
                             "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: load\r\n"
                             "Accept: */*\r\nContent-Type: application/json\r\n"
                             "Content-Length: %zd\r\n\r\n%s",
                             options.path, options.port, length, line);
        if (whole < 0) abort();
        request->length = (size_t)whole;
    }
    free(line);
    fclose(file);
}

static int by_size(const void *one, const void *other) {
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

static void print_samples(const char *name, struct samples *samples) {
    if (samples->count == 0) {
        printf("\"%s_us\":null,", name);
        return;
    }
    size_t count = samples->count;
    qsort(samples->values, count, sizeof *samples->values, by_size);
    const uint32_t *values = samples->values;
    printf("\"%s_us\":{\"p50\":%u,\"p90\":%u,\"p99\":%u,\"max\":%u},", name, values[count / 2],
           values[count * 9 / 10], values[count * 99 / 100], values[count - 1]);
}

static void print_results(void) {
    printf("{\"requests_per_second\":%.1f,\"events_per_second\":%.1f,",
           (double)latencies.count / options.seconds, (double)window_events / options.seconds);
    print_samples("latency", &latencies);
    print_samples("first", &first_bytes);
    print_samples("gap", &gaps);
    printf("\"answers\":%lu,\"events\":%lu,\"shortest_body\":%zu,\"longest_body\":%zu,"
           "\"bad_status\":%lu,\"bad_body\":%lu,\"broken\":%lu}\n",
           all_answers, all_events, all_answers ? shortest : 0, longest, bad_status, bad_body,
           broken);
}

static void run(void) {
    struct connection *connections = calloc((size_t)options.connections, sizeof *connections);
    if (connections == NULL) abort();
    uint64_t begins = now_ns();
    window_begins = begins + (uint64_t)(options.warm_up * 1e9);
    window_ends = window_begins + (uint64_t)(options.seconds * 1e9);
    for (int at = 0; at < options.connections; at++) {
        connections[at].fd = -1;
        connect_anew(&connections[at]);
    }
    for (uint64_t now = begins; now < window_ends; now = now_ns()) {
        struct epoll_event events[MAX_EVENTS];
        int milliseconds = (int)((window_ends - now) / 1000000) + 1;
        int count = epoll_wait(poller, events, MAX_EVENTS, milliseconds);
        for (int at = 0; at < count; at++) {
            struct connection *c = events[at].data.ptr;
            if (events[at].events & EPOLLOUT) send_request(c);
            if (events[at].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
        }
    }
}

static const char *parse_options(int argc, char **argv) {
    static const struct option names[] = {
        {"port", required_argument, NULL, 'p'},
        {"path", required_argument, NULL, 't'},
        {"bodies", required_argument, NULL, 'b'},
        {"connections", required_argument, NULL, 'c'},
        {"warm-up", required_argument, NULL, 'w'},
        {"seconds", required_argument, NULL, 's'},
        {"events", required_argument, NULL, 'e'},
        {NULL, 0, NULL, 0},
    };
    for (int name; (name = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (name) {
        case 'p': options.port = atoi(optarg); break;
        case 't': options.path = optarg; break;
        case 'b': options.bodies = optarg; break;
        case 'c': options.connections = atoi(optarg); break;
        case 'w': options.warm_up = atof(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'e': options.events = atoi(optarg); break;
        default: return "unknown option";
        }
    }
    if (options.port < 1 || options.port > 65535) return "--port is missing";
    if (options.bodies == NULL) return "--bodies is missing";
    if (options.connections < 1 || options.seconds <= 0) return "nothing to do";
    return NULL;
}

int main(int argc, char **argv) {
    const char *fault = parse_options(argc, argv);
    if (fault != NULL) {
        fprintf(stderr, "load: %s\n", fault);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    read_bodies();
    if (request_count == 0) {
        fprintf(stderr, "load: %s holds no body\n", options.bodies);
        return 2;
    }
    target = (struct sockaddr_in){.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)options.port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    poller = epoll_create1(EPOLL_CLOEXEC);
    run();
    print_results();
    return 0;
}
