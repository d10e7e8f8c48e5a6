/* Two processes that are ready to be the next command, with its pipes. Where every instruction is slow, most of what a
 * command's start takes is over by the time it is asked for; and in the memory of a saved machine it always is. */
#include "command.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct {
    struct command pipes;
    int order;
} spare;
static bool has_spare;

static void drop_spare(void)
{
    struct command *c = &spare.pipes;
    shut(&c->control); /* which ends the supervisor, and it the program */
    shut(&c->in);
    shut(&c->out[0]);
    shut(&c->out[1]);
    shut(&spare.order);
}

void command_spare(void)
{
    int stdio[3] = {-1, -1, -1}, control[2] = {-1, -1}, order[2] = {-1, -1};
    struct command *c = &spare.pipes;
    if (has_spare)
        return;
    *c = (struct command){.control = -1, .in = -1, .out = {-1, -1}};
    bool made = open_pipes(c, stdio) && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) == 0 &&
                socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, order) == 0;
    c->control = control[0];
    spare.order = order[0];
    pid_t supervisor = made ? fork() : -1;
    if (supervisor == 0)
        supervise(NULL, stdio, control[1], order[1]);
    for (int i = 0; i < 3; i++)
        shut(&stdio[i]);
    shut(&control[1]);
    shut(&order[1]);
    has_spare = supervisor > 0;
    if (!has_spare)
        drop_spare();
}

/* Give `c` the spare processes, if they are alive and what they were made for. */
bool take_spare(struct command *c, const struct start *s, struct bytes frame)
{
    static uint8_t message[sizeof(uint32_t) + MAX_PAYLOAD];
    if (!has_spare || s->flags != 0)
        return false;
    has_spare = false;
    struct pollfd control = {.fd = spare.pipes.control, .events = POLLIN};
    uint32_t files = vm_open_files();
    memcpy(message, &files, sizeof files);
    memcpy(message + sizeof files, frame.at, frame.size);
    size_t size = sizeof files + frame.size;
    if (poll(&control, 1, 0) != 0 || send(spare.order, message, size, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)size) {
        drop_spare();
        return false;
    }
    shut(&spare.order);
    c->control = spare.pipes.control;
    c->in = spare.pipes.in;
    c->out[0] = spare.pipes.out[0];
    c->out[1] = spare.pipes.out[1];
    return true;
}
