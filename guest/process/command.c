/* Commands and file operations: their pipes, their time, their end. The process itself is in supervise.c. */
#include "command.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <termios.h>

enum { NOT_KILLED, BY_TIME, BY_REQUEST };
enum { OVERDUE_MS = 5000 }; /* a supervisor that has not swept by then was tampered with */

static struct command *commands[SLOTS];
static uint32_t last_id;
static unsigned turn; /* who is read first; changes so that nobody starves */

static unsigned count(bool orphans)
{
    unsigned n = 0;
    for (unsigned slot = 0; slot < SLOTS; slot++)
        n += commands[slot] != NULL && commands[slot]->orphan == orphans;
    return n;
}

static void forget(unsigned slot)
{
    struct command *c = commands[slot];
    shut(&c->control);
    shut(&c->in);
    shut(&c->out[0]);
    shut(&c->out[1]);
    queue_free(&c->queue);
    free(c);
    commands[slot] = NULL;
}

void command_start(uint32_t id, struct cursor *payload)
{
    if (id <= last_id)
        die("a channel was used twice");
    last_id = id;
    struct start s;
    struct bytes frame = {payload->at, (size_t)(payload->end - payload->at)};
    start_decode(&s, payload);
    if (s.kind == KIND_MARK) {
        mark_tell(id, &s);
        start_free(&s);
        return;
    }
    unsigned slot = 0;
    while (slot < SLOTS && commands[slot] != NULL)
        slot++;
    struct command *c = slot < SLOTS && count(false) < MAX_COMMANDS ? calloc(1, sizeof *c) : NULL;
    if (c == NULL) {
        out_fail(id, TOO_MANY, "too many commands at once");
    } else {
        commands[slot] = c;
        c->id = id;
        c->control = c->in = c->out[0] = c->out[1] = -1;
        c->in_credit = c->out_credit = WINDOW;
        memset(c->polled, -1, sizeof c->polled);
        c->started = now_ms();
        c->deadline = s.timeout_ms ? c->started + s.timeout_ms : 0;
        c->grace_ms = s.grace_ms;
        if (!command_launch(c, &s, frame)) {
            out_fail(id, FAILED, strerror(errno));
            forget(slot);
        }
    }
    start_free(&s);
}

