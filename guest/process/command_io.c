/* The descriptors of a command: opening them, and moving bytes between them and the host. */
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

void shut(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static bool open_pty(struct command *c, const struct start *s, int stdio[3])
{
    int zero = 0;
    struct winsize size = {.ws_row = s->rows, .ws_col = s->columns};
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (master < 0)
        return false;
    c->in = master;
    c->out[0] = fcntl(master, F_DUPFD_CLOEXEC, 3);
    if (ioctl(master, TIOCSPTLCK, &zero) != 0)
        return false;
    int other = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (other < 0) { /* gVisor: only by name */
        unsigned number = 0;
        char path[32];
        if (ioctl(master, TIOCGPTN, &number) != 0)
            return false;
        snprintf(path, sizeof path, "/dev/pts/%u", number);
        other = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    }
    stdio[0] = stdio[1] = stdio[2] = other;
    ioctl(master, TIOCSWINSZ, &size);
    return c->out[0] >= 0 && stdio[0] >= 0;
}

static bool open_pipe(int *ours, int *theirs, int our_side)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    *ours = ends[our_side];
    *theirs = ends[1 - our_side];
    return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0;
}

bool open_pipes(struct command *c, int stdio[3])
{
    return open_pipe(&c->in, &stdio[0], 1) && open_pipe(&c->out[0], &stdio[1], 0) &&
           open_pipe(&c->out[1], &stdio[2], 0);
}

/* Fewer turns for what moves much; a quota may refuse. */
static void widen(const struct command *c, const struct start *s)
{
    if (s->kind == KIND_READ)
        fcntl(c->out[0], F_SETPIPE_SZ, WINDOW);
    if (s->kind == KIND_WRITE)
        fcntl(c->in, F_SETPIPE_SZ, WINDOW);
}

bool command_launch(struct command *c, const struct start *s, struct bytes frame)
{
    if (take_spare(c, s, frame)) {
        widen(c, s);
        return true;
    }
    int stdio[3] = {-1, -1, -1}, control[2] = {-1, -1};
    c->pty = s->flags & FLAG_PTY;
    bool made = (c->pty ? open_pty(c, s, stdio) : open_pipes(c, stdio)) &&
                socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) == 0;
    if (made) {
        widen(c, s);
        c->control = control[0];
        pid_t supervisor = fork();
        if (supervisor == 0)
            supervise(s, stdio, control[1], -1);
        made = supervisor > 0;
    }
    shut(&stdio[0]);
    if (!c->pty) {
        shut(&stdio[1]);
        shut(&stdio[2]);
    }
    shut(&control[1]);
    return made;
}

bool command_wants_read(const struct command *c, int i)
{
    if (c->orphan)
        return c->out[i] >= 0 && !c->done;
    return c->out[i] >= 0 && c->out_credit > 0 && out_room() > FRAME_ROOM + 1 && (!c->done || c->left[i] > 0);
}

static void discard(struct command *c, int i)
{
    static uint8_t scratch[READ_AT_ONCE];
    ssize_t n = read(c->out[i], scratch, sizeof scratch);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        shut(&c->out[i]);
}

void command_read(struct command *c, int i)
{
    if (!command_wants_read(c, i))
        return;
    if (c->orphan) {
        discard(c, i);
        return;
    }
    size_t most = out_room() - 1;
    if (most > READ_AT_ONCE)
        most = READ_AT_ONCE;
    if (most > (size_t)c->out_credit)
        most = (size_t)c->out_credit;
    if (c->done && most > (size_t)c->left[i])
        most = (size_t)c->left[i];
    uint8_t *payload = out_payload();
    ssize_t n = read(c->out[i], payload + 1, most);
    if (n > 0) {
        payload[0] = (uint8_t)(1 + i);
        out_commit(DATA, c->id, 1 + (uint32_t)n);
        c->out_credit -= n;
        if (c->done)
            c->left[i] -= n;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        shut(&c->out[i]); /* EIO: the last program with the terminal is gone */
    } else if (errno == EAGAIN && c->done) {
        c->left[i] = 0;
    }
}

void command_write(struct command *c)
{
    while (c->in >= 0 && c->queue.size > 0) {
        ssize_t n = queue_write(&c->queue, c->in);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            c->grant += c->queue.size;
            queue_empty(&c->queue);
            if (!c->pty) /* a terminal's one descriptor still has output to give */
                shut(&c->in);
            break;
        }
        c->grant += (uint32_t)n + queue_widen(&c->queue);
    }
    if (c->in_ended && c->queue.size == 0 && c->in >= 0) {
        if (!c->pty)
            shut(&c->in);
        else if (write(c->in, "\004", 1) == 1)
            c->in_ended = false; /* a terminal has no end of input, only a key for it */
    }
    if (c->grant >= WINDOW / 4 && !c->orphan && out_room() > FRAME_ROOM) {
        out_u32(CREDIT, c->id, c->grant);
        c->in_credit += c->grant;
        c->grant = 0;
    }
}
