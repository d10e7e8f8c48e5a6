/* What programs inside may ask of the kernel: a list of system calls, made into a filter once, here. What is not
 * on the list fails with EPERM; what is newer than the list does not exist (ENOSYS), so that libraries fall back. */
#include "../guest.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    NEWEST_KNOWN = 450, /* set_mempolicy_home_node */
    X32_BIT = 0x40000000,
    ANY_NAMESPACE = 0x7e020000, /* CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET} */
    TERMINAL_INPUT = 0x5412,    /* TIOCSTI: type into somebody's terminal */
    TERMINAL_LINUX = 0x541c,    /* TIOCLINUX: paste into it */
    TERMINAL_DRIVER = 0x5423,   /* TIOCSETD: load a line discipline, a driver of the host's kernel */
    IOCTL_GROUP = 0xff00,
    BTRFS_GROUP = 0x9400,
    NEW_LISTENER = 8,           /* SECCOMP_FILTER_FLAG_NEW_LISTENER */
    SOCKET_TYPE = 0xf,
    FILTER_LENGTH = 1024,
};

static struct sock_filter filter[FILTER_LENGTH];
static unsigned short length;

#define ARGUMENT(n) (offsetof(struct seccomp_data, args) + 8 * (n)) /* low half: these are ints to the kernel */
#define REFUSE(error) (SECCOMP_RET_ERRNO | (error))

static void emit(uint16_t code, uint8_t jt, uint8_t jf, uint32_t k)
{
    if (length == FILTER_LENGTH)
        die("the seccomp filter is too long");
    filter[length++] = (struct sock_filter){code, jt, jf, k};
}

static void load(uint32_t offset)
{
    emit(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset);
}

static void answer(uint32_t action)
{
    emit(BPF_RET | BPF_K, 0, 0, action);
}

static void answer_if(uint16_t test, uint32_t value, uint32_t action)
{
    emit(BPF_JMP | test | BPF_K, 0, 1, value);
    answer(action);
}

/* Rules for one call follow; `end_call` says how far they go. */
static unsigned begin_call(uint32_t number)
{
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, number);
    return length - 1u;
}

static void end_call(unsigned begin, uint32_t otherwise)
{
    answer(otherwise);
    unsigned skip = length - begin - 1;
    if (skip > 255)
        die("a seccomp rule is too long");
    filter[begin].jf = (uint8_t)skip;
}

static void internet(uint32_t family)
{
    /* Streams and datagrams of TCP and UDP; no raw packets, no rarely visited protocol. */
    unsigned here = begin_call(family);
    load(ARGUMENT(1));
    emit(BPF_ALU | BPF_AND | BPF_K, 0, 0, SOCKET_TYPE);
    emit(BPF_JMP | BPF_JEQ | BPF_K, 2, 0, SOCK_STREAM);
    emit(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, SOCK_DGRAM);
    answer(REFUSE(EPERM));
    load(ARGUMENT(2));
    answer_if(BPF_JEQ, 0, SECCOMP_RET_ALLOW);
    answer_if(BPF_JEQ, 6, SECCOMP_RET_ALLOW);
    answer_if(BPF_JEQ, 17, SECCOMP_RET_ALLOW);
    end_call(here, REFUSE(EPROTONOSUPPORT));
}

static void sockets(void)
{
    unsigned begin = begin_call(SYS_socket);
    load(ARGUMENT(0));
    answer_if(BPF_JEQ, AF_UNIX, SECCOMP_RET_ALLOW);
    internet(AF_INET);
    internet(AF_INET6);
    unsigned netlink = begin_call(AF_NETLINK);
    load(ARGUMENT(2));
    answer_if(BPF_JEQ, NETLINK_ROUTE, SECCOMP_RET_ALLOW);
    /* Not EPERM: the tools that add users abort if the audit refuses them, and go on if there is none. */
    end_call(netlink, REFUSE(EPROTONOSUPPORT));
    end_call(begin, REFUSE(EAFNOSUPPORT));
    begin = begin_call(SYS_socketpair);
    load(ARGUMENT(0));
    answer_if(BPF_JEQ, AF_UNIX, SECCOMP_RET_ALLOW);
    end_call(begin, REFUSE(EAFNOSUPPORT));
}

