/* The small process above each command. Everything the command starts stays below it, however often it forks
 * or calls setsid, so that ending the command ends all of it. */
#include "../guest.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    CONTROL = 3,
    ORDER = 4,
    SWEEP_AGAIN_MS = 2,
    LOOK_AGAIN_MS = 20,
    CLOSE_ON_EXEC = 4 /* CLOSE_RANGE_CLOEXEC */
};

struct process {
    pid_t pid, parent;
    unsigned long long since;
    bool ours;
};

/* Not every kernel lets us adopt the orphans of our command (gVisor before 2023). There they go to the guest, and we
 * know them by the score that the command got from us and that they inherited, and by their age. */
static bool adopting = true;
int oom_score = 500;

static void close_one(int fd, bool on_exec)
{
    if (on_exec)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    else
        close(fd);
}

void close_from(unsigned first, bool on_exec)
{
    if (syscall(SYS_close_range, first, ~0U, on_exec ? CLOSE_ON_EXEC : 0) == 0)
        return;
    /* Older kernels, and gVisor's. Only what is open: to ask about every number takes a tenth of a second there. */
    DIR *files = opendir("/proc/self/fd");
    if (files == NULL) {
        for (int fd = (int)first, most = (int)sysconf(_SC_OPEN_MAX); fd < most; fd++)
            close_one(fd, on_exec);
        return;
    }
    for (struct dirent *entry; (entry = readdir(files)) != NULL;) {
        int fd = atoi(entry->d_name);
        if (isdigit((unsigned char)entry->d_name[0]) && fd >= (int)first && fd != dirfd(files))
            close_one(fd, on_exec);
    }
    closedir(files);
}

static struct process look_at(int proc, const char *name)
{
    struct process found = {.pid = atoi(name), .parent = -1};
    char path[32], text[512];
    snprintf(path, sizeof path, "%.20s/stat", name);
    int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return found;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    char *after = strrchr(text, ')'); /* the name before it may hold anything */
    const char *fields = " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu";
    if (after == NULL || sscanf(after + 1, fields, &found.parent, &found.since) < 1)
        found.parent = -1;
    return found;
}

static bool scored_by_us(pid_t pid)
{
    char path[48], text[16] = "";
    snprintf(path, sizeof path, "/proc/%d/oom_score_adj", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 && atoi(text) == oom_score;
}

static size_t list_processes(struct process **all)
{
    size_t count = 0, room = 0;
    DIR *proc = opendir("/proc");
    *all = NULL;
    for (struct dirent *entry; proc != NULL && (entry = readdir(proc)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        if (count == room) {
            struct process *more = realloc(*all, (room = room * 2 + 256) * sizeof **all);
            if (more == NULL)
                break;
            *all = more;
        }
        (*all)[count++] = look_at(dirfd(proc), entry->d_name);
    }
    if (proc != NULL)
        closedir(proc);
    return count;
}

/* Send a signal to every process below this one that exists now; the number of them. */
static unsigned signal_below(int number)
{
    struct process *all;
    size_t count = list_processes(&all);
    unsigned reached = 0;
    unsigned long long since = 0;
    pid_t self = getpid();
    for (size_t i = 0; i < count; i++)
        if (all[i].pid == self)
            since = all[i].since;
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < count; i++) {
            bool below = all[i].parent == self || (!adopting && all[i].parent == 1 && all[i].pid != self &&
                                                   all[i].since >= since && scored_by_us(all[i].pid));
            for (size_t k = 0; k < count && !below && !all[i].ours; k++)
                below = all[k].ours && all[k].pid == all[i].parent;
            if (below && !all[i].ours)
                all[i].ours = more = true;
        }
    }
    for (size_t i = 0; i < count; i++)
        if (all[i].ours && kill(all[i].pid, number) == 0)
            reached++;
    free(all);
    return reached;
}

unsigned sweep(void)
{
    return signal_below(SIGKILL);
}

struct watch {
    pid_t program;
    int note;
    bool program_ended, nobody_left, ending, sweeping;
    struct report report;
};

