/* Shared by every file of the guest: the protocol's numbers, the channels and the few functions between files. */
#ifndef GUEST_H
#define GUEST_H

#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    VERSION = 1,
    HEADER = 9,
    MAX_PAYLOAD = 65536,
    WINDOW = 262144,      /* unacknowledged bytes per direction of a channel */
    WIDE = 4 * WINDOW,    /* and from the host, on channels that carry much: */
    MAX_WIDE = 8,         /* so many at once */
    MAX_COMMANDS = 64,
    MAX_ORPHANS = 64,     /* commands of the machine that this one was forked from */
    SLOTS = MAX_COMMANDS + MAX_ORPHANS,
    MAX_OUT = 256,        /* connections out */
    MAX_IN = 32,          /* and in */
    MAX_RELAYS = MAX_OUT + MAX_IN,
    MAX_TEXT = 200,       /* of a FAIL */
    READ_AT_ONCE = MAX_PAYLOAD - 1, /* from one command before the next has its turn */
    ENTRY_HEAD = 25,      /* of a record about a file, before its name */
    FRAME_ROOM = 1024,    /* any frame that is not DATA fits in this */
};

enum frame_type {
    HELLO = 0x01, SETUP, READY, WAKE, HOLD, HELD, LIVE,
    START = 0x10, DATA, END, CREDIT, SIGNAL, RESIZE, KILL, EXIT, FAIL,
    OPEN = 0x20, CLOSE, DIAL,
};

/* Channels below are commands; from here on, connections in that the host dialled; then those out that we accepted. */
#define FIRST_DIAL 0x40000000u
#define FIRST_RELAY 0x80000000u

enum fail_code { NOT_FOUND = 1, DENIED, NOT_A_FILE, NOT_A_DIRECTORY, TOO_MANY, NO_SPACE, FAILED };
enum start_kind {
    KIND_PROGRAM, KIND_READ, KIND_WRITE, KIND_LIST, KIND_STAT, KIND_MOVE, KIND_REMOVE, KIND_MAKE, KIND_WATCH,
    KIND_MARK, KINDS,
};
enum hold { GO_ON, HOLD_STILL, HOLD_QUIET };
enum start_flag { FLAG_PTY = 1, FLAG_ROOT = 2 };

/* A START frame, decoded: strings end in NUL and live in one block. */
struct start {
    uint8_t kind, flags;
    uint32_t timeout_ms, grace_ms;
    uint16_t rows, columns;
    char *cwd, **env, **argv;
    unsigned argc;
    void *block;
};

/* Bytes on their way from the host to a program; never more than the window, which may grow. */
struct queue {
    uint8_t *ring;
    uint32_t capacity, head, size;
    uint64_t written; /* all of it, since the channel began */
};

/* What a command's supervisor tells the guest, once. */
struct report {
    uint8_t fail, how, value, ended;
    char text[MAX_TEXT];
    uint8_t length;
};

struct options {
    bool seccomp, user_switch;
    bool vm; /* below us is a kernel of our own, see vm.c */
};
extern struct options options;

/* main.c */
_Noreturn void finish(int code);
_Noreturn void die(const char *why);
int64_t now_ms(void);

/* frames.c */
struct cursor {
    const uint8_t *at, *end;
};
uint8_t take_u8(struct cursor *c);
uint16_t take_u16(struct cursor *c);
uint32_t take_u32(struct cursor *c);
const uint8_t *take_bytes(struct cursor *c, uint32_t n);
void take_nothing(struct cursor *c);
void put_u32(uint8_t *at, uint32_t value);
size_t out_room(void);
bool out_pending(void);
void out_flush(void);
void out_frame(uint8_t type, uint32_t channel, const void *payload, uint32_t length);
uint8_t *out_payload(void);
void out_commit(uint8_t type, uint32_t channel, uint32_t length);
void out_u32(uint8_t type, uint32_t channel, uint32_t value);
void out_fail(uint32_t channel, uint8_t code, const char *text);
bool in_read(void);
bool in_frame(uint8_t *type, uint32_t *channel, struct cursor *payload);
void in_consume(void);

/* queue.c */
void queue_put(struct queue *q, const uint8_t *data, uint32_t n);
ssize_t queue_write(struct queue *q, int fd);
void queue_empty(struct queue *q);
uint32_t queue_widen(struct queue *q);
void queue_free(struct queue *q);

/* start.c */
void start_decode(struct start *s, struct cursor *payload);
void start_free(struct start *s);

/* command.c */
struct pollfd;
void command_start(uint32_t id, struct cursor *payload);
void command_frame(uint8_t type, uint32_t id, struct cursor *payload);
void command_poll(struct pollfd *fds, unsigned *n);
void command_handle(const struct pollfd *fds);
int64_t command_deadline(void);
void command_orphan(void);
bool command_idle(void);

/* spare.c */
void command_spare(void);

/* linger.c */
void linger(int fd);
void linger_poll(struct pollfd *fds, unsigned *n);
void linger_handle(const struct pollfd *fds);

/* relay.c */
void loopback_up(void);
void relay_listen(uint16_t port);
void relay_dial(uint32_t id, struct cursor *payload);
void relay_reset(void);
void relay_frame(uint8_t type, uint32_t id, struct cursor *payload);
void relay_poll(struct pollfd *fds, unsigned *n);
void relay_handle(const struct pollfd *fds);

/* dial.c */
int dial(int *fd, uint16_t port, bool second);

/* supervise.c */
enum { ASK_SIGNAL = 's', ASK_TERM = 't', ASK_KILL = 'k' };
_Noreturn void supervise(const struct start *s, const int stdio[3], int control, int order);
unsigned sweep(void);
extern int oom_score;
void close_from(unsigned first, bool on_exec);

/* child.c */
void child_prepare(void);
_Noreturn void child_run(const struct start *s, int note);
_Noreturn void child_wait(int order, int note);
_Noreturn void child_fail(int note, uint8_t code, const char *what, int error);
uint8_t code_of(int error);

/* files.c */
struct stat;
_Noreturn void files_run(const struct start *s, int note);
void files_write(int note, const char *what, int fd, const void *data, size_t n);
void files_make_parents(int note, char *directory);
size_t files_entry(uint8_t *record, const char *name, size_t length, const struct stat *about);

/* unpack.c; returns when the arguments name no program of a build */
void build_program(int argc, char **argv);

/* tree.c */
_Noreturn void tree_stat(const struct start *s, int note);
_Noreturn void tree_make(const struct start *s, int note);
_Noreturn void tree_move(const struct start *s, int note);
_Noreturn void tree_remove(const struct start *s, int note);

/* watch.c */
_Noreturn void watch_run(const struct start *s, int note);

/* mark.c */
void mark_tell(uint32_t id, const struct start *s);

/* seccomp.c */
void seccomp_load(void);

/* vm.c */
void vm_boot(void);
void vm_wake(struct cursor *payload);
bool vm_quiet(bool on); /* whether the disk is quiet now */
uint32_t vm_open_files(void);
void vm_rename(const uint8_t *name, uint32_t length);

#endif
