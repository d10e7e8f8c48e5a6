/* What the two programs that start a sandbox on the host share. Each defines PROGRAM, its name, before. */
#ifndef OUTSIDE_H
#define OUTSIDE_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Own names for what older C libraries lack; the numbers are the kernel's and never change. */
#define TREE_CLONE 1u
#define TREE_CLOEXEC O_CLOEXEC
#define MOVE_FROM_EMPTY_PATH 0x4u
#define ATTR_RDONLY 0x1ull
#define ATTR_NOSUID 0x2ull
#define ATTR_NODEV 0x4ull
#define ATTR_NOATIME 0x10ull
#define ATTR_ANY_ATIME 0x70ull
#define ATTR_IDMAP 0x100000ull
#define FS_CLOEXEC 1u
#define FS_STRING 1u
#define FS_CREATE 6u
#ifndef AT_EMPTY_PATH
#define AT_EMPTY_PATH 0x1000
#endif
#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#endif
#ifndef SYS_fsopen
#define SYS_fsopen 430
#define SYS_fsconfig 431
#define SYS_fsmount 432
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define RESOLVE_PLAINLY 0xdull /* RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH */
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

#define FAILED 125
#define CGROUPS 16

static void fail(const char *format, ...)
{
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    fputs(PROGRAM ": ", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (error)
        fprintf(stderr, ": %s", strerror(error));
    fputc('\n', stderr);
    exit(FAILED);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t length = (ssize_t)strlen(text);
    if (fd < 0 || write(fd, text, (size_t)length) != length)
        fail("cannot write %s", path);
    close(fd);
}

#endif
