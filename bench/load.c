/* The load generator: plays every peer of a scenario against one relay, and checks it.

   It shares a two-core machine with the relay that it measures, so it must cost much less
   than any relay: one thread, epoll, send frames masked once and only their digits patched,
   a scanner that reads no more of a frame than it needs, one read and one write per
   connection and wake-up. Its own CPU time is part of the result, so that a run in which it
   was the limit shows.

   It believes nothing. Every delivery must come from the right sender, carry exactly the
   text that was sent, and be the next one in that sender's order (so none is lost, doubled
   or overtaken); every acknowledgement must belong to a message on its way, carry the
   reference that its delivery carried, and say `delivered` (or `fanout` with the full
   count). The first thing that is wrong ends the run with exit code 1 and one line on
   standard error; a right run prints one JSON object on standard output.

   The relay's CPU time is its process's CPU clock (all threads, nanoseconds), read at both
   ends of the measured span. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LOGINS_AT_ONCE = 100, READ_SIZE = 256 * 1024, FIRST_SEQUENCE = 1000000000 };

/* What the command line asks for ----------------------------------------------------------- */

static struct {
    const char *scenario, *token, *text;
    int port, relay_pid, peers, window, size, repeat;
    double warmup, seconds, limit;
} ask = {.scenario = "pairs", .token = "", .text = "ascii", .peers = 50, .window = 16,
         .size = 200, .repeat = 1, .warmup = 1, .seconds = 3, .limit = 60};

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "load: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    exit(1);
}

static bool is(const char *a, const char *b) { return strcmp(a, b) == 0; }

/* Time, CPU, memory ------------------------------------------------------------------------ */

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    if (clock_gettime(clock, &t) != 0) die("the relay (pid %d) is gone", ask.relay_pid);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static int64_t relay_cpu_ns(void) {
    clockid_t clock;
    if (clock_getcpuclockid(ask.relay_pid, &clock) != 0) die("no process %d", ask.relay_pid);
    return clock_ns(clock);
}

/* Resident memory of the relay in KiB: "VmRSS" now, "VmHWM" at its highest. */
static long relay_memory(const char *field) {
    char path[64], line[256];
    long value = -1;
    snprintf(path, sizeof path, "/proc/%d/status", ask.relay_pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) die("the relay (pid %d) is gone", ask.relay_pid);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, field, strlen(field)) == 0) sscanf(line + strlen(field) + 1, "%ld", &value);
    fclose(file);
    return value;
}

/* A histogram with 1/64 resolution: 64 buckets for each power of two of nanoseconds. */
static struct { int64_t bucket[64 * 64], count, highest; } latency;

static void latency_add(int64_t ns) {
    if (ns < 1) ns = 1;
    int power = 63 - __builtin_clzll((uint64_t)ns);
    int64_t index = power < 6 ? ns : (int64_t)(power - 5) * 64 + ((ns >> (power - 6)) & 63);
    latency.bucket[index]++;
    latency.count++;
    if (ns > latency.highest) latency.highest = ns;
}

static double latency_us(double share) {
    int64_t rest = (int64_t)(share * (double)latency.count);
    for (int64_t index = 0; index < 64 * 64; index++) {
        rest -= latency.bucket[index];
        if (rest >= 0) continue;
        if (index < 64) return (double)index / 1e3;
        return (double)((64 + index % 64) << (index / 64 - 1)) / 1e3;
    }
    return (double)latency.highest / 1e3;
}

/* Connections ------------------------------------------------------------------------------ */

typedef struct { char *data; size_t start, end, room; } Buffer;

typedef struct Peer {
    int fd, index;
    enum { CLOSED, CONNECTING, UPGRADING, GREETING, OPEN } state;
    char name[16];
    unsigned char mask[4];
    Buffer in, out;
    bool unwritten, full;
    int64_t connect_at;
    /* As a sender: its frame with the digits to patch, and a ring of what is on its way. */
    char *frame;
    size_t frame_size, frame_head, id_at, sequence_at;
    int64_t sent, acked;
    struct Flight { int64_t sequence, sent_at; char reference[64]; uint8_t reference_size; } *flights;
    /* As a recipient: whose messages, and which is next. */
    struct Peer *from;
    int64_t received;
} Peer;

