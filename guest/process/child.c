/* The last steps before a program runs: its session, its user, its limits. Nothing here returns. */
#include "../guest.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

enum { AGENT = 1000 };

extern char **environ;

static uint64_t bounding; /* the capabilities that somebody here could still gain */

/* Once, for all commands: what every one of them would otherwise ask of the kernel costs a millisecond in gVisor. */
void child_prepare(void)
{
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    for (int cap = 0, there; cap < 64 && (there = prctl(PR_CAPBSET_READ, cap, 0, 0, 0)) >= 0; cap++)
        bounding |= (uint64_t)there << cap;
}

uint8_t code_of(int error)
{
    switch (error) {
    case ENOENT: case ENOTDIR: case ENAMETOOLONG: return NOT_FOUND;
    case EACCES: case EPERM: case EROFS: return DENIED;
    case ENOSPC: case EDQUOT: return NO_SPACE;
    default: return FAILED;
    }
}

/* Say why it did not work, and end. */
_Noreturn void child_fail(int note, uint8_t code, const char *what, int error)
{
    char text[1 + MAX_TEXT + 1];
    text[0] = (char)code;
    int n = snprintf(text + 1, MAX_TEXT + 1, "%.120s: %s", what, strerror(error));
    size_t size = 1 + (size_t)(n < MAX_TEXT ? n : MAX_TEXT);
    _exit(write(note, text, size) == (ssize_t)size ? 127 : 126);
}

static bool drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0};
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &header, none) == 0;
}

static void become_agent(int note)
{
    /* Without the right to do it the bounding set stays; no_new_privs already keeps it from mattering. */
    for (int cap = 0; cap < 64; cap++)
        if (bounding >> cap & 1)
            prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    if (setgroups(0, NULL) != 0 || setresgid(AGENT, AGENT, AGENT) != 0 || setresuid(AGENT, AGENT, AGENT) != 0 ||
        !drop_capabilities())
        child_fail(note, DENIED, "switching to the agent's user", errno);
}

static void set_limits(void)
{
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    umask(022);
    /* When memory runs out, a command goes before the guest does. */
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        dprintf(fd, "%d", oom_score);
        close(fd);
    }
}

static void reset_signals(void)
{
    sigset_t none;
    signal(SIGPIPE, SIG_DFL); /* the only one that the guest itself ignores */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void prepare(bool pty, bool switches, int note)
{
    setsid();
    close_from(3, true);
    if (pty) {
        if (switches && fchown(STDIN_FILENO, AGENT, (gid_t)-1) != 0) {
            /* Only who opens the terminal again by its name will notice. */
        }
        ioctl(STDIN_FILENO, TIOCSCTTY, 0);
    }
    set_limits();
    if (switches)
        become_agent(note);
    reset_signals();
}

static _Noreturn void enter(const struct start *s, int note)
{
    if (chdir(s->cwd) != 0)
        child_fail(note, errno == ENOTDIR ? NOT_A_DIRECTORY : code_of(errno), s->cwd, errno);
    if (s->kind != KIND_PROGRAM)
        files_run(s, note);
    environ = s->env;
    execvp(s->argv[0], s->argv);
    child_fail(note, code_of(errno), s->argv[0], errno);
}

_Noreturn void child_run(const struct start *s, int note)
{
    prepare(s->flags & FLAG_PTY, options.user_switch && geteuid() == 0 && !(s->flags & FLAG_ROOT), note);
    enter(s, note);
}

/* Be ready to run whatever comes as the agent, and wait for it: a START frame after the limit of open files. */
_Noreturn void child_wait(int order, int note)
{
    static uint8_t message[sizeof(uint32_t) + MAX_PAYLOAD];
    uint32_t files;
    struct start s;
    prepare(false, true, note);
    ssize_t n = recv(order, message, sizeof message, 0);
    if (n < (ssize_t)sizeof files)
        _exit(0); /* nobody needs us any more */
    memcpy(&files, message, sizeof files);
    struct rlimit open_files = {files, files};
    if (setrlimit(RLIMIT_NOFILE, &open_files) != 0)
        child_fail(note, FAILED, "the limit of open files", errno);
    struct cursor payload = {message + sizeof files, message + n};
    start_decode(&s, &payload);
    enter(&s, note);
}
