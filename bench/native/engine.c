/* A mock of a vLLM server that costs as little as possible, so that what is measured is the router.
 *
 *     engine PORTS              listen on that many free loopback ports, print them, serve
 *
 * One thread, one epoll. Every port stands for one engine; all answer alike:
 *
 *     POST /v1/completions, /v1/chat/completions
 *         with "do_remote_decode": true    a prefill: one token and a hand-off (kv_transfer_params)
 *         with "stream": true              a stream of CHUNKS events, then [DONE]
 *         otherwise                        one JSON answer
 *     GET  /health, /v1/models, /metrics   what routers probe
 *     GET  /mock                           what each port was asked for, as JSON
 *     POST /mock?chunks=N&interval_us=T    how streams go from now on; the counts start anew
 *
 * An event of a stream is one send(), as vLLM sends one a step: with T = 0 all streams take turns
 * as fast as the sockets take them; with T > 0 each stream has one event every T microseconds.
 *
 * Bodies must have a Content-Length. Their flags are looked for in the first and last 4 KiB, where
 * clients and routers put them; scanning half a megabyte would measure this program.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
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

enum { MAX_PORTS = 16, MAX_EVENTS = 256, FLAG_WINDOW = 4096, READ_STEP = 65536 };

/* What one port was asked for. `malformed` and `aborted` are 0 in an honest run. */
struct counts {
    unsigned long calls, prefills, decodes, streams, body_bytes, malformed, aborted;
};

struct engine {
    int listener, port;
    struct counts counts;
};

struct connection {
    int fd;
    struct engine *engine;
    char *in;                     /* received, not yet answered */
    size_t in_used, in_size, needed; /* `needed`: length of the request at the front, 0 = unknown */
    char *out;                    /* what the socket did not take */
    size_t out_used, out_sent, out_size;
    bool closing, dead;
    int chunks_left, chunk;       /* of the stream under way; none left: no stream */
    bool with_usage, is_chat;
    uint64_t due;                 /* microseconds: when the stream's next event is sent */
    struct connection *next, *previous; /* the streams under way, in a ring */
    struct connection *next_dead;
};

static struct engine engines[MAX_PORTS];
static int engine_count, poller;
static int chunks_a_stream = 128;
static uint64_t chunk_interval_us;
static struct connection streams = {.next = &streams, .previous = &streams};
static struct connection *dead_connections;

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ---- answers, formed once ---------------------------------------------------------------- */

struct text {
    char *bytes;
    size_t length;
};

static struct text format(const char *form, ...) {
    struct text text;
    va_list arguments;
    va_start(arguments, form);
    int length = vasprintf(&text.bytes, form, arguments);
    va_end(arguments);
    if (length < 0) abort();
    text.length = (size_t)length;
    return text;
}

/* Both free what they are given: a body becomes an answer, an event becomes an HTTP chunk. */
static struct text answer(const char *status, const char *type, struct text body) {
    struct text whole = format("HTTP/1.1 %s\r\nserver: mock\r\ncontent-type: %s\r\n"
                               "content-length: %zu\r\n\r\n%s",
                               status, type, body.length, body.bytes);
    free(body.bytes);
    return whole;
}

static struct text chunk(struct text event) {
    struct text whole = format("%zx\r\n%s\r\n", event.length, event.bytes);
    free(event.bytes);
    return whole;
}

enum shape { COMPLETION, CHAT };
enum { VARIANTS = 16 };

static struct text plain_answer[2];
static struct text first_event[2], event[2][VARIANTS], last_event[2], usage_event[2];
static struct text stream_end, stream_head, health, models, metrics, done, not_found, refused;

static const char PROSE[] =
    "The mock engine says this to everybody, whatever they ask: a few plain sentences of about "
    "three hundred bytes, as long as a short reply of a model is, so that one small answer can be "
    "carried from the engine to the client and be weighed there. It has no end but this full stop.";

static struct text stream_event(enum shape shape, const char *token, const char *finish) {
    return chunk(shape == CHAT
        ? format("data: {\"id\":\"chatcmpl-5f1d7a0c9b3e4a62\",\"object\":\"chat.completion.chunk\","
                 "\"created\":1767225600,\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":"
                 "{\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":%s}]}\n\n",
                 token, finish)
        : format("data: {\"id\":\"cmpl-5f1d7a0c9b3e4a62\",\"object\":\"text_completion\","
                 "\"created\":1767225600,\"model\":\"mock\",\"choices\":[{\"index\":0,"
                 "\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null}],"
                 "\"usage\":null}\n\n",
                 token, finish));
}