static void reap(struct watch *w)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid != w->program)
            continue;
        w->program_ended = true;
        w->report.how = WIFSIGNALED(status);
        w->report.value = (uint8_t)(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        w->report.ended = w->ending;
        /* The note is written before the end, by what could not be started or by a file operation. */
        uint8_t note[1 + MAX_TEXT];
        ssize_t n = read(w->note, note, sizeof note);
        if (n > 0) {
            w->report.fail = note[0];
            w->report.length = (uint8_t)(n - 1);
            memcpy(w->report.text, note + 1, (size_t)(n - 1));
        }
    }
    w->nobody_left = pid < 0 && errno == ECHILD && (adopting || !w->ending || signal_below(0) == 0);
}

static void signal_program(const struct watch *w, int number)
{
    /* Not yet reaped, so the number is still its own. Right after the fork there is no group yet. */
    if (!w->program_ended && kill(-w->program, number) != 0)
        kill(w->program, number);
}

static void obey(struct watch *w)
{
    uint8_t message[2];
    ssize_t n = recv(CONTROL, message, sizeof message, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n != sizeof message || message[0] == ASK_KILL) { /* the guest is gone, or patience is */
        w->ending = w->sweeping = true;
    } else if (message[0] == ASK_TERM) {
        w->ending = true;
        signal_program(w, SIGTERM);
        signal_program(w, SIGCONT); /* a stopped program cannot end itself */
    } else {
        signal_program(w, message[1]);
    }
}

static _Noreturn void watch(struct watch *w)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    int signals = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
    struct pollfd fds[2] = {{.fd = CONTROL, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    for (;;) {
        reap(w);
        if (w->program_ended && (!w->ending || w->nobody_left))
            break;
        if (w->sweeping)
            sweep();
        else if (fds[0].revents)
            obey(w);
        if (w->sweeping)
            fds[0].fd = -1;
        /* Nobody tells us of the end of orphans that are not ours. */
        poll(fds, 2, w->sweeping ? SWEEP_AGAIN_MS : w->ending && !adopting ? LOOK_AGAIN_MS : -1);
        struct signalfd_siginfo info;
        while (read(signals, &info, sizeof info) > 0)
            ;
    }
    send(CONTROL, &w->report, sizeof w->report, MSG_NOSIGNAL);
    _exit(0);
}

/* With no command yet the program waits for it on `order`; without an order there is one. */
_Noreturn void supervise(const struct start *s, const int stdio[3], int control, int order)
{
    struct watch w = {0};
    int note[2];
    for (int i = 0; i < 3; i++)
        dup2(stdio[i], i);
    dup2(control, CONTROL);
    if (s == NULL)
        dup2(order, ORDER);
    close_from(s == NULL ? ORDER + 1 : CONTROL + 1, false);
    setpgid(0, 0); /* outside a sandbox, who kills the guest's group must leave us to sweep */
    adopting = prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    if (!adopting)
        oom_score += 1 + getpid() % 499;
    prctl(PR_SET_NAME, "supervisor");
    /* A program replaces itself at once, so it may borrow our memory until then: a third of its start in gVisor. */
    bool borrows = s != NULL && s->kind == KIND_PROGRAM;
    if (pipe2(note, O_CLOEXEC | O_NONBLOCK) != 0 || (w.program = borrows ? vfork() : fork()) < 0) {
        w.report = (struct report){.fail = FAILED};
        w.report.length = (uint8_t)snprintf(w.report.text, MAX_TEXT, "%s", strerror(errno));
        send(CONTROL, &w.report, sizeof w.report, MSG_NOSIGNAL);
        _exit(1);
    }
    if (w.program == 0 && s == NULL)
        child_wait(ORDER, note[1]);
    if (w.program == 0)
        child_run(s, note[1]);
    if (s == NULL)
        close(ORDER);
    for (int fd = 0; fd < 3; fd++)
        close(fd); /* only the command holds its pipes */
    close(note[1]);
    w.note = note[0];
    watch(&w);
}