static Peer *peers;
static int peer_count, next_to_connect, connecting, logged_in, epoll;
static Peer **unwritten;
static int unwritten_count;
static int ring; /* entries of `flights`: a power of two */

static char *room_for(Buffer *buffer, size_t more) {
    if (buffer->start == buffer->end) buffer->start = buffer->end = 0;
    if (buffer->end + more > buffer->room) {
        buffer->room = (buffer->end + more) * 2;
        buffer->data = realloc(buffer->data, buffer->room);
        if (buffer->data == NULL) die("out of memory");
    }
    return buffer->data + buffer->end;
}

static void note_unwritten(Peer *peer) {
    if (peer->unwritten) return;
    peer->unwritten = true;
    unwritten[unwritten_count++] = peer;
}

static void put(Peer *peer, const char *data, size_t size) {
    memcpy(room_for(&peer->out, size), data, size);
    peer->out.end += size;
    note_unwritten(peer);
}

static void watch(Peer *peer, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = peer};
    if (epoll_ctl(epoll, operation, peer->fd, &event) != 0) die("epoll_ctl: %s", strerror(errno));
}

static void flush(Peer *peer) {
    Buffer *out = &peer->out;
    peer->unwritten = false;
    while (out->start < out->end) {
        ssize_t written = send(peer->fd, out->data + out->start, out->end - out->start, MSG_NOSIGNAL);
        if (written < 0 && errno == EAGAIN) break;
        if (written < 0) die("the relay dropped %s: %s", peer->name, strerror(errno));
        out->start += (size_t)written;
    }
    bool full = out->start < out->end;
    if (full != peer->full) watch(peer, EPOLL_CTL_MOD, full ? EPOLLIN | EPOLLOUT : EPOLLIN);
    peer->full = full;
}

static size_t frame_header(unsigned char *head, int opcode, size_t size, const unsigned char *mask) {
    size_t used = 2;
    head[0] = (unsigned char)(0x80 | opcode);
    if (size < 126) {
        head[1] = (unsigned char)(0x80 | size);
    } else if (size < 65536) {
        head[1] = 0x80 | 126;
        head[2] = (unsigned char)(size >> 8);
        head[3] = (unsigned char)size;
        used = 4;
    } else {
        head[1] = 0x80 | 127;
        for (int i = 0; i < 8; i++) head[2 + i] = (unsigned char)((uint64_t)size >> (56 - 8 * i));
        used = 10;
    }
    memcpy(head + used, mask, 4);
    return used + 4;
}

static void put_frame(Peer *peer, int opcode, const char *payload, size_t size) {
    char *start = room_for(&peer->out, size + 14);
    size_t head = frame_header((unsigned char *)start, opcode, size, peer->mask);
    for (size_t i = 0; i < size; i++) start[head + i] = (char)(payload[i] ^ peer->mask[i & 3]);
    peer->out.end += head + size;
    note_unwritten(peer);
}

/* Texts and send frames -------------------------------------------------------------------- */

/* What every text says after its first 18 characters "IIIIII SSSSSSSSSS " (the sender's index
   and the sequence number), as it stands in JSON. */
static char *filler;
static size_t filler_size;

static void make_filler(void) {
    static const char *ascii[] = {
        "The build is green again; I moved the retry loop into the client and kept its tests.\\n",
        "Could you look at the second commit (client.py, line 214) before you rebase on it?\\n"};
    static const char *mixed[] = {
        "Größe geprüft – alles grün → weiter mit Schritt 2.\\n",
        "レビューをお願いします。 Thanks! “See you” 🙂\\n"};
    const char **lines = is(ask.text, "ascii") ? ascii : mixed;
    filler = malloc((size_t)ask.size * 4 + 64);
    int characters = 18;
    for (int line = 0; characters < ask.size; line++) {
        for (const char *c = lines[line & 1]; *c && characters < ask.size; characters++) {
            int bytes = *c == '\\' ? 2 : (*c & 0x80) == 0 ? 1 : (*c & 0xe0) == 0xc0 ? 2
                        : (*c & 0xf0) == 0xe0 ? 3 : 4;
            memcpy(filler + filler_size, c, (size_t)bytes);
            filler_size += (size_t)bytes;
            c += bytes;
        }
    }
}

