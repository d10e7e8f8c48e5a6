/* launch: makes the private mounts of one sandbox and then becomes the OCI runtime. Runs on the host, as root.
 *
 *   launch -b BASE ROOT -x GUEST [-p LIBRARY] [-V] -m DIR [-g CGROUP.PROCS]... [-d TREE] -- RUNTIME ARGUMENT...
 *
 * where ROOT is one of
 *
 *   -l LOWER -f FILES        an overlay of FILES/upper on LOWER
 *   -r DIRECTORY             a directory
 *   -v DEVICE -r SUBVOLUME   a subvolume of the btrfs on DEVICE, which need not be mounted anywhere
 *
 * Everything it mounts lives in a mount namespace of its own, below a tmpfs on DIR:
 *
 *   DIR/guest   the guest program, read-only, by way of guest.lower, guest.empty and guest.view
 *   DIR/preload LIBRARY, in the same way
 *   DIR/lower   LOWER, read-only      \ on disk the ids are the guest's own, from 0;
 *   DIR/files   FILES                 / seen through these mounts they start at BASE
 *   DIR/root    the root of the sandbox, whose ids start at BASE too
 *
 * so that nothing has to be unmounted by anyone: it is all gone with the last process of the sandbox, however that
 * one or the server ended. A failure is one line on stderr and exit status 125.
 */
#define _GNU_SOURCE
#define PROGRAM "launch"
#include "outside.h"

#include <limits.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define IDS 65536

struct attributes {
    uint64_t set, clear, propagation, userns;
};

/* A user namespace that maps 0..IDS-1 to base..; it is never entered, only used as a translation table. */
static int open_id_map(unsigned long base) {
    int gate[2];
    if (pipe2(gate, O_CLOEXEC))
        fail("cannot make a pipe");
    pid_t child = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (child < 0)
        fail("cannot make a user namespace");
    if (child == 0) {
        char byte;
        close(gate[1]);
        _exit(read(gate[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(gate[0]);
    char path[64], map[64];
    snprintf(map, sizeof map, "0 %lu %d\n", base, IDS);
    snprintf(path, sizeof path, "/proc/%d/uid_map", (int)child);
    write_file(path, map);
    snprintf(path, sizeof path, "/proc/%d/gid_map", (int)child);
    write_file(path, map);
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)child);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fail("cannot open %s", path);
    close(gate[1]);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    return fd;
}

static void set_attributes(int tree, const char *path, uint64_t set, int userns) {
    struct attributes attributes = {.set = set | ATTR_NOSUID | ATTR_NODEV, .propagation = MS_PRIVATE};
    if (set & ATTR_NOATIME)
        attributes.clear = ATTR_ANY_ATIME;
    if (userns >= 0) {
        attributes.set |= ATTR_IDMAP;
        attributes.userns = (uint64_t)userns;
    }
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes))
        fail(userns >= 0 ? "the filesystem of %s cannot be mounted with mapped ids" : "cannot protect %s", path);
}

/* A detached copy of one mounted directory or file. */
static int clone_tree(const char *path, uint64_t set, int userns) {
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, path, TREE_CLONE | TREE_CLOEXEC);
    if (tree < 0)
        fail("cannot open %s", path);
    set_attributes(tree, path, set, userns);
    return tree;
}

/* A subvolume as a mount of its own. The store that made it is mounted in another process and nowhere else. */
static int open_subvolume(const char *device, const char *subvolume, uint64_t set, int userns) {
    int context = (int)syscall(SYS_fsopen, "btrfs", FS_CLOEXEC);
    if (context < 0 || syscall(SYS_fsconfig, context, FS_STRING, "source", device, 0) ||
        syscall(SYS_fsconfig, context, FS_STRING, "subvol", subvolume, 0) ||
        syscall(SYS_fsconfig, context, FS_CREATE, NULL, NULL, 0))
        fail("cannot open %s on %s", subvolume, device);
    int tree = (int)syscall(SYS_fsmount, context, FS_CLOEXEC, 0);
    if (tree < 0)
        fail("cannot mount %s on %s", subvolume, device);
    close(context);
    set_attributes(tree, subvolume, set, userns);
    return tree;
}