static void form_streams(enum shape shape) {
    for (int at = 0; at < VARIANTS; at++) {
        char token[16];
        snprintf(token, sizeof token, " word%02d", at);
        event[shape][at] = stream_event(shape, token, "null");
    }
    first_event[shape] = stream_event(shape, "", "null");
    last_event[shape] = stream_event(shape, "", "\"stop\"");
    usage_event[shape] = chunk(format(
        "data: {\"id\":\"%s-5f1d7a0c9b3e4a62\",\"object\":\"%s\",\"created\":1767225600,"
        "\"model\":\"mock\",\"choices\":[],\"usage\":{\"prompt_tokens\":160,\"total_tokens\":288,"
        "\"completion_tokens\":128}}\n\n",
        shape == CHAT ? "chatcmpl" : "cmpl",
        shape == CHAT ? "chat.completion.chunk" : "text_completion"));
}

static void form_answers(void) {
    static const char usage[] =
        "\"usage\":{\"prompt_tokens\":160,\"total_tokens\":224,\"completion_tokens\":64},"
        "\"kv_transfer_params\":null";
    plain_answer[CHAT] = answer("200 OK", "application/json", format(
        "{\"id\":\"chatcmpl-5f1d7a0c9b3e4a62\",\"object\":\"chat.completion\","
        "\"created\":1767225600,\"model\":\"mock\",\"choices\":[{\"index\":0,\"message\":"
        "{\"role\":\"assistant\",\"content\":\"%s\",\"refusal\":null,\"tool_calls\":[]},"
        "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],%s}", PROSE, usage));
    plain_answer[COMPLETION] = answer("200 OK", "application/json", format(
        "{\"id\":\"cmpl-5f1d7a0c9b3e4a62\",\"object\":\"text_completion\",\"created\":1767225600,"
        "\"model\":\"mock\",\"choices\":[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,"
        "\"finish_reason\":\"stop\",\"stop_reason\":null}],%s}", PROSE, usage));
    form_streams(CHAT);
    form_streams(COMPLETION);
    stream_end = chunk(format("data: [DONE]\n\n"));
    struct text joined = format("%s0\r\n\r\n", stream_end.bytes); /* the last event and the end */
    free(stream_end.bytes);
    stream_end = joined;
    stream_head = format("HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; "
                         "charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
    health = answer("200 OK", "text/plain", format("%s", ""));
    done = answer("200 OK", "application/json", format("{}"));
    not_found = answer("404 Not Found", "application/json", format("{\"detail\":\"Not Found\"}"));
    refused = answer("411 Length Required", "application/json", format("{\"detail\":\"length\"}"));
    models = answer("200 OK", "application/json", format(
        "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\","
        "\"created\":1767225600,\"owned_by\":\"vllm\",\"root\":\"mock\",\"parent\":null,"
        "\"max_model_len\":262144}]}"));
    metrics = answer("200 OK", "text/plain; version=0.0.4", format(
        "# TYPE vllm:num_requests_running gauge\n"
        "vllm:num_requests_running{engine=\"0\",model_name=\"mock\"} 1.0\n"
        "# TYPE vllm:num_requests_waiting gauge\n"
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"mock\"} 0.0\n"
        "# TYPE vllm:kv_cache_usage_perc gauge\n"
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"mock\"} 0.1\n"));
}

/* ---- connections ------------------------------------------------------------------------- */

static void leave_ring(struct connection *c) {
    if (c->next == NULL) return;
    c->previous->next = c->next;
    c->next->previous = c->previous;
    c->next = c->previous = NULL;
}

static void join_ring(struct connection *c) {
    if (c->next != NULL) return;
    c->previous = streams.previous;
    c->next = &streams;
    streams.previous->next = c;
    streams.previous = c;
}

/* The memory lives until the events of this turn of the loop, which may name it, are through. */
static void hang_up(struct connection *c) {
    if (c->dead) return;
    if (c->chunks_left > 0) c->engine->counts.aborted++;
    leave_ring(c);
    close(c->fd);
    c->dead = true;
    c->next_dead = dead_connections;
    dead_connections = c;
}

static void watch(struct connection *c, bool for_writing) {
    struct epoll_event wanted = {.events = EPOLLIN | (for_writing ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &wanted);
}

static void put(struct connection *c, const char *bytes, size_t length) {
    if (c->dead) return;
    if (c->out_used == 0) {
        ssize_t sent = send(c->fd, bytes, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) { hang_up(c); return; }
        if (sent < 0) sent = 0;
        if ((size_t)sent == length) return;
        bytes += sent;
        length -= (size_t)sent;
        watch(c, true);
    }
    if (c->out_used + length > c->out_size) {
        c->out_size = (c->out_used + length) * 2;
        c->out = realloc(c->out, c->out_size);
        if (c->out == NULL) abort();
    }
    memcpy(c->out + c->out_used, bytes, length);
    c->out_used += length;
}

static void put_text(struct connection *c, struct text text) { put(c, text.bytes, text.length); }

/* Send what is left over; true when nothing is. */
static bool flush(struct connection *c) {
    while (c->out_sent < c->out_used) {
        ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_used - c->out_sent, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN) hang_up(c);
            return false;
        }
        c->out_sent += (size_t)sent;
    }
    c->out_used = c->out_sent = 0;
    watch(c, false);
    return true;
}