static void make_send_frame(Peer *peer, const char *to) {
    char *json = malloc(filler_size + 256);
    int at = sprintf(json, "{\"type\":\"send\",\"id\":");
    peer->id_at = (size_t)at;
    at += sprintf(json + at, "%d,\"to\":\"%s\",\"text\":\"%06d ", FIRST_SEQUENCE, to, peer->index);
    peer->sequence_at = (size_t)at;
    at += sprintf(json + at, "%d ", FIRST_SEQUENCE);
    memcpy(json + at, filler, filler_size);
    size_t size = (size_t)at + filler_size;
    size += (size_t)sprintf(json + size, "\"}");
    peer->frame = malloc(size + 14);
    peer->frame_head = frame_header((unsigned char *)peer->frame, 1, size, peer->mask);
    for (size_t i = 0; i < size; i++)
        peer->frame[peer->frame_head + i] = (char)(json[i] ^ peer->mask[i & 3]);
    peer->frame_size = peer->frame_head + size;
    peer->flights = calloc((size_t)ring, sizeof *peer->flights);
    free(json);
}

static void send_next(Peer *peer, int64_t now) {
    struct Flight *flight = &peer->flights[peer->sent & (ring - 1)];
    if (flight->sequence != 0) die("%s: message %ld is still unacknowledged", peer->name,
                                   (long)flight->sequence);
    int64_t sequence = FIRST_SEQUENCE + peer->sent++;
    *flight = (struct Flight){.sequence = sequence, .sent_at = now};
    int64_t rest = sequence;
    for (int i = 9; i >= 0; i--, rest /= 10) {
        size_t id = peer->id_at + (size_t)i, in_text = peer->sequence_at + (size_t)i;
        char digit = (char)('0' + rest % 10);
        peer->frame[peer->frame_head + id] = (char)(digit ^ peer->mask[id & 3]);
        peer->frame[peer->frame_head + in_text] = (char)(digit ^ peer->mask[in_text & 3]);
    }
    put(peer, peer->frame, peer->frame_size);
}

/* Frames from the relay -------------------------------------------------------------------- */

typedef struct { const char *at; size_t size; } Slice;
typedef struct {
    Slice type, id, message_id, from, to, text, state, error, name, count, skipped, ignored;
} Frame;

static bool slice_is(Slice slice, const char *text) {
    return slice.size == strlen(text) && memcmp(slice.at, text, slice.size) == 0;
}

static Slice *field(Frame *frame, const char *key, size_t size) {
#define FIELD(name) if (memcmp(key, #name, size) == 0) return &frame->name
    switch (size) {
    case 2: FIELD(id); FIELD(to); break;
    case 4: FIELD(type); FIELD(text); FIELD(from); FIELD(name); break;
    case 5: FIELD(state); FIELD(error); FIELD(count); break;
    case 7: FIELD(skipped); break;
    case 10: FIELD(message_id); break;
    }
#undef FIELD
    return &frame->ignored;
}

static const char *string_end(const char *at, const char *end) {
    while ((at = memchr(at, '"', (size_t)(end - at))) != NULL) {
        const char *before = at;
        while (before[-1] == '\\') before--;
        if ((at - before) % 2 == 0) return at;
        at++;
    }
    die("a frame with an open string");
    return NULL;
}

static const char *blank(const char *at) {
    while (*at == ' ' || *at == ',' || *at == ':') at++;
    return at;
}

