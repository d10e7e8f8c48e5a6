/* The first process of a virtual machine, where there is no container runtime to prepare anything: it makes the devices,
 * mounts the root disk, opens the line to the host and starts the guest proper. Then it does the few things that the
 * guest must not be able to, such as setting the clock of a saved machine that wakes up as somebody else. */
#include "vm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define PORT "/dev/vport0p1"
#define DISK "/dev/vda"
#define ROOT "/root"
#define COMMANDS "/limits/commands"

enum {
    DEVICE_SECONDS = 120, /* software emulation on a busy machine is slow */
    FILES_MAX = 1 << 20,
};

static int procs = -1; /* of the cgroup that the guest and all commands are in */

static void mount_new(const char *kind, const char *at, unsigned long flags, const char *with)
{
    mkdir(at, 0755);
    must(mount(kind, at, kind, flags | MS_NOSUID, with) == 0, at);
}

static bool load_module(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/modules/%s.ko", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    must(fd >= 0, path);
    bool loaded = syscall(SYS_finit_module, fd, "", 0) == 0 || errno == EEXIST;
    must(loaded || errno == ENOENT, path);
    close(fd);
    return loaded;
}

/* Which module needs which differs from kernel to kernel; one that comes too early fails with ENOENT. */
static void load_modules(void)
{
    static const char *const modules[] = {"virtio", "virtio_ring", "virtio_mmio", "virtio_console", "virtio_blk"};
    enum { COUNT = sizeof modules / sizeof *modules };
    bool loaded[COUNT] = {false};
    int left = COUNT;
    for (int pass = 0; left > 0; pass++) {
        must(pass < COUNT, "a kernel module that needs others");
        for (int i = 0; i < COUNT; i++)
            if (!loaded[i] && load_module(modules[i])) {
                loaded[i] = true;
                left--;
            }
    }
}

