/* Who a machine is. A saved machine wakes up as somebody else, with another clock, other secrets and other limits;
 * the first process sees to that, and the guest, which may not, asks it. */
#include "vm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/random.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_SEED = 512,
    IDENTITY = 8 + 4 + 4 + MACHINE_ID, /* clock, processes, open files, machine id; as they are in a WAKE frame */
    ASK_IDENTITY = 1,
    ASK_NAME = 2,
    ASK_QUIET = 3,
};

int pids_max = -1, machine_id = -1;
static uint32_t open_files = 1024;
static int entropy = -1;
static int keeper = -1; /* the guest's line to the first process */

void must(bool well, const char *what)
{
    if (!well) {
        dprintf(STDERR_FILENO, "guest: %s: %s\n", what, strerror(errno));
        finish(1);
    }
}

static _Noreturn void power_off(void)
{
    for (;;)
        reboot(RB_AUTOBOOT); /* the machine is run such that it does not come back */
}

static void set_clock(uint64_t nanoseconds)
{
    struct timespec now = {(time_t)(nanoseconds / 1000000000), (long)(nanoseconds % 1000000000)};
    must(clock_settime(CLOCK_REALTIME, &now) == 0, "the clock");
}

/* Every machine that was saved once holds the same secrets; from here on they differ. */
static void add_entropy(const uint8_t *seed, uint32_t length)
{
    struct {
        struct rand_pool_info info;
        uint8_t seed[MAX_SEED];
    } pool = {.info = {.entropy_count = (int)length * 8, .buf_size = (int)length}};
    if (length < 32 || length > MAX_SEED)
        power_off();
    memcpy(pool.info.buf, seed, length);
    must(ioctl(entropy, RNDADDENTROPY, &pool) == 0 && ioctl(entropy, RNDRESEEDCRNG) == 0, "the entropy");
    explicit_bzero(&pool, sizeof pool);
}

static void set_machine_id(const uint8_t *id)
{
    char text[MACHINE_ID + 1];
    memcpy(text, id, MACHINE_ID);
    text[MACHINE_ID] = '\n';
    must(pwrite(machine_id, text, sizeof text, 0) == sizeof text, "the machine id");
}

static uint64_t get_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* What only the first process may do. The guest has checked nothing but the size, and that is checked here again. */
static void become(const uint8_t *at, size_t size, pid_t guest)
{
    char most[16];
    uint32_t limits[2];
    if (size < IDENTITY || size > IDENTITY + MAX_SEED)
        power_off();
    memcpy(limits, at + 8, sizeof limits);
    set_clock(get_u64(at));
    add_entropy(at + IDENTITY, (uint32_t)(size - IDENTITY));
    set_machine_id(at + 16);
    struct rlimit files = {limits[1], limits[1]};
    must(prlimit(guest, RLIMIT_NOFILE, &files, NULL) == 0, "the limit of open files");
    int n = snprintf(most, sizeof most, "%u", limits[0]);
    must(pwrite(pids_max, most, (size_t)n, 0) == n, "the limit of processes");
}

/* All that was written goes to the disk, and whoever writes more waits; or they go on. */
static bool set_quiet(bool on)
{
    int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool well = root >= 0 && ioctl(root, on ? FIFREEZE : FITHAW, 0) == 0;
    close(root);
    must(on || well, "the disk");
    return on && well;
}

/* The first process: it does what the guest is not allowed to, and when the guest ends it ends the machine. */
static _Noreturn void keep(pid_t guest, int requests)
{
    uint8_t request[1 + IDENTITY + MAX_SEED];
    for (;;) {
        ssize_t n = recv(requests, request, sizeof request, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            power_off();
        if (request[0] == ASK_IDENTITY)
            become(request + 1, (size_t)n - 1, guest);
        else if (request[0] == ASK_QUIET && n == 2)
            request[0] = set_quiet(request[1]);
        else
            must(sethostname((const char *)request + 1, (size_t)n - 1) == 0, "the host name");
        if (send(requests, request, 1, MSG_NOSIGNAL) != 1)
            power_off();
    }
}

static void end(int number)
{
    (void)number;
    power_off();
}

static uint8_t ask(uint8_t what, const void *about, size_t size)
{
    uint8_t request[1 + IDENTITY + MAX_SEED] = {what};
    if (size > sizeof request - 1)
        die("a WAKE frame is wrong");
    memcpy(request + 1, about, size);
    if (send(keeper, request, 1 + size, MSG_NOSIGNAL) != (ssize_t)(1 + size) || recv(keeper, request, 1, 0) != 1)
        die("the first process is gone");
    return request[0];
}

void vm_wake(struct cursor *payload)
{
    uint8_t about[IDENTITY + MAX_SEED];
    memcpy(about, take_bytes(payload, IDENTITY), IDENTITY);
    uint32_t length = take_u32(payload);
    if (length > MAX_SEED)
        die("a WAKE frame is wrong");
    memcpy(about + IDENTITY, take_bytes(payload, length), length);
    take_nothing(payload);
    memcpy(&open_files, about + 12, sizeof open_files);
    ask(ASK_IDENTITY, about, IDENTITY + length);
}

bool vm_quiet(bool on)
{
    return ask(ASK_QUIET, &(uint8_t){on}, 1) == 1;
}

/* What a command may have open at once. */
uint32_t vm_open_files(void)
{
    return open_files;
}

void vm_rename(const uint8_t *name, uint32_t length)
{
    if (length > 0)
        ask(ASK_NAME, name, length);
}

/* From here on there are two: the first process, which stays here, and the guest, which goes on. */
void keep_and_go_on(void)
{
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "a socket");
    pid_t guest = fork();
    must(guest >= 0, "the guest");
    entropy = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    if (guest > 0) {
        close(ends[1]);
        close(STDIN_FILENO);
        close(STDOUT_FILENO);
        signal(SIGTERM, end);
        signal(SIGINT, end);
        signal(SIGCHLD, SIG_IGN); /* the guest reaps its own; who is left over is nobody's */
        keep(guest, ends[0]);
    }
    close(ends[0]);
    close(entropy);
    close(pids_max);
    close(machine_id);
    keeper = ends[1];
}