static void ask(struct command *c, char what, uint8_t number)
{
    uint8_t message[2] = {(uint8_t)what, number};
    send(c->control, message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void end(struct command *c, uint8_t why)
{
    if (c->terminated || c->done)
        return;
    c->terminated = true;
    c->why = why;
    c->deadline = now_ms() + c->grace_ms;
    ask(c, ASK_TERM, 0);
}

static void resize(struct command *c, struct cursor *payload)
{
    struct winsize size = {.ws_row = take_u16(payload)};
    size.ws_col = take_u16(payload);
    if (!c->pty)
        die("there is no terminal to resize");
    if (c->in >= 0)
        ioctl(c->in, TIOCSWINSZ, &size);
}

static void input(struct command *c, struct cursor *payload)
{
    uint32_t n = (uint32_t)(payload->end - payload->at);
    if ((c->in_credit -= n) < 0)
        die("data beyond the credit");
    const uint8_t *bytes = take_bytes(payload, n);
    if (c->in_ended)
        die("data after the end");
    if (c->in >= 0)
        queue_put(&c->queue, bytes, n);
    else
        c->grant += n; /* the program closed its input: gone, as with any pipe */
}

void command_frame(uint8_t type, uint32_t id, struct cursor *payload)
{
    struct command *c = NULL;
    for (unsigned i = 0; i < SLOTS && c == NULL; i++)
        if (commands[i] != NULL && !commands[i]->orphan && commands[i]->id == id)
            c = commands[i];
    if (id > last_id)
        die("a channel was never opened");
    if (c == NULL)
        return; /* it ended while this frame was under way */
    switch (type) {
    case DATA: input(c, payload); break;
    case END: c->in_ended = true; break;
    case CREDIT: c->out_credit += take_u32(payload); break;
    case SIGNAL: ask(c, ASK_SIGNAL, take_u8(payload)); break;
    case RESIZE: resize(c, payload); break;
    case KILL: end(c, BY_REQUEST); break;
    default: die("a frame of unknown type");
    }
    take_nothing(payload);
}

static void poll_if(struct pollfd *fds, unsigned *n, struct command *c, int which, int fd, short events)
{
    c->polled[which] = fd < 0 ? -1 : (int)*n;
    if (fd >= 0)
        fds[(*n)++] = (struct pollfd){.fd = fd, .events = events};
}

static bool ready(const struct pollfd *fds, const struct command *c, int which)
{
    return c->polled[which] >= 0 && fds[c->polled[which]].revents != 0;
}

void command_poll(struct pollfd *fds, unsigned *n)
{
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        struct command *c = commands[slot];
        if (c == NULL)
            continue;
        poll_if(fds, n, c, ON_CONTROL, c->done ? -1 : c->control, POLLIN);
        poll_if(fds, n, c, ON_IN, c->queue.size > 0 ? c->in : -1, POLLOUT);
        poll_if(fds, n, c, ON_OUT, command_wants_read(c, 0) ? c->out[0] : -1, POLLIN);
        poll_if(fds, n, c, ON_ERR, command_wants_read(c, 1) ? c->out[1] : -1, POLLIN);
    }
}

static void hear(struct command *c)
{
    ssize_t n = recv(c->control, &c->report, sizeof c->report, MSG_DONTWAIT);
    if (n < 0)
        return;
    if (n != sizeof c->report) {
        static const char lost[] = "the supervisor of this command was killed";
        c->report = (struct report){.fail = FAILED, .length = sizeof lost - 1};
        memcpy(c->report.text, lost, sizeof lost - 1);
    }
    c->done = true;
    c->deadline = 0;
    for (int i = 0; i < 2; i++) {
        int there = 0;
        if (c->out[i] < 0)
            continue;
        if (c->pty) { /* what a terminal holds is known only by reading it */
            struct pollfd flush = {.fd = c->out[i], .events = POLLIN};
            poll(&flush, 1, 0);
            there = WINDOW;
        } else {
            ioctl(c->out[i], FIONREAD, &there);
        }
        c->left[i] = there;
    }
}

/* What it started in the background may still print. */
static void leave(struct command *c)
{
    for (int i = 0; i < 2 && !c->pty; i++) {
        if (c->out[i] >= 0)
            linger(c->out[i]);
        c->out[i] = -1;
    }
}

static void end_channel(struct command *c, unsigned slot)
{
    bool drained = true;
    for (int i = 0; i < 2; i++)
        drained = drained && (c->out[i] < 0 || c->left[i] <= 0);
    const struct report *r = &c->report;
    if (c->orphan) {
        leave(c);
        forget(slot);
        return;
    }
    if ((!drained && !r->fail) || out_room() < FRAME_ROOM)
        return;
    uint8_t payload[1 + MAX_TEXT];
    if (r->fail) {
        payload[0] = r->fail;
        memcpy(payload + 1, r->text, r->length);
        out_frame(FAIL, c->id, payload, 1u + r->length);
    } else {
        payload[0] = r->how;
        payload[1] = r->value;
        payload[2] = r->ended ? c->why : NOT_KILLED;
        put_u32(payload + 3, (uint32_t)(now_ms() - c->started));
        out_frame(EXIT, c->id, payload, 7);
        leave(c);
    }
    forget(slot);
}

static void watch_time(struct command *c)
{
    if (c->deadline == 0 || now_ms() < c->deadline)
        return;
    if (!c->terminated) {
        end(c, BY_TIME);
    } else if (!c->swept) {
        c->swept = true;
        c->deadline = now_ms() + OVERDUE_MS;
        ask(c, ASK_KILL, 0);
    } else {
        c->deadline = 0;
        shutdown(c->control, SHUT_RDWR);
    }
}

void command_handle(const struct pollfd *fds)
{
    turn = (turn + 1) % SLOTS;
    for (unsigned k = 0; k < SLOTS; k++) {
        unsigned slot = (turn + k) % SLOTS;
        struct command *c = commands[slot];
        if (c == NULL)
            continue;
        watch_time(c);
        command_write(c);
        if (ready(fds, c, ON_CONTROL))
            hear(c);
        if (c->done || ready(fds, c, ON_OUT))
            command_read(c, 0);
        if (c->done || ready(fds, c, ON_ERR))
            command_read(c, 1);
        if (c->done)
            end_channel(c, slot);
    }
}

bool command_idle(void)
{
    return count(false) == 0;
}

/* When something is next due; 0 when nothing is. */
int64_t command_deadline(void)
{
    int64_t first = 0;
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        const struct command *c = commands[slot];
        if (c != NULL && c->deadline > 0 && (first == 0 || c->deadline < first))
            first = c->deadline;
    }
    return first;
}

/* Every command goes on by itself, with its time limit; those for which there is no room are ended. */
void command_orphan(void)
{
    unsigned orphans = count(true);
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        struct command *c = commands[slot];
        if (c == NULL || c->orphan)
            continue;
        c->orphan = true;
        if (++orphans > MAX_ORPHANS)
            ask(c, ASK_KILL, 0);
    }
    last_id = 0;
}