/* Find the fields of one flat JSON object; nested values are taken as they stand. */
static void scan(const char *at, const char *end, Frame *frame) {
    if (at == end || *at != '{' || end[-1] != '}') die("a frame that is no JSON object");
    for (at = blank(at + 1); at < end && *at == '"'; at = blank(at)) {
        const char *key_end = string_end(at + 1, end);
        Slice *slot = field(frame, at + 1, (size_t)(key_end - at - 1));
        at = blank(key_end + 1);
        const char *start = at;
        if (*at == '"') {
            at = string_end(++start, end);
            *slot = (Slice){start, (size_t)(at - start)};
            at++;
            continue;
        }
        for (int depth = 0; at < end && (depth > 0 || (*at != ',' && *at != '}')); at++) {
            if (*at == '"') at = string_end(at + 1, end);
            else if (*at == '[' || *at == '{') depth++;
            else if (*at == ']' || *at == '}') depth--;
        }
        *slot = (Slice){start, (size_t)(at - start)};
    }
}

static int64_t number(Slice slice) {
    int64_t value = 0;
    for (size_t i = 0; i < slice.size; i++) {
        if (slice.at[i] < '0' || slice.at[i] > '9') die("%.*s is no number", (int)slice.size, slice.at);
        value = value * 10 + (slice.at[i] - '0');
    }
    return value;
}

/* What the scenarios do -------------------------------------------------------------------- */

static enum { LOGIN, WARMUP, MEASURE, DRAIN } phase;
static bool fanout, pingpong;
static int64_t delivered, acknowledged, round_left;

static struct Flight *flight_of(Peer *sender, int64_t sequence) {
    struct Flight *flight = &sender->flights[(sequence - FIRST_SEQUENCE) & (ring - 1)];
    if (flight->sequence != sequence) die("%s never sent, or twice acknowledged, number %ld",
                                          sender->name, (long)sequence);
    return flight;
}

static void next_round(int64_t now) {
    Peer *sender = &peers[0];
    if (sender->sent > 0) flight_of(sender, FIRST_SEQUENCE + sender->sent - 1)->sequence = 0;
    if (phase == DRAIN) return;
    round_left = peer_count; /* every recipient and one acknowledgement */
    send_next(sender, now);
}

static void on_message(Peer *peer, Frame *frame, int64_t now) {
    Peer *sender = peer->from;
    if (sender == NULL) die("%s got a message that nobody sent it", peer->name);
    int64_t sequence = FIRST_SEQUENCE + peer->received++;
    char expected[32];
    int head = snprintf(expected, sizeof expected, "%06d %ld ", sender->index, (long)sequence);
    if (!slice_is(frame->from, sender->name)) die("%s got a message from %.*s", peer->name,
                                                  (int)frame->from.size, frame->from.at);
    if (frame->text.size != (size_t)head + filler_size || memcmp(frame->text.at, expected, (size_t)head)
        || memcmp(frame->text.at + head, filler, filler_size))
        die("%s: expected message %ld of %s, got \"%.*s\" (%zu bytes): lost, doubled, overtaken"
            " or altered", peer->name, (long)sequence, sender->name,
            frame->text.size > 40 ? 40 : (int)frame->text.size, frame->text.at, frame->text.size);
    struct Flight *flight = &sender->flights[(sequence - FIRST_SEQUENCE) & (ring - 1)];
    if (flight->sequence == sequence) {
        latency_add(now - flight->sent_at);
        if (!fanout) {
            if (frame->message_id.size == 0 || frame->message_id.size > sizeof flight->reference)
                die("a message without a reference");
            memcpy(flight->reference, frame->message_id.at, frame->message_id.size);
            flight->reference_size = (uint8_t)frame->message_id.size;
        }
    } else if (!fanout) {
        die("message %ld of %s arrived after its acknowledgement", (long)sequence, sender->name);
    }
    delivered++;
    char got[160];
    if (frame->id.size == 0 || frame->id.size > 100) die("a message without an id");
    int size = snprintf(got, sizeof got, "{\"type\":\"got\",\"id\":\"%.*s\"}", (int)frame->id.size,
                        frame->id.at);
    put_frame(peer, 1, got, (size_t)size);
    if (pingpong && phase != DRAIN) send_next(peer, now);
    if (fanout && --round_left == 0) next_round(now);
}