static void attach(int tree, const char *directory, const char *name, int is_file) {
    char target[PATH_MAX];
    snprintf(target, sizeof target, "%s/%s", directory, name);
    int made = is_file ? mknod(target, S_IFREG | 0555, 0) : mkdir(target, 0755);
    if (made || syscall(SYS_move_mount, tree, "", AT_FDCWD, target, MOVE_FROM_EMPTY_PATH))
        fail("cannot mount %s", target);
    close(tree);
}

/* Put a program on DIRECTORY/NAME. A bind alone would show its path on this machine in the mountinfo of the sandbox;
 * of a file in an overlay only our own names are shown. On too deep a stack of overlays the bind has to do. */
static void attach_program(const char *path, const char *directory, const char *name) {
    char folder[PATH_MAX], lower[PATH_MAX], empty[PATH_MAX], view[PATH_MAX], shown[2 * PATH_MAX], options[3 * PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *file = strrchr(folder, '/');
    if (file == NULL || file == folder)
        fail("%s is not a path to a program", path);
    *file++ = 0;
    snprintf(lower, sizeof lower, "%s.lower", name);
    attach(clone_tree(folder, ATTR_RDONLY, -1), directory, lower, 0);
    snprintf(empty, sizeof empty, "%s/%s.empty", directory, name);
    snprintf(view, sizeof view, "%s/%s.view", directory, name);
    if (mkdir(empty, 0755) || mkdir(view, 0755))
        fail("cannot make %s", view);
    snprintf(options, sizeof options, "lowerdir=%s/%s.lower:%s", directory, name, empty);
    int seen = mount("overlay", view, "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV, options);
    snprintf(shown, sizeof shown, "%s/%s", view, file);
    attach(clone_tree(seen ? path : shown, ATTR_RDONLY, -1), directory, name, 1);
}

/* The overlay acts with the credentials of its mounter. What it makes by itself (the work directory, whiteouts)
 * must belong to an id that FILES can store, so the mounter is the sandbox's own root, with our capabilities. */
static void act_as(unsigned long id) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];
    setfsgid((gid_t)id);
    setfsuid((uid_t)id);
    if (setfsuid((uid_t)-1) != (int)id)
        fail("cannot act as id %lu", id);
    if (syscall(SYS_capget, &header, caps))
        fail("cannot read the capabilities");
    caps[0].effective = caps[0].permitted;
    caps[1].effective = caps[1].permitted;
    if (syscall(SYS_capset, &header, caps))
        fail("cannot keep the capabilities");
}

/* gVisor lays a /tmp of its own, in memory, over an empty one, and no fork would see what is in there. The guest
 * removes this again. SAFETY: in a fork, /tmp is whatever the parent made of it, a link to anywhere too. */
static void occupy_tmp(const char *directory, unsigned long base) {
    struct { uint64_t flags, mode, resolve; } plainly = {O_PATH | O_DIRECTORY | O_CLOEXEC, 0, RESOLVE_PLAINLY};
    char root[PATH_MAX];
    snprintf(root, sizeof root, "%s/root", directory);
    int top = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int tmp = top < 0 ? -1 : (int)syscall(SYS_openat2, top, "tmp", &plainly, sizeof plainly);
    act_as(base);
    if (tmp >= 0 && mkdirat(tmp, ".cloister", 0700) && errno != EEXIST)
        fail("cannot write into /tmp of the sandbox");
    act_as(0);
    close(tmp);
    close(top);
}

static void mount_overlay(const char *directory, unsigned long base) {
    char root[PATH_MAX], options[4 * PATH_MAX];
    snprintf(root, sizeof root, "%s/root", directory);
    /* volatile: no fsync reaches the disk; a sandbox does not outlive a crash of the machine.
     * The rest keeps the upper directory self-contained, so that a copy of it is a fork. */
    snprintf(options, sizeof options,
             "lowerdir=%s/lower,upperdir=%s/files/upper,workdir=%s/files/work,"
             "volatile,redirect_dir=off,index=off,metacopy=off,xino=off",
             directory, directory, directory);
    if (mkdir(root, 0755))
        fail("cannot make %s", root);
    act_as(base);
    if (mount("overlay", root, "overlay", MS_NOSUID | MS_NODEV, options))
        fail("cannot mount the overlay");
    act_as(0);
}