/* ---- streams ----------------------------------------------------------------------------- */

static void append(char *to, size_t *used, struct text text) {
    memcpy(to + *used, text.bytes, text.length);
    *used += text.length;
}

/* Send the next event of a stream; a full socket halts it until it drains. */
static void send_event(struct connection *c) {
    enum shape shape = c->is_chat ? CHAT : COMPLETION;
    char bytes[4096];
    size_t used = 0;
    int at = c->chunk++;
    c->chunks_left--;
    if (c->chunks_left == 0) {
        append(bytes, &used, last_event[shape]);
        if (c->with_usage) append(bytes, &used, usage_event[shape]);
        append(bytes, &used, stream_end);
        leave_ring(c);
    } else {
        append(bytes, &used, at == 0 ? first_event[shape] : event[shape][at % VARIANTS]);
        c->due += chunk_interval_us;
    }
    put(c, bytes, used);
    if (!c->dead && c->out_used > 0) leave_ring(c);
}

static void begin_stream(struct connection *c, bool is_chat, bool with_usage) {
    c->is_chat = is_chat;
    c->with_usage = with_usage;
    c->chunk = 0;
    c->chunks_left = chunks_a_stream;
    c->due = now_us();
    put_text(c, stream_head);
    if (c->dead) return;
    join_ring(c);
    send_event(c);
}

/* ---- requests ---------------------------------------------------------------------------- */

struct request {
    const char *method, *path, *body;
    size_t path_length, body_length;
};

static bool found(const char *bytes, size_t length, const char *compact, const char *spaced) {
    return memmem(bytes, length, compact, strlen(compact)) != NULL
        || memmem(bytes, length, spaced, strlen(spaced)) != NULL;
}

static bool has_flag(const struct request *request, const char *compact, const char *spaced) {
    const char *body = request->body;
    size_t length = request->body_length;
    if (length <= 2 * FLAG_WINDOW) return found(body, length, compact, spaced);
    return found(body, FLAG_WINDOW, compact, spaced)
        || found(body + length - FLAG_WINDOW, FLAG_WINDOW, compact, spaced);
}

static bool path_is(const struct request *request, const char *path) {
    size_t length = strlen(path);
    return request->path_length >= length && memcmp(request->path, path, length) == 0
        && (request->path_length == length || request->path[length] == '?');
}

static void answer_prefill(struct connection *c, bool is_chat) {
    unsigned long number = c->engine->counts.prefills;
    int port = c->engine->port;
    struct text whole = answer("200 OK", "application/json", format(
        "{\"id\":\"%s-p%lu\",\"object\":\"%s\",\"created\":1767225600,\"model\":\"mock\","
        "\"choices\":[{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":\"length\","
        "\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":160,\"total_tokens\":161,"
        "\"completion_tokens\":1},\"kv_transfer_params\":{\"do_remote_prefill\":true,"
        "\"do_remote_decode\":false,\"remote_block_ids\":[[11,12,13,14,15,16,17,18,19,20]],"
        "\"remote_engine_id\":\"engine-%d\",\"remote_request_id\":\"request-%d-%lu\",\"remote_host\":\"127.0.0.1\","
        "\"remote_port\":%d,\"tp_size\":1}}",
        is_chat ? "chatcmpl" : "cmpl", number, is_chat ? "chat.completion" : "text_completion",
        is_chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"The\"}" : "\"text\":\"The\"",
        port, port, number, port));
    put_text(c, whole);
    free(whole.bytes);
}

