/* jail: shuts a virtual machine's emulator in and then becomes it. Runs on the host, as root.
 *
 *   jail -t
 *   jail -p PARENT -u ID -m DIR [-g CGROUP.PROCS]... [-k] -- EMULATOR ARGUMENT...
 *
 * The emulator gets the unprivileged user and group ID, no capabilities, no way to gain any, and namespaces of its own: no
 * network, no other process, and a file system with the host's programs and libraries in it, read-only, and nothing
 * else. Whatever it works on it is handed as an open descriptor. With -k there is also /dev/kvm.
 *
 * With -t it only says how fast this machine's time stamp counter runs, in kHz: an emulated processor counts as fast.
 *
 * It dies with PARENT, at once and however that one ended, so that nothing has to be cleaned up by anyone. A failure is
 * one line on stderr and exit status 125.
 */
#define _GNU_SOURCE
#define PROGRAM "jail"
#include "outside.h"

#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <x86intrin.h>

#define FIRST_ID 65536
#define KVM_MAJOR 10
#define KVM_MINOR 232

static void die_with(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))
        fail("cannot follow the parent's end");
    if (getppid() != parent) /* it ended before we could ask to be told */
        exit(FAILED);
}

static void bind_read_only(const char *from, const char *to)
{
    if (mount(from, to, NULL, MS_BIND, NULL) ||
        mount(NULL, to, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL))
        fail("cannot mount %s", from);
}

/* A top-level directory of the host, or, where it is a link into /usr, the same link. */
static void show(const char *directory, const char *name)
{
    char from[64], to[PATH_MAX], link[PATH_MAX];
    struct stat about;
    snprintf(from, sizeof from, "/%s", name);
    snprintf(to, sizeof to, "%s/%s", directory, name);
    if (lstat(from, &about))
        return;
    if (S_ISLNK(about.st_mode)) {
        ssize_t n = readlink(from, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        if (n <= 0 || symlink(link, to))
            fail("cannot make %s", to);
    } else if (S_ISDIR(about.st_mode)) {
        if (mkdir(to, 0755))
            fail("cannot make %s", to);
        bind_read_only(from, to);
    }
}

static void make_root(const char *directory, unsigned long id, int with_kvm)
{
    char path[PATH_MAX];
    if (mount("cloister", directory, "tmpfs", MS_NOSUID, "mode=0755,size=64k,nr_inodes=32"))
        fail("cannot mount a tmpfs on %s", directory);
    show(directory, "usr");
    show(directory, "lib");
    show(directory, "lib64");
    snprintf(path, sizeof path, "%s/etc", directory);
    if (mkdir(path, 0755))
        fail("cannot make %s", path);
    snprintf(path, sizeof path, "%s/etc/ld.so.cache", directory);
    if (access("/etc/ld.so.cache", R_OK) == 0 && mknod(path, S_IFREG | 0444, 0) == 0)
        bind_read_only("/etc/ld.so.cache", path);
    snprintf(path, sizeof path, "%s/proc", directory);
    if (mkdir(path, 0755) || mount("proc", path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
        fail("cannot mount %s", path);
    snprintf(path, sizeof path, "%s/dev", directory);
    if (mkdir(path, 0755))
        fail("cannot make %s", path);
    snprintf(path, sizeof path, "%s/dev/kvm", directory);
    if (with_kvm && (mknod(path, S_IFCHR | 0600, makedev(KVM_MAJOR, KVM_MINOR)) || chown(path, (uid_t)id, (gid_t)id)))
        fail("cannot make %s", path);
    if (mount(NULL, directory, NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID, "mode=0755"))
        fail("cannot make %s read-only", directory);
    if (chdir(directory) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        fail("cannot change the root");
}

static void drop_privileges(unsigned long id)
{
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    for (int cap = 0; prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0; cap++)
        ;
    if (setgroups(0, NULL) || setresgid((gid_t)id, (gid_t)id, (gid_t)id) || setresuid((uid_t)id, (uid_t)id, (uid_t)id))
        fail("cannot become %lu", id);
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* a buffer that is hardly used would be 2 MB at a time */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        fail("cannot give up privileges for good");
}

/* The first process of the namespaces' outside: it waits, and ends as the emulator did. */
static int wait_for(pid_t emulator)
{
    int status;
    while (waitpid(emulator, &status, 0) < 0)
        if (errno != EINTR)
            return FAILED;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static uint64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* The narrowest of several looks at both clocks: one during which we were not interrupted. */
static uint64_t look(uint64_t *counter)
{
    uint64_t best = UINT64_MAX, at = 0;
    for (int i = 0; i < 50; i++) {
        uint64_t before = nanoseconds(), count = __rdtsc(), took = nanoseconds() - before;
        if (took < best) {
            best = took;
            at = before + took / 2;
            *counter = count;
        }
    }
    return at;
}

static int print_counter_speed(void)
{
    uint64_t first, last, began = look(&first);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    uint64_t ended = look(&last);
    printf("%llu\n", (unsigned long long)((last - first) * 1000000 / (ended - began)));
    return 0;
}

int main(int argc, char **argv)
{
    const char *directory = NULL, *cgroups[CGROUPS];
    unsigned long id = 0;
    int joined = 0, with_kvm = 0, option;
    pid_t parent = 0;
    while ((option = getopt(argc, argv, "+p:u:m:g:kt")) != -1) {
        switch (option) {
        case 'p': parent = (pid_t)strtol(optarg, NULL, 10); break;
        case 'u': id = strtoul(optarg, NULL, 10); break;
        case 'm': directory = optarg; break;
        case 'k': with_kvm = 1; break;
        case 't': return print_counter_speed();
        case 'g':
            if (joined == CGROUPS)
                errno = 0, fail("more than %d cgroups", CGROUPS);
            cgroups[joined++] = optarg;
            break;
        default: return FAILED;
        }
    }
    errno = 0;
    /* SAFETY: the emulator may be taken over from inside, so its id must be nobody's; those of the host are below. */
    if (parent <= 0 || id < FIRST_ID || id >= UINT32_MAX || !directory || optind >= argc)
        fail("usage: jail -p PARENT -u ID -m DIR [-g PROCS]... [-k] -- EMULATOR ARGUMENT...");
    die_with(parent);
    for (int i = 0; i < joined; i++)
        write_file(cgroups[i], "0");
    if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        fail("cannot make namespaces");
    pid_t emulator = fork();
    if (emulator < 0)
        fail("cannot fork");
    if (emulator > 0) {
        syscall(SYS_close_range, 0u, ~0u, 0u); /* who waits must not keep the line open */
        return wait_for(emulator);
    }
    umask(022);
    make_root(directory, id, with_kvm);
    drop_privileges(id);
    die_with(0); /* our parent is outside of what we can see; asked for after the change of user, which forgets it */
    execv(argv[optind], argv + optind);
    fail("cannot run %s", argv[optind]);
}
