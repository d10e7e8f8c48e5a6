/* The ways out and in. Out: programs inside connect to the proxy port, and each connection becomes a channel to the
 * host. In: the host dials a port of the loopback inside. */
#include "../guest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

struct relay {
    uint32_t id;
    int fd;
    uint16_t dialled; /* the port; 0 once it is connected, and for connections out */
    bool second;      /* the first of the two loopback addresses refused */
    bool read_ended; /* the program said all it will say, and the host knows */
    bool host_ended, host_closed, shut_down;
    struct queue queue;
    int64_t in_credit, out_credit;
    uint32_t grant;
    int polled;
};

static struct relay *relays[MAX_RELAYS]; /* those out, then those in */
static uint32_t next_id = FIRST_RELAY, last_dial = FIRST_DIAL - 1;
static int listener = -1, listener_polled = -1;

void loopback_up(void)
{
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (ioctl(fd, SIOCGIFFLAGS, &request) == 0 && !(request.ifr_flags & IFF_UP)) {
        request.ifr_flags |= IFF_UP;
        ioctl(fd, SIOCSIFFLAGS, &request);
    }
    close(fd);
}

void relay_listen(uint16_t port)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (getpid() == 1)
        loopback_up();
    if (port == 0 || listener >= 0)
        return;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        die("no socket for the proxy port");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) != 0 || listen(listener, MAX_OUT) != 0)
        die("the proxy port cannot be opened");
}

static int free_slot(int from, int count)
{
    for (int i = from; i < from + count; i++)
        if (relays[i] == NULL)
            return i;
    return -1;
}

static void forget(int slot)
{
    if (relays[slot]->fd >= 0)
        close(relays[slot]->fd);
    queue_free(&relays[slot]->queue);
    free(relays[slot]);
    relays[slot] = NULL;
}

/* A machine that became another one has no connections. */
void relay_reset(void)
{
    for (int i = 0; i < MAX_RELAYS; i++)
        if (relays[i] != NULL)
            forget(i);
    next_id = FIRST_RELAY;
    last_dial = FIRST_DIAL - 1;
}

static struct relay *add(int slot, uint32_t id, int fd)
{
    struct relay *r = calloc(1, sizeof *r);
    if (r == NULL)
        die("no memory for a channel");
    r->id = id;
    r->fd = fd;
    r->in_credit = r->out_credit = WINDOW;
    r->polled = -1;
    relays[slot] = r;
    return r;
}