static void answer_generation(struct connection *c, const struct request *request, bool is_chat) {
    struct counts *counts = &c->engine->counts;
    counts->calls++;
    counts->body_bytes += request->body_length;
    bool is_object = request->body[0] == '{' && request->body[request->body_length - 1] == '}';
    if (!is_object) counts->malformed++;
    if (has_flag(request, "\"do_remote_decode\":true", "\"do_remote_decode\": true")) {
        counts->prefills++;
        answer_prefill(c, is_chat);
        return;
    }
    /* A decode is one that hands over what a prefill gave out, not one that merely says so. */
    if (has_flag(request, "\"do_remote_prefill\":true", "\"do_remote_prefill\": true")
        && has_flag(request, "\"remote_engine_id\":\"engine-", "\"remote_engine_id\": \"engine-"))
        counts->decodes++;
    if (!has_flag(request, "\"stream\":true", "\"stream\": true")) {
        put_text(c, plain_answer[is_chat ? CHAT : COMPLETION]);
        return;
    }
    counts->streams++;
    bool usage = has_flag(request, "\"include_usage\":true", "\"include_usage\": true");
    begin_stream(c, is_chat, usage);
}

static long query_number(const struct request *request, const char *name, long otherwise) {
    char query[256];
    snprintf(query, sizeof query, "%.*s", (int)request->path_length, request->path);
    const char *at = strstr(query, name);
    return at == NULL ? otherwise : atol(at + strlen(name));
}

static void configure(struct connection *c, const struct request *request) {
    chunks_a_stream = (int)query_number(request, "chunks=", chunks_a_stream);
    chunk_interval_us = (uint64_t)query_number(request, "interval_us=", (long)chunk_interval_us);
    for (int at = 0; at < engine_count; at++) engines[at].counts = (struct counts){0};
    put_text(c, done);
}

static void answer_counts(struct connection *c) {
    struct text body = format("{");
    for (int at = 0; at < engine_count; at++) {
        struct counts *n = &engines[at].counts;
        struct text longer = format(
            "%s%s\"%d\":{\"calls\":%lu,\"prefills\":%lu,\"decodes\":%lu,\"streams\":%lu,"
            "\"body_bytes\":%lu,\"malformed\":%lu,\"aborted\":%lu}",
            body.bytes, at ? "," : "", engines[at].port, n->calls, n->prefills, n->decodes,
            n->streams, n->body_bytes, n->malformed, n->aborted);
        free(body.bytes);
        body = longer;
    }
    struct text closed = format("%s}", body.bytes);
    free(body.bytes);
    struct text whole = answer("200 OK", "application/json", closed);
    put_text(c, whole);
    free(whole.bytes);
}

static void answer_request(struct connection *c, const struct request *request) {
    bool is_chat = path_is(request, "/v1/chat/completions");
    if (request->method[0] == 'P') {
        if ((is_chat || path_is(request, "/v1/completions")) && request->body_length > 1)
            answer_generation(c, request, is_chat);
        else if (path_is(request, "/mock")) configure(c, request);
        else put_text(c, not_found);
    }
    else if (path_is(request, "/health")) put_text(c, health);
    else if (path_is(request, "/v1/models")) put_text(c, models);
    else if (path_is(request, "/metrics")) put_text(c, metrics);
    else if (path_is(request, "/mock")) answer_counts(c);
    else put_text(c, not_found);
}

static bool starts(const char *line, size_t length, const char *name) {
    return length >= strlen(name) && strncasecmp(line, name, strlen(name)) == 0;
}

/* Read the head of the request at the front: true once `needed` is known. */
static bool read_head(struct connection *c, size_t *head_length) {
    char *end = memmem(c->in, c->in_used, "\r\n\r\n", 4);
    if (end == NULL) return false;
    *head_length = (size_t)(end - c->in) + 4;
    size_t body = 0;
    for (char *line = c->in; line < end;) {
        char *line_end = memchr(line, '\r', (size_t)(end - line) + 1);
        size_t length = (size_t)(line_end - line);
        if (starts(line, length, "content-length:")) body = strtoull(line + 15, NULL, 10);
        if (starts(line, length, "connection: close")) c->closing = true;
        if (starts(line, length, "transfer-encoding:")) {
            c->engine->counts.malformed++;
            put_text(c, refused);
            hang_up(c);
            return false;
        }
        line = line_end + 2;
    }
    c->needed = *head_length + body;
    return true;
}