/* gVisor leaves its processes to whoever adopts orphans when its first one ends, and that may take its time. So the
 * first process of a sandbox stays behind, outside its cgroups and off its pipes, until it has reaped them all; then it
 * ends as the runtime did. Everything else happens in a child. */
static void stay_behind(void) {
    if (prctl(PR_SET_CHILD_SUBREAPER, 1))
        fail("cannot adopt processes");
    pid_t child = fork(), pid;
    if (child < 0)
        fail("cannot fork");
    if (child == 0)
        return;
    syscall(SYS_close_range, 0u, ~0u, 0u);
    int status = 0, runtime = 0;
    while ((pid = waitpid(-1, &status, 0)) > 0 || errno == EINTR)
        if (pid == child)
            runtime = status;
    if (WIFSIGNALED(runtime)) {
        signal(WTERMSIG(runtime), SIG_DFL);
        raise(WTERMSIG(runtime));
    }
    _exit(WIFEXITED(runtime) ? WEXITSTATUS(runtime) : FAILED);
}

int main(int argc, char **argv) {
    const char *lower = NULL, *files = NULL, *guest = NULL, *directory = NULL, *detach = NULL;
    const char *root = NULL, *device = NULL, *preload = NULL;
    const char *cgroups[CGROUPS];
    unsigned long base = 0;
    int joined = 0, is_gvisor = 0, option;
    while ((option = getopt(argc, argv, "+b:l:f:r:v:x:p:Vm:d:g:")) != -1) {
        switch (option) {
        case 'b': base = strtoul(optarg, NULL, 10); break;
        case 'l': lower = optarg; break;
        case 'f': files = optarg; break;
        case 'r': root = optarg; break;
        case 'v': device = optarg; break;
        case 'x': guest = optarg; break;
        case 'p': preload = optarg; break;
        case 'V': is_gvisor = 1; break;
        case 'm': directory = optarg; break;
        case 'd': detach = optarg; break;
        case 'g':
            if (joined == CGROUPS)
                errno = 0, fail("more than %d cgroups", CGROUPS);
            cgroups[joined++] = optarg;
            break;
        default: return FAILED;
        }
    }
    errno = 0;
    /* SAFETY: no id of the sandbox may be one of the host's own; 65,536 keeps all of those out. */
    if (base < IDS || base > UINT32_MAX - IDS || !(root || (lower && files)) || !guest || !directory ||
        optind >= argc)
        fail("usage: launch -b BASE (-l LOWER -f FILES | [-v DEVICE] -r ROOT) -x GUEST [-p LIBRARY] [-V] -m DIR [-g PROCS]... [-d TREE] -- RUNTIME ARGUMENT...");

    if (is_gvisor)
        stay_behind();
    /* First of all: from here on, killing the cgroup kills us. "0" is whoever writes it. */
    for (int i = 0; i < joined; i++)
        write_file(cgroups[i], "0");
    if (syscall(SYS_close_range, 3u, ~0u, 0u))
        fail("cannot close inherited files");
    umask(022);

    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        fail("cannot make a mount namespace");
    int ids = open_id_map(base);
    /* Without times of access, so that reading does not write. */
    int tree = !root ? clone_tree(lower, ATTR_RDONLY, ids)
               : device ? open_subvolume(device, root, ATTR_NOATIME, ids)
                        : clone_tree(root, ATTR_NOATIME, ids);
    int files_tree = root ? -1 : clone_tree(files, 0, ids);
    close(ids);
    if (mount("cloister", directory, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=64k,nr_inodes=24"))
        fail("cannot mount a tmpfs on %s", directory);
    attach_program(guest, directory, "guest");
    if (preload)
        attach_program(preload, directory, "preload");
    attach(tree, directory, root ? "root" : "lower", 0);
    if (!root) {
        attach(files_tree, directory, "files", 0);
        mount_overlay(directory, base);
    }
    if (is_gvisor)
        occupy_tmp(directory, base);
    if (detach && umount2(detach, MNT_DETACH))
        fail("cannot detach %s", detach);

    execv(argv[optind], argv + optind);
    fail("cannot run %s", argv[optind]);
}
