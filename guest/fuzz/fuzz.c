/* Feeds the guest's frame parser and everything behind it that runs in the guest itself with arbitrary bytes.
 *
 * The guest is one program with a state, so all of it is included here, where the state can be put back after each
 * input. Nothing is forked, dialled or bound; what the guest writes is thrown away. The end of the guest, which is
 * the right answer to most inputs, is a jump back to us; what must not happen is left to the sanitizers.
 *
 * With clang: -fsanitize=fuzzer,address,undefined. With any compiler: -DSTANDALONE makes a program that mutates the
 * files it is given, always in the same way: fuzz ROUNDS FILE... */
#include "../process/command.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static jmp_buf over;
static const uint8_t *input_at, *input_end;
static unsigned step;

static ssize_t fuzz_read(int fd, void *into, size_t most)
{
    if (fd != STDIN_FILENO)
        return read(fd, into, most);
    size_t n = (size_t)(input_end - input_at);
    size_t piece = 1 + (step = step * 1103515245u + 12345u) % 5000;
    n = n < most ? n : most;
    n = n < piece ? n : piece;
    memcpy(into, input_at, n);
    input_at += n;
    return (ssize_t)n;
}

static ssize_t fuzz_write(int fd, const void *data, size_t n)
{
    if (fd != STDOUT_FILENO)
        return write(fd, data, n);
    size_t piece = (step = step * 1103515245u + 12345u) % 70000;
    if (piece < 20000) { /* the host is busy */
        errno = EAGAIN;
        return -1;
    }
    return (ssize_t)(n < piece ? n : piece);
}

/* A server inside that says nothing and goes. */
int dial(int *fd, uint16_t port, bool second)
{
    int ends[2];
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    if ((port & 1 && !second) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return ECONNREFUSED;
    *fd = ends[0];
    close(ends[1]);
    return 0;
}

void close_from(unsigned first, bool on_exec)
{
    (void)first;
    (void)on_exec;
}

_Noreturn void supervise(const struct start *s, const int stdio[3], int control, int order)
{
    (void)s;
    (void)stdio;
    (void)control;
    (void)order;
    abort();
}

bool take_spare(struct command *c, const struct start *s, struct bytes frame)
{
    (void)c;
    return frame.size == 0 && s->argc == 0;
}

void vm_wake(struct cursor *payload)
{
    take_bytes(payload, (uint32_t)(payload->end - payload->at));
}

bool vm_quiet(bool on)
{
    return on;
}

void vm_rename(const uint8_t *name, uint32_t length)
{
    if (length > 0 && name[length - 1] == 1) /* read all of it, as the real one does */
        step++;
}

void seccomp_load(void)
{
}

uint8_t code_of(int error)
{
    return error == ENOENT ? NOT_FOUND : FAILED;
}

unsigned sweep(void)
{
    return 0;
}

static int fuzz_nothing(void)
{
    return 0;
}

/* A fuzzer may have children of its own, which are not the guest's to wait for. */
static pid_t fuzz_childless(void)
{
    errno = ECHILD;
    return -1;
}

static void fuzz_said(const char *format, const char *why)
{
    (void)format;
    (void)why;
}

static int fuzz_bind(int fd, const void *at, size_t size)
{
    (void)at;
    return size > 0 ? 0 : fd;
}

#define read(fd, into, most) fuzz_read(fd, into, most)
#define write(fd, data, n) fuzz_write(fd, data, n)
#define _exit(code) longjmp(over, 1 + (code))
#define dprintf(fd, ...) fuzz_said(__VA_ARGS__)
#define sweep() fuzz_nothing()
#define waitpid(pid, status, flags) fuzz_childless()
#define fork() 1
#define bind(fd, at, size) fuzz_bind(fd, at, size)
#define listen(fd, most) fuzz_nothing()

#include "../protocol/frames.c"
#include "../protocol/queue.c"
#include "../process/start.c"
#include "../process/command_io.c"
#define forget forget_command
#define input input_command
#define ready ready_command
#define count count_command
#include "../process/command.c"
#undef count
#undef forget
#undef input
#undef ready
#include "../files/mark.c"
#include "../process/linger.c"
#include "../protocol/relay.c"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wold-style-declaration"
#endif
#define shut shut_already
#define main __attribute__((unused)) static guest_main /* so that what only it needs is not needed here */
#include "../main.c"
#undef main
#undef shut
#undef read
#undef write
#undef _exit

static void reset(void)
{
    out_head = out_tail = in_size = in_used = 0;
    for (unsigned i = 0; i < SLOTS; i++)
        if (commands[i] != NULL)
            forget_command(i);
    for (int i = 0; i < MAX_RELAYS; i++)
        if (relays[i] != NULL)
            forget(i);
    while (count > 0)
        drop(0);
    shut(&listener);
    last_id = 0;
    next_id = FIRST_RELAY;
    last_dial = FIRST_DIAL - 1;
    polled = turn = 0;
    listener_polled = -1;
    ready = held = quiet = false;
    options.vm = input_at < input_end && *input_at & 1; /* the first byte is the length of a SETUP: 10 and up */
    step = 1;
    end_at = now_ms() + 1000000;
}

/* One turn of the guest's loop after the other, until the input ends or the guest does. */
static void live(void)
{
    static struct pollfd fds[3 + 4 * SLOTS + 1 + 2 * MAX_RELAYS + 64];
    for (bool reading = true, more = true; more;) {
        unsigned n = 3;
        for (unsigned i = 0; i < n; i++)
            fds[i] = (struct pollfd){.fd = -1};
        bool asked = !held;
        if (asked) {
            command_poll(fds, &n);
            relay_poll(fds, &n);
            linger_poll(fds, &n);
        }
        poll(fds, n, 0);
        if (reading)
            more = in_read();
        reading = handle_frames();
        if (asked && !held) {
            linger_handle(fds);
            command_handle(fds);
            relay_handle(fds);
        }
        out_flush();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool prepared;
    if (!prepared) {
        signal(SIGPIPE, SIG_IGN);
        options.seccomp = false;
        prepared = true;
    }
    input_at = data;
    input_end = data + size;
    reset();
    if (setjmp(over) == 0)
        live();
    reset();
    return 0;
}

#ifdef STANDALONE
enum { MOST = 1 << 18 };

static uint64_t state = 88172645463325252u;

static uint32_t chance(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 16) % below);
}

static size_t mutate(uint8_t *data, size_t size)
{
    for (uint32_t times = 1 + chance(8); times > 0 && size > 0; times--) {
        size_t at = chance((uint32_t)size), n = 1 + chance(64);
        n = n < size - at ? n : size - at;
        switch (chance(6)) {
        case 0: data[at] = (uint8_t)chance(256); break;
        case 1: data[at] ^= (uint8_t)(1u << chance(8)); break;
        case 2: size = at; break;
        case 3: memmove(data + at, data + at + n, size - at - n); size -= n; break;
        case 4: memset(data + at, chance(2) ? 0xff : 0, n); break;
        default:
            if (size + n < MOST) {
                memmove(data + at + n, data + at, size - at);
                size += n;
            }
        }
    }
    return size;
}

int main(int argc, char **argv)
{
    static uint8_t seed[MOST], data[MOST];
    for (int i = 2; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL)
            return 2;
        size_t size = fread(seed, 1, sizeof seed, file);
        fclose(file);
        LLVMFuzzerTestOneInput(seed, size);
        for (int round = atoi(argv[1]); round > 0; round--) {
            memcpy(data, seed, size);
            LLVMFuzzerTestOneInput(data, mutate(data, size));
        }
    }
    return 0;
}
#endif