static void on_ack(Peer *peer, Frame *frame, int64_t now) {
    struct Flight *flight = flight_of(peer, number(frame->id));
    if (fanout) {
        if (!slice_is(frame->state, "fanout") || number(frame->count) != peer_count - 1
            || frame->skipped.size > 2)
            die("a fan-out that reached %.*s of %d (%.*s)", (int)frame->count.size, frame->count.at,
                peer_count - 1, (int)frame->state.size, frame->state.at);
    } else {
        if (!slice_is(frame->state, "delivered"))
            die("message %ld of %s ended %.*s, not delivered", (long)flight->sequence, peer->name,
                (int)frame->state.size, frame->state.at);
        if (frame->message_id.size != flight->reference_size
            || memcmp(frame->message_id.at, flight->reference, flight->reference_size))
            die("an acknowledgement with another reference than its message");
    }
    peer->acked++;
    acknowledged++;
    if (fanout) {
        if (--round_left == 0) next_round(now);
        return;
    }
    flight->sequence = 0;
    if (!pingpong && phase != DRAIN) send_next(peer, now);
}

static void on_frame(Peer *peer, const char *payload, size_t size, int64_t now) {
    Frame frame = {0};
    scan(payload, payload + size, &frame);
    if (slice_is(frame.type, "message")) return on_message(peer, &frame, now);
    if (slice_is(frame.type, "ack")) return on_ack(peer, &frame, now);
    if (slice_is(frame.type, "error"))
        die("%s was told: %.*s", peer->name, (int)frame.error.size, frame.error.at);
    if (!slice_is(frame.type, "welcome") || peer->state != GREETING || !slice_is(frame.name, peer->name))
        die("%s got an unexpected %.*s", peer->name, (int)frame.type.size, frame.type.at);
    peer->state = OPEN;
    connecting--;
    logged_in++;
    latency_add(now - peer->connect_at);
}

/* Reading ---------------------------------------------------------------------------------- */

static void greet(Peer *peer) {
    char hello[512];
    int size = snprintf(hello, sizeof hello,
                        "{\"type\":\"hello\",\"v\":1,\"name\":\"%s\",\"token\":\"%s\",\"host\":\"bench\"}",
                        peer->name, ask.token);
    put_frame(peer, 1, hello, (size_t)size);
    peer->state = GREETING;
}