static int open_device(const char *path, int flags)
{
    int64_t until = now_ms() + DEVICE_SECONDS * 1000;
    for (;;) {
        int fd = open(path, flags | O_CLOEXEC);
        if (fd >= 0 || now_ms() > until) {
            must(fd >= 0, path);
            return fd;
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static void open_port(void)
{
    int fd = open_device(PORT, O_RDWR | O_NONBLOCK);
    /* Until the host is there, reading says that it is gone. */
    for (struct pollfd port = {.fd = fd, .events = POLLOUT}; poll(&port, 1, 100) >= 0 && (port.revents & POLLHUP);)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    dup2(fd, STDIN_FILENO);
    dup2(fd, STDOUT_FILENO);
    close(fd);
}

static void make_devices(void)
{
    static const struct {
        const char *name;
        unsigned minor;
    } nodes[] = {{"null", 3}, {"zero", 5}, {"full", 7}, {"random", 8}, {"urandom", 9}};
    static const char *const links[][2] = {
        {"pts/ptmx", "ptmx"},         {"/proc/self/fd", "fd"},        {"/proc/self/fd/0", "stdin"},
        {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"},
    };
    char path[64], shared[64];
    struct sysinfo about;
    mount_new("tmpfs", ROOT "/dev", MS_NOEXEC | MS_STRICTATIME, "mode=755,size=64k");
    for (unsigned i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        snprintf(path, sizeof path, ROOT "/dev/%s", nodes[i].name);
        must(mknod(path, S_IFCHR | 0666, makedev(1, nodes[i].minor)) == 0 && chmod(path, 0666) == 0, path);
    }
    must(mknod(ROOT "/dev/tty", S_IFCHR | 0666, makedev(5, 0)) == 0 && chmod(ROOT "/dev/tty", 0666) == 0, "tty");
    for (unsigned i = 0; i < sizeof links / sizeof *links; i++) {
        snprintf(path, sizeof path, ROOT "/dev/%s", links[i][1]);
        must(symlink(links[i][0], path) == 0, path);
    }
    mount_new("devpts", ROOT "/dev/pts", MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5");
    must(sysinfo(&about) == 0, "sysinfo");
    snprintf(shared, sizeof shared, "mode=1777,size=%lu", about.totalram * about.mem_unit / 4);
    mount_new("tmpfs", ROOT "/dev/shm", MS_NOEXEC | MS_NODEV, shared);
}

/* As a container runtime would: what tells or changes too much of the kernel is hidden or cannot be written. */
static void shut_proc(void)
{
    static const char *const hidden[] = {"kcore", "keys", "timer_list", "interrupts", "kallsyms", "kmsg", "cmdline",
                                         "sched_debug", "latency_stats", "iomem", "ioports", "modules", "vmallocinfo",
                                         "slabinfo", "kpagecount", "kpageflags", "kpagecgroup"};
    static const char *const fixed[] = {"bus", "fs", "irq", "sys", "sysrq-trigger", "mtrr", "pressure"};
    static const char *const empty[] = {"acpi", "scsi", "asound"};
    char path[64];
    for (unsigned i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        snprintf(path, sizeof path, ROOT "/proc/%s", hidden[i]);
        if (access(path, F_OK) == 0)
            must(mount(ROOT "/dev/null", path, NULL, MS_BIND, NULL) == 0, path);
    }
    for (unsigned i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        snprintf(path, sizeof path, ROOT "/proc/%s", fixed[i]);
        if (access(path, F_OK) == 0)
            must(mount(path, path, NULL, MS_BIND, NULL) == 0 &&
                     mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0,
                 path);
    }
    for (unsigned i = 0; i < sizeof empty / sizeof *empty; i++) {
        snprintf(path, sizeof path, ROOT "/proc/%s", empty[i]);
        if (access(path, F_OK) == 0)
            must(mount("tmpfs", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=0") == 0, path);
    }
}

static void write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
    close(fd);
}

static void make_limits(void)
{
    mount_new("cgroup2", "/limits", 0, NULL);
    write_text("/limits/cgroup.subtree_control", "+pids");
    must(mkdir(COMMANDS, 0755) == 0, COMMANDS);
    procs = open(COMMANDS "/cgroup.procs", O_WRONLY | O_CLOEXEC);
    pids_max = open(COMMANDS "/pids.max", O_WRONLY | O_CLOEXEC);
    must(procs >= 0 && pids_max >= 0, COMMANDS);
}

static void make_machine_id(void)
{
    static const char file[] = "/machine-id", over[] = ROOT "/etc/machine-id";
    machine_id = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0444);
    int target = open(over, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0444);
    must(machine_id >= 0 && target >= 0 && mount(file, over, NULL, MS_BIND, NULL) == 0 &&
             mount(NULL, over, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0,
         over);
    close(target);
}

/* The guest is in the same position here as in a container: within the limits, and with no more rights. */
static void confine(void)
{
    const uint32_t kept = 1u << CAP_CHOWN | 1u << CAP_DAC_OVERRIDE | 1u << CAP_FOWNER | 1u << CAP_FSETID |
                          1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_KILL | 1u << CAP_SETPCAP;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2] = {{.effective = kept, .permitted = kept}};
    write_text("/proc/self/oom_score_adj", "-1000");
    must(write(procs, "0", 1) == 1, COMMANDS);
    close(procs);
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (cap >= 32 || !(kept & 1u << cap))
            prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    must(syscall(SYS_capset, &header, caps) == 0, "the capabilities");
}

void vm_boot(void)
{
    mkdir("/dev", 0755);
    mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, NULL);
    int console = open("/dev/console", O_RDWR);
    for (int fd = 0; console >= 0 && fd <= STDERR_FILENO; fd++)
        dup2(console, fd);
    close_from(3, false);
    load_modules();
    close(open_device(DISK, O_RDONLY));
    mkdir(ROOT, 0755);
    /* The tables of free inodes are left as they are: a background thread would write them in every sandbox. */
    must(mount(DISK, ROOT, "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, "noinit_itable") == 0, "the root disk");
    make_limits();
    mount_new("proc", ROOT "/proc", MS_NOEXEC | MS_NODEV, NULL);
    make_devices();
    shut_proc();
    make_machine_id();
    open_port();
    must(chdir(ROOT) == 0 && mount(".", "/", NULL, MS_MOVE, NULL) == 0 && chroot(".") == 0 && chdir("/") == 0,
         "changing the root");
    loopback_up();
    struct rlimit most = {FILES_MAX, FILES_MAX}; /* lowered for each sandbox, and only root could raise it again */
    must(setrlimit(RLIMIT_NOFILE, &most) == 0, "the limit of open files");
    keep_and_go_on();
    confine();
}
