/* One command or file operation, as the guest sees it. */
#ifndef COMMAND_H
#define COMMAND_H

#include "../guest.h"

enum { ON_CONTROL, ON_IN, ON_OUT, ON_ERR, POLLED };

struct command {
    uint32_t id;
    int control, in, out[2];
    bool pty, in_ended, terminated, swept, done;
    bool orphan; /* the host it belonged to is another machine's: it goes on, and nobody listens */
    uint8_t why;
    struct queue queue;
    int64_t in_credit, out_credit;
    uint32_t grant; /* bytes the program took, or will never take, that the host has not been told of */
    int64_t started, deadline;
    uint32_t grace_ms;
    int64_t left[2]; /* after the end: what was in the pipes at that moment and still has to be sent */
    int polled[POLLED]; /* index of each descriptor in the last poll, -1 if it was not asked about */
    struct report report;
};

/* command_io.c */
struct bytes {
    const uint8_t *at;
    size_t size;
};
bool command_launch(struct command *c, const struct start *s, struct bytes frame);
bool command_wants_read(const struct command *c, int i);
void command_read(struct command *c, int i);
void command_write(struct command *c);
void shut(int *fd);
bool open_pipes(struct command *c, int stdio[3]);

/* spare.c */
bool take_spare(struct command *c, const struct start *s, struct bytes frame);

#endif