/* The answer to the one handshake that we send: RFC 6455's own example of key and accept. */
static size_t read_handshake(Peer *peer, const char *data, size_t size) {
    const char *body = memmem(data, size, "\r\n\r\n", 4);
    if (body == NULL) return 0;
    char head[2048] = {0};
    memcpy(head, data, (size_t)(body - data) < sizeof head ? (size_t)(body - data) : sizeof head - 1);
    if (strncmp(head, "HTTP/1.1 101", 12) || !strstr(head, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="))
        die("the handshake of %s failed: %.60s", peer->name, head);
    if (strcasestr(head, "sec-websocket-extensions")) die("the relay chose an extension nobody offered");
    greet(peer);
    return (size_t)(body + 4 - data);
}

/* Act on every whole frame of `data`, and say how many bytes they took. */
static size_t read_frames(Peer *peer, const char *data, size_t have, int64_t now) {
    size_t at = 0;
    while (have - at >= 2) {
        const unsigned char *head = (const unsigned char *)data + at;
        size_t head_size = 2, size = head[1];
        if (size & 0x80) die("a masked frame from the relay");
        if (size == 126) {
            if (have - at < 4) break;
            size = (size_t)head[2] << 8 | head[3];
            head_size = 4;
        } else if (size == 127) {
            if (have - at < 10) break;
            for (size = 0; head_size < 10; head_size++) size = size << 8 | head[head_size];
        }
        if (have - at < head_size + size) break;
        at += head_size + size;
        const char *payload = (const char *)head + head_size;
        if (head[0] == 0x81) on_frame(peer, payload, size, now);
        else if (head[0] == 0x89) put_frame(peer, 10, payload, size);
        else if (head[0] == 0x88 && size >= 2)
            die("the relay closed %s: %d %.*s", peer->name,
                (unsigned char)payload[0] << 8 | (unsigned char)payload[1], (int)size - 2, payload + 2);
        else if (head[0] != 0x8a) die("%s got a frame that starts with 0x%02x", peer->name, head[0]);
    }
    return at;
}

static void readable(Peer *peer) {
    /* Most reads hold whole frames only: they are read in place and nothing is kept, so that
       idle peers cost no memory here either. The rest of a frame waits in `in`. */
    static char landing[READ_SIZE];
    Buffer *in = &peer->in;
    bool kept = in->start < in->end;
    if (kept && in->start > 0) {
        memmove(in->data, in->data + in->start, in->end - in->start);
        in->end -= in->start;
        in->start = 0;
    }
    char *to = kept ? room_for(in, READ_SIZE) : landing;
    ssize_t got = recv(peer->fd, to, READ_SIZE, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die("the relay dropped %s: %s", peer->name, got < 0 ? strerror(errno) : "end of file");
    int64_t now = now_ns();
    if (kept) in->end += (size_t)got;
    const char *data = kept ? in->data : landing;
    size_t have = kept ? in->end : (size_t)got, used = 0;
    if (peer->state == UPGRADING) used = read_handshake(peer, data, have);
    if (peer->state >= GREETING) used += read_frames(peer, data + used, have - used, now);
    if (kept) {
        in->start += used;
    } else if (used < have) {
        memcpy(room_for(in, have - used), data + used, have - used);
        in->end += have - used;
    }
}

/* Connecting ------------------------------------------------------------------------------- */

static void connect_peer(Peer *peer) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)ask.port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    peer->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (peer->fd < 0) die("socket: %s", strerror(errno));
    setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    peer->state = CONNECTING;
    peer->connect_at = now_ns();
    peer->in.start = peer->in.end = peer->out.start = peer->out.end = 0;
    peer->full = true;
    connecting++;
    if (connect(peer->fd, (struct sockaddr *)&address, sizeof address) != 0 && errno != EINPROGRESS)
        die("connect: %s", strerror(errno));
    watch(peer, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
}

static void connected(Peer *peer) {
    int problem = 0;
    getsockopt(peer->fd, SOL_SOCKET, SO_ERROR, &problem, &(socklen_t){sizeof problem});
    if (problem != 0) die("%s cannot connect: %s", peer->name, strerror(problem));
    char request[256];
    int size = snprintf(request, sizeof request,
                        "GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\n"
                        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                        "Sec-WebSocket-Version: 13\r\n\r\n", ask.port);
    put(peer, request, (size_t)size);
    peer->state = UPGRADING;
}

static void turn(int64_t until) {
    static struct epoll_event events[512];
    while (unwritten_count > 0) flush(unwritten[--unwritten_count]);
    int64_t wait = (until - now_ns()) / 1000000 + 1;
    int ready = epoll_wait(epoll, events, 512, wait < 0 ? 0 : wait > 1000 ? 1000 : (int)wait);
    if (ready < 0 && errno != EINTR) die("epoll_wait: %s", strerror(errno));
    for (int i = 0; i < ready; i++) {
        Peer *peer = events[i].data.ptr;
        if (events[i].events & EPOLLOUT) {
            if (peer->state == CONNECTING) connected(peer);
            else note_unwritten(peer);
        }
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
            if (peer->state == CONNECTING) connected(peer);
            readable(peer);
        }
    }
}

static void log_in_all(int at_once, int64_t deadline) {
    next_to_connect = logged_in = 0;
    while (logged_in < peer_count) {
        while (next_to_connect < peer_count && connecting < at_once) connect_peer(&peers[next_to_connect++]);
        turn(deadline);
        if (now_ns() > deadline) die("only %d of %d peers logged in in time", logged_in, peer_count);
    }
}

/* Scenarios -------------------------------------------------------------------------------- */

static void prepare(int count) {
    peer_count = count;
    for (ring = 4; ring < 4 * ask.window; ring *= 2) {}
    peers = calloc((size_t)count, sizeof *peers);
    unwritten = calloc((size_t)count, sizeof *unwritten);
    for (int i = 0; i < count; i++) {
        peers[i].index = i;
        snprintf(peers[i].name, sizeof peers[i].name, "peer-%06d", i);
        for (int byte = 0; byte < 4; byte++)
            peers[i].mask[byte] = (unsigned char)((unsigned)(i + 1) * 2654435761u >> (8 * byte));
    }
}

static void link_peers(Peer *from, Peer *to) {
    make_send_frame(from, to->name);
    to->from = from;
}

typedef struct { int64_t at, cpu, delivered; struct rusage own; } Mark;

static Mark mark(void) {
    Mark mark = {.at = now_ns(), .cpu = relay_cpu_ns(), .delivered = delivered};
    getrusage(RUSAGE_SELF, &mark.own);
    return mark;
}

static double own_cpu(Mark *from, Mark *to) {
    struct timeval *a[] = {&from->own.ru_utime, &from->own.ru_stime};
    struct timeval *b[] = {&to->own.ru_utime, &to->own.ru_stime};
    double sum = 0;
    for (int i = 0; i < 2; i++)
        sum += (double)(b[i]->tv_sec - a[i]->tv_sec) + (double)(b[i]->tv_usec - a[i]->tv_usec) / 1e6;
    return sum;
}

static void run_for(double seconds) {
    int64_t until = now_ns() + (int64_t)(seconds * 1e9);
    while (now_ns() < until) turn(until);
}

static void finish_what_is_under_way(int64_t sent_factor) {
    int64_t deadline = now_ns() + (int64_t)(ask.limit * 1e9);
    for (;;) {
        int64_t sent = 0;
        for (int i = 0; i < peer_count; i++) sent += peers[i].sent;
        if (acknowledged == sent && delivered == sent * sent_factor) return;
        if (acknowledged > sent || delivered > sent * sent_factor) die("more came than was sent");
        turn(deadline);
        if (now_ns() > deadline) die("of %ld messages %ld deliveries and %ld acknowledgements came",
                                     (long)sent, (long)delivered, (long)acknowledged);
    }
}

static void report(Mark *from, Mark *to, int64_t messages, long memory_before) {
    double seconds = (double)(to->at - from->at) / 1e9, cpu = (double)(to->cpu - from->cpu) / 1e9;
    printf("{\"messages\": %ld, \"seconds\": %.6f, \"relay_cpu\": %.6f, \"load_cpu\": %.6f, "
           "\"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, \"highest_us\": %.1f, "
           "\"rss_before_kib\": %ld, \"rss_kib\": %ld, \"peak_kib\": %ld, \"peers\": %d}\n",
           (long)messages, seconds, cpu, own_cpu(from, to), latency_us(.5), latency_us(.9),
           latency_us(.99), (double)latency.highest / 1e3, memory_before, relay_memory("VmRSS"),
           relay_memory("VmHWM"), peer_count);
}

static void messages(void) {
    long before = relay_memory("VmRSS");
    pingpong = is(ask.scenario, "pingpong");
    fanout = is(ask.scenario, "fanout");
    prepare(pingpong ? 2 : fanout ? ask.peers + 1 : ask.peers * 2);
    make_filler();
    if (pingpong) {
        link_peers(&peers[0], &peers[1]);
        link_peers(&peers[1], &peers[0]);
    } else if (fanout) {
        make_send_frame(&peers[0], "@all");
        for (int i = 1; i < peer_count; i++) peers[i].from = &peers[0];
    } else {
        for (int i = 0; i < peer_count; i += 2) link_peers(&peers[i], &peers[i + 1]);
    }
    log_in_all(LOGINS_AT_ONCE, now_ns() + (int64_t)(ask.limit * 1e9));

    phase = WARMUP;
    int64_t now = now_ns();
    if (fanout) next_round(now);
    else if (pingpong) send_next(&peers[0], now);
    else for (int i = 0; i < peer_count; i += 2)
        for (int sent = 0; sent < ask.window; sent++) send_next(&peers[i], now);
    run_for(ask.warmup);
    phase = MEASURE;
    memset(&latency, 0, sizeof latency);
    Mark from = mark();
    run_for(ask.seconds);
    Mark to = mark();
    phase = DRAIN;
    finish_what_is_under_way(fanout ? peer_count - 1 : 1);
    report(&from, &to, to.delivered - from.delivered, before);
}

/* Everybody sends one message to the next, to see that each name leads to its peer. */
static void everyone_hears_the_next(void) {
    memset(&latency, 0, sizeof latency);
    for (int i = 0; i < peer_count; i++)
        if (peers[i].frame == NULL) link_peers(&peers[i], &peers[(i + 1) % peer_count]);
    phase = DRAIN;
    for (int i = 0; i < peer_count; i++) {
        send_next(&peers[i], now_ns());
        if (i % 50 == 49) finish_what_is_under_way(1);
    }
    finish_what_is_under_way(1);
}

static void idle(void) {
    make_filler();
    long before = relay_memory("VmRSS");
    prepare(ask.peers);
    log_in_all(LOGINS_AT_ONCE, now_ns() + (int64_t)(ask.limit * 1e9));
    run_for(ask.warmup);
    Mark from = mark();
    run_for(ask.seconds);
    Mark to = mark();
    report(&from, &to, peer_count, before);
    everyone_hears_the_next();
}

static void storm(void) {
    make_filler();
    long before = relay_memory("VmRSS");
    prepare(ask.peers);
    log_in_all(LOGINS_AT_ONCE, now_ns() + (int64_t)(ask.limit * 1e9));
    for (int round = 0; round < ask.repeat; round++) {
        everyone_hears_the_next();
        run_for(ask.warmup);
        memset(&latency, 0, sizeof latency);
        Mark from = mark();
        for (int i = 0; i < peer_count; i++) {
            close(peers[i].fd);
            peers[i].state = CLOSED;
        }
        log_in_all(peer_count, now_ns() + (int64_t)(ask.limit * 1e9));
        Mark to = mark();
        report(&from, &to, peer_count, before);
    }
    everyone_hears_the_next();
}

int main(int count, char **words) {
    struct { const char *name; char kind; void *value; } options[] = {
        {"--scenario", 's', &ask.scenario}, {"--token", 's', &ask.token}, {"--text", 's', &ask.text},
        {"--port", 'i', &ask.port},         {"--pid", 'i', &ask.relay_pid}, {"--peers", 'i', &ask.peers},
        {"--window", 'i', &ask.window},     {"--size", 'i', &ask.size},     {"--repeat", 'i', &ask.repeat},
        {"--warmup", 'd', &ask.warmup},     {"--seconds", 'd', &ask.seconds}, {"--limit", 'd', &ask.limit},
    };
    for (int i = 1; i < count; i += 2) {
        size_t option = 0, known = sizeof options / sizeof *options;
        while (option < known && !is(options[option].name, words[i])) option++;
        if (option == known || i + 1 == count) die("what is %s?", words[i]);
        if (options[option].kind == 's') *(const char **)options[option].value = words[i + 1];
        if (options[option].kind == 'i') *(int *)options[option].value = atoi(words[i + 1]);
        if (options[option].kind == 'd') *(double *)options[option].value = atof(words[i + 1]);
    }
    if (ask.port == 0 || ask.relay_pid == 0 || ask.size < 20 || ask.peers < 1 || ask.window < 1)
        die("needs --port, --pid, and a size of 20 or more");
    epoll = epoll_create1(EPOLL_CLOEXEC);
    if (is(ask.scenario, "idle")) idle();
    else if (is(ask.scenario, "storm")) storm();
    else messages();
    return 0;
}