/* Answer the requests that have come in whole, one after another: a stream holds up the next. */
static void answer_arrived(struct connection *c) {
    while (!c->dead && c->in_used > 0 && c->chunks_left == 0) {
        size_t head_length = 0;
        if (c->needed > c->in_used || !read_head(c, &head_length) || c->needed > c->in_used) return;
        const char *space = memchr(c->in, ' ', head_length);
        const char *path_end = space == NULL ? NULL
            : memchr(space + 1, ' ', head_length - (size_t)(space + 1 - c->in));
        if (path_end == NULL) { c->engine->counts.malformed++; hang_up(c); return; }
        struct request request = {
            .method = c->in, .path = space + 1, .path_length = (size_t)(path_end - space - 1),
            .body = c->in + head_length, .body_length = c->needed - head_length,
        };
        answer_request(c, &request);
        c->in_used -= c->needed;
        memmove(c->in, c->in + c->needed, c->in_used);
        c->needed = 0;
        if (c->closing && c->chunks_left == 0 && c->out_used == 0) hang_up(c);
    }
}

static void receive(struct connection *c) {
    while (!c->dead) {
        size_t wanted = c->needed > c->in_used + READ_STEP ? c->needed : c->in_used + READ_STEP;
        if (wanted > c->in_size) {
            c->in_size = wanted;
            c->in = realloc(c->in, c->in_size);
            if (c->in == NULL) abort();
        }
        size_t room = c->in_size - c->in_used;
        ssize_t got = recv(c->fd, c->in + c->in_used, room, 0);
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) { hang_up(c); return; }
        c->in_used += (size_t)got;
        answer_arrived(c);
        if ((size_t)got < room) return; /* the socket is empty: saves a call that says so */
    }
}

/* ---- the loop ---------------------------------------------------------------------------- */

static void accept_all(struct engine *engine) {
    for (;;) {
        int fd = accept4(engine->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) return;
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct connection *c = calloc(1, sizeof *c);
        if (c == NULL) abort();
        c->fd = fd;
        c->engine = engine;
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &wanted);
    }
}

static void serve(struct connection *c, uint32_t events) {
    if (!c->dead && (events & EPOLLOUT) && flush(c)) {
        if (c->chunks_left > 0) join_ring(c);
        else if (c->closing) hang_up(c);
        else answer_arrived(c);
    }
    if (!c->dead && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) receive(c);
}

static void send_due_events(void) {
    uint64_t now = now_us();
    for (struct connection *c = streams.next, *next; c != &streams; c = next) {
        next = c->next;
        if (c->due > now) continue;
        send_event(c);
        if (!c->dead && c->chunks_left == 0) answer_arrived(c); /* it may begin the next stream */
    }
}

static struct timespec time_to_next_event(void) {
    uint64_t now = now_us(), wait = 1000000;
    for (struct connection *c = streams.next; c != &streams; c = c->next) {
        uint64_t left = c->due > now ? c->due - now : 0;
        if (left < wait) wait = left;
    }
    return (struct timespec){.tv_sec = (time_t)(wait / 1000000),
                             .tv_nsec = (long)(wait % 1000000) * 1000};
}

static void free_dead(void) {
    while (dead_connections != NULL) {
        struct connection *c = dead_connections;
        dead_connections = c->next_dead;
        free(c->in);
        free(c->out);
        free(c);
    }
}

static void listen_on_free_port(struct engine *engine) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    engine->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (engine->listener < 0 || bind(engine->listener, (struct sockaddr *)&address, length) != 0
        || listen(engine->listener, 4096) != 0
        || getsockname(engine->listener, (struct sockaddr *)&address, &length) != 0) {
        perror("engine");
        exit(1);
    }
    engine->port = ntohs(address.sin_port);
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = engine};
    epoll_ctl(poller, EPOLL_CTL_ADD, engine->listener, &wanted);
}

static bool is_engine(const void *watched) {
    return watched >= (const void *)engines && watched < (const void *)(engines + MAX_PORTS);
}

int main(int argc, char **argv) {
    engine_count = argc == 2 ? atoi(argv[1]) : 0;
    if (engine_count < 1 || engine_count > MAX_PORTS) {
        fprintf(stderr, "usage: engine PORTS (1 to %d)\n", MAX_PORTS);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    form_answers();
    poller = epoll_create1(EPOLL_CLOEXEC);
    for (int at = 0; at < engine_count; at++) {
        listen_on_free_port(&engines[at]);
        printf("%d%c", engines[at].port, at + 1 < engine_count ? ' ' : '\n');
    }
    fflush(stdout);
    for (;;) {
        struct epoll_event events[MAX_EVENTS];
        struct timespec wait = time_to_next_event();
        int count = epoll_pwait2(poller, events, MAX_EVENTS, &wait, NULL);
        for (int at = 0; at < count; at++) {
            if (is_engine(events[at].data.ptr)) accept_all(events[at].data.ptr);
            else serve(events[at].data.ptr, events[at].events);
        }
        send_due_events();
        free_dead();
    }
}
