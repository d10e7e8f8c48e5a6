/* The program that is PID 1 in a sandbox: one loop that reads frames, moves bytes, keeps time and reaps. */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SETUP_MS = 60000, LAST_SWEEPS = 500 };

struct options options = {.seccomp = true, .user_switch = true};
static bool ready;
static bool shut; /* the filter is loaded; it stays so when this machine becomes another one */
static bool held; /* nothing is said or taken until the host goes on, so that the machine can be copied */
static bool quiet; /* besides, all files are on the disk and nothing is written there */
static int64_t end_at;

int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* As PID 1 our end is everybody's; elsewhere it has to be brought about. */
_Noreturn void finish(int code)
{
    for (int i = 0; getpid() != 1 && !options.vm && i < LAST_SWEEPS; i++) {
        sweep();
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0 && errno == ECHILD)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    _exit(code);
}

_Noreturn void die(const char *why)
{
    dprintf(STDERR_FILENO, "guest: %s\n", why);
    finish(1);
}

static void setup(struct cursor *payload)
{
    uint32_t ttl_seconds = take_u32(payload);
    uint16_t port = take_u16(payload);
    uint32_t length = take_u32(payload);
    const uint8_t *hostname = take_bytes(payload, length);
    take_nothing(payload);
    if (ready || ttl_seconds == 0)
        die("a SETUP frame is wrong");
    /* Outside a sandbox the name belongs to the machine. Inside, a runtime may have set it already. */
    if (options.vm)
        vm_rename(hostname, length);
    else if (getpid() == 1 && length > 0 && sethostname((const char *)hostname, length) != 0 && errno != EPERM)
        die("the host name is wrong");
    relay_listen(port);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        die("no_new_privs cannot be set");
    if (options.seccomp && !shut)
        seccomp_load();
    shut = true;
    end_at = now_ms() + (int64_t)ttl_seconds * 1000;
    ready = true;
    out_frame(READY, 0, NULL, 0);
}

/* Another time to live, from now on. */
static void prolong(struct cursor *payload)
{
    uint32_t ttl_seconds = take_u32(payload);
    take_nothing(payload);
    if (!ready || ttl_seconds == 0)
        die("a LIVE frame is wrong");
    end_at = now_ms() + (int64_t)ttl_seconds * 1000;
}

static void greet(void)
{
    end_at = now_ms() + SETUP_MS;
    out_frame(HELLO, 0, (const uint8_t[]){VERSION, 0}, 2);
}

/* This machine was saved, or forked, and goes on as another one with another host to talk to. */
static void wake(struct cursor *payload)
{
    if (!options.vm || !held)
        die("a WAKE frame out of turn");
    vm_wake(payload);
    command_orphan();
    relay_reset();
    held = ready = false;
    greet();
}

static void hold(struct cursor *payload)
{
    uint8_t how = take_u8(payload);
    take_nothing(payload);
    if (how > HOLD_QUIET)
        die("a HOLD frame is wrong");
    held = how != GO_ON;
    if (options.vm && quiet != (how == HOLD_QUIET))
        quiet = vm_quiet(how == HOLD_QUIET);
    if (held)
        out_frame(HELD, 0, (const uint8_t[]){quiet}, 1);
}

static void frame(uint8_t type, uint32_t channel, struct cursor *payload)
{
    if (type == SETUP && channel == 0)
        setup(payload);
    else if (type == WAKE && channel == 0)
        wake(payload);
    else if (type == HOLD && channel == 0)
        hold(payload);
    else if (held)
        die("a frame while held");
    else if (type == LIVE && channel == 0)
        prolong(payload);
    else if (!ready || channel == 0)
        die("a frame before SETUP, or of no channel");
    else if (type == DIAL)
        relay_dial(channel, payload);
    else if (channel >= FIRST_DIAL)
        relay_frame(type, channel, payload);
    else if (type == START)
        command_start(channel, payload);
    else
        command_frame(type, channel, payload);
}

/* Handle the frames that are here; false when there is no room for their answers yet. */
static bool handle_frames(void)
{
    uint8_t type;
    uint32_t channel;
    struct cursor payload;
    while (out_room() > FRAME_ROOM) {
        if (!in_frame(&type, &channel, &payload))
            return true;
        frame(type, channel, &payload);
        in_consume();
    }
    return false;
}

static int open_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

static void handle_signals(int fd)
{
    struct signalfd_siginfo info;
    while (read(fd, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGCHLD)
            finish(0);
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

static int patience(void)
{
    int64_t due = held ? 0 : command_deadline();
    if (due == 0 || due > end_at)
        due = end_at;
    int64_t ms = due - now_ms();
    return ms < 0 ? 0 : ms > 3600000 ? 3600000 : (int)ms + 1;
}

static _Noreturn void loop(int signals)
{
    static struct pollfd fds[3 + 4 * SLOTS + 1 + MAX_RELAYS + 64];
    bool reading = true, again = false;
    for (;;) {
        unsigned n = 3;
        fds[0] = (struct pollfd){.fd = reading ? STDIN_FILENO : -1, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = out_pending() ? STDOUT_FILENO : -1, .events = POLLOUT};
        fds[2] = (struct pollfd){.fd = signals, .events = POLLIN};
        bool asked = !held;
        if (asked) {
            command_poll(fds, &n);
            relay_poll(fds, &n);
            linger_poll(fds, &n);
        }
        if (poll(fds, n, again ? 0 : patience()) < 0 && errno != EINTR)
            die("poll failed");
        if (fds[2].revents)
            handle_signals(signals);
        if (now_ms() >= end_at)
            finish(0);
        /* Frames first: what they change is acted upon below, before we sleep again. */
        if (fds[0].revents && !in_read())
            finish(0);
        reading = handle_frames();
        if (asked && !held) {
            linger_handle(fds);
            command_handle(fds);
            relay_handle(fds);
        }
        /* Whoever had no room to speak is heard as soon as there is, not when something else happens. */
        bool tight = out_room() <= FRAME_ROOM + 1;
        out_flush();
        if (options.vm && ready && asked && !held && command_idle())
            command_spare();
        again = tight && out_room() > FRAME_ROOM + 1;
    }
}

static void open_stdio(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO)
        ;
    close(fd);
    fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK);
}

int main(int argc, char **argv)
{
    options.vm = getpid() == 1 && strcmp(argv[0], "/init") == 0;
    if (getpid() != 1)
        build_program(argc, argv);
    for (int i = 1; i < argc && !options.vm; i++) {
        if (strcmp(argv[i], "--no-seccomp") == 0)
            options.seccomp = false;
        else if (strcmp(argv[i], "--no-user-switch") == 0)
            options.user_switch = false;
        else
            die("usage: guest [--no-seccomp] [--no-user-switch]");
    }
    if (options.vm)
        vm_boot();
    else
        close_from(3, false);
    open_stdio();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    child_prepare();
    if (getpid() == 1)
        rmdir("/tmp/.cloister"); /* see occupy_tmp in launch.c */
    int signals = open_signals();
    if (signals < 0)
        die("no signalfd");
    greet();
    out_flush();
    loop(signals);
}