static void accept_one(void)
{
    int slot = free_slot(0, MAX_OUT), one = 1;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (slot < 0 || next_id == 0) { /* 0: two thousand million were enough */
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a reply in pieces waits for no acknowledgement */
    add(slot, next_id, fd);
    out_frame(OPEN, next_id++, NULL, 0);
}

static void dial_failed(uint32_t id, uint8_t code, const char *text)
{
    uint8_t payload[1 + MAX_TEXT];
    size_t n = strnlen(text, MAX_TEXT);
    payload[0] = code;
    memcpy(payload + 1, text, n);
    out_frame(FAIL, id, payload, 1 + (uint32_t)n);
}

/* It is known how connecting went: say so, or try the other address. False when this was the last of it. */
static bool settle(struct relay *r, int error)
{
    while (error != 0 && !r->second) {
        r->second = true;
        error = dial(&r->fd, r->dialled, r->second);
        if (error == 0)
            return true;
    }
    if (error != 0) {
        dial_failed(r->id, error == ECONNREFUSED ? NOT_FOUND : FAILED, strerror(error));
        return false;
    }
    r->dialled = 0;
    out_frame(OPEN, r->id, NULL, 0);
    return true;
}

void relay_dial(uint32_t id, struct cursor *payload)
{
    uint16_t port = take_u16(payload);
    take_nothing(payload);
    if (id <= last_dial || id < FIRST_DIAL || id >= FIRST_RELAY || port == 0)
        die("a DIAL frame is wrong");
    last_dial = id;
    int slot = free_slot(MAX_OUT, MAX_IN);
    if (slot < 0) {
        dial_failed(id, TOO_MANY, "too many connections at once");
        return;
    }
    struct relay *r = add(slot, id, -1);
    r->dialled = port;
    int error = dial(&r->fd, r->dialled, r->second);
    if (error != 0 && !settle(r, error))
        forget(slot);
}

static void input(struct relay *r, struct cursor *payload)
{
    uint32_t n = (uint32_t)(payload->end - payload->at);
    if ((r->in_credit -= n) < 0)
        die("data beyond the credit");
    if (r->host_ended)
        die("data after the end");
    queue_put(&r->queue, take_bytes(payload, n), n);
}

void relay_frame(uint8_t type, uint32_t id, struct cursor *payload)
{
    struct relay *r = NULL;
    int slot = 0;
    for (; slot < MAX_RELAYS && r == NULL; slot++)
        if (relays[slot] != NULL && relays[slot]->id == id)
            r = relays[slot];
    if (id < FIRST_RELAY ? id > last_dial : id >= next_id)
        die("a connection was never opened");
    if (r == NULL || r->host_closed)
        return;
    switch (type) {
    case DATA: input(r, payload); break;
    case END: r->host_ended = true; break;
    case CREDIT: r->out_credit += take_u32(payload); break;
    case CLOSE: r->host_closed = true; break;
    default: die("a frame of unknown type");
    }
    take_nothing(payload);
    if (r->host_closed && (r->queue.size == 0 || r->dialled))
        forget(slot - 1); /* else what it sent before is still delivered */
}

static bool wants_read(const struct relay *r)
{
    return !r->dialled && !r->read_ended && !r->host_closed && r->out_credit > 0 && out_room() > FRAME_ROOM;
}

void relay_poll(struct pollfd *fds, unsigned *n)
{
    listener_polled = -1;
    if (listener >= 0 && free_slot(0, MAX_OUT) >= 0 && out_room() > FRAME_ROOM) {
        listener_polled = (int)*n;
        fds[(*n)++] = (struct pollfd){.fd = listener, .events = POLLIN};
    }
    for (int i = 0; i < MAX_RELAYS; i++) {
        struct relay *r = relays[i];
        if (r == NULL)
            continue;
        short events = (short)((wants_read(r) ? POLLIN : 0) | (r->queue.size > 0 || r->dialled ? POLLOUT : 0));
        r->polled = events ? (int)*n : -1;
        if (events)
            fds[(*n)++] = (struct pollfd){.fd = r->fd, .events = events};
    }
}

/* Both functions: false when the connection is broken. */
static bool write_some(struct relay *r)
{
    if (r->queue.size > 0) {
        ssize_t n = queue_write(&r->queue, r->fd);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        r->grant += (uint32_t)n + queue_widen(&r->queue);
    }
    if (r->host_ended && r->queue.size == 0 && !r->shut_down) {
        r->shut_down = true;
        shutdown(r->fd, SHUT_WR);
    }
    if (r->grant >= WINDOW / 4 && !r->host_closed && out_room() > FRAME_ROOM) {
        out_u32(CREDIT, r->id, r->grant);
        r->in_credit += r->grant;
        r->grant = 0;
    }
    return true;
}

static bool read_some(struct relay *r)
{
    if (!wants_read(r))
        return true;
    size_t most = out_room();
    if (most > READ_AT_ONCE)
        most = READ_AT_ONCE;
    if (most > (size_t)r->out_credit)
        most = (size_t)r->out_credit;
    ssize_t n = read(r->fd, out_payload(), most);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0) {
        r->read_ended = true;
        out_frame(END, r->id, NULL, 0);
        return true;
    }
    out_commit(DATA, r->id, (uint32_t)n);
    r->out_credit -= n;
    return true;
}

/* False when this connection needs nothing more. */
static bool connecting(struct relay *r, bool ready)
{
    int error = 0;
    socklen_t size = sizeof error;
    if (!ready || out_room() < FRAME_ROOM)
        return true;
    getsockopt(r->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    return settle(r, error);
}

void relay_handle(const struct pollfd *fds)
{
    for (int i = 0; i < MAX_RELAYS; i++) {
        struct relay *r = relays[i];
        if (r == NULL)
            continue;
        bool ready = r->polled >= 0 && fds[r->polled].revents != 0;
        if (r->dialled) {
            if (!connecting(r, ready))
                forget(i);
            continue;
        }
        bool well = write_some(r) && (!ready || read_some(r));
        bool over = r->host_closed ? r->queue.size == 0 : r->read_ended && r->shut_down;
        if (well && !over)
            continue;
        if (!r->host_closed) {
            if (out_room() < FRAME_ROOM)
                continue;
            out_frame(CLOSE, r->id, NULL, 0);
        }
        forget(i);
    }
    if (listener_polled >= 0 && fds[listener_polled].revents && out_room() > FRAME_ROOM)
        accept_one();
}