static void by_argument(void)
{
    unsigned begin = begin_call(SYS_clone);
    load(ARGUMENT(0));
    answer_if(BPF_JSET, ANY_NAMESPACE, REFUSE(EPERM));
    end_call(begin, SECCOMP_RET_ALLOW);
    begin = begin_call(SYS_ioctl);
    load(ARGUMENT(1));
    answer_if(BPF_JEQ, TERMINAL_INPUT, REFUSE(EPERM));
    answer_if(BPF_JEQ, TERMINAL_LINUX, REFUSE(EPERM));
    answer_if(BPF_JEQ, TERMINAL_DRIVER, REFUSE(EPERM));
    /* Copies that share blocks are everybody's; the rest of btrfs's calls is not: a subvolume made inside would
     * escape the limit of the one around it. */
    answer_if(BPF_JEQ, FICLONE, SECCOMP_RET_ALLOW);
    answer_if(BPF_JEQ, FICLONERANGE, SECCOMP_RET_ALLOW);
    answer_if(BPF_JEQ, FIDEDUPERANGE, SECCOMP_RET_ALLOW);
    emit(BPF_ALU | BPF_AND | BPF_K, 0, 0, IOCTL_GROUP);
    answer_if(BPF_JEQ, BTRFS_GROUP, REFUSE(ENOTTY));
    end_call(begin, SECCOMP_RET_ALLOW);
    begin = begin_call(SYS_personality);
    load(ARGUMENT(0));
    answer_if(BPF_JEQ, 0, SECCOMP_RET_ALLOW);
    answer_if(BPF_JEQ, 0xffffffff, SECCOMP_RET_ALLOW);
    end_call(begin, REFUSE(EPERM));
    begin = begin_call(SYS_seccomp);
    load(ARGUMENT(1));
    answer_if(BPF_JSET, NEW_LISTENER, REFUSE(EPERM));
    end_call(begin, SECCOMP_RET_ALLOW);
    /* Its flags are behind a pointer, where a filter cannot look: libraries use clone instead. */
    end_call(begin_call(SYS_clone3), REFUSE(ENOSYS));
    /* Their requests come out of one pool of the whole machine (aio-nr): libraries use threads instead. */
    static const uint16_t pooled[] = {SYS_io_setup, SYS_io_destroy, SYS_io_getevents, SYS_io_pgetevents,
                                      SYS_io_submit, SYS_io_cancel};
    for (size_t i = 0; i < sizeof pooled / sizeof *pooled; i++)
        end_call(begin_call(pooled[i]), REFUSE(ENOSYS));
    sockets();
}

static const uint16_t allowed[] = {
#include "allowed.h"
};

static int ascending(const void *a, const void *b)
{
    return *(const uint16_t *)a - *(const uint16_t *)b;
}

static void by_number(void)
{
    uint16_t numbers[sizeof allowed / sizeof *allowed];
    size_t count = sizeof allowed / sizeof *allowed;
    for (size_t i = 0; i < count; i++)
        numbers[i] = allowed[i];
    qsort(numbers, count, sizeof *numbers, ascending);
    for (size_t i = 0, last; i < count; i = last + 1) {
        for (last = i; last + 1 < count && numbers[last + 1] <= numbers[last] + 1;)
            last++;
        emit(BPF_JMP | BPF_JGE | BPF_K, 0, 2, numbers[i]);
        emit(BPF_JMP | BPF_JGT | BPF_K, 1, 0, numbers[last]);
        answer(SECCOMP_RET_ALLOW);
    }
}

void seccomp_load(void)
{
    load(offsetof(struct seccomp_data, arch));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, AUDIT_ARCH_X86_64);
    answer(SECCOMP_RET_KILL_PROCESS); /* int 0x80 has other numbers for other calls */
    load(offsetof(struct seccomp_data, nr));
    answer_if(BPF_JGE, X32_BIT, REFUSE(ENOSYS));
    by_number();
    by_argument();
    answer_if(BPF_JGT, NEWEST_KNOWN, REFUSE(ENOSYS));
    answer(REFUSE(EPERM));
    struct sock_fprog program = {.len = length, .filter = filter};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
        die("the seccomp filter cannot be loaded");
}
