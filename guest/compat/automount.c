/* Loaded into every program inside an old gVisor (before 2023), whose kernel takes AT_NO_AUTOMOUNT for a mistake:
 * `ls` and `stat` give it always. It is left out here, for nothing is ever automounted in a sandbox.
 * A shared object without a C library: `syscall` is that of the program it is loaded into, whichever it has. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int statx(int directory, const char *restrict path, int flags, unsigned mask, struct statx *restrict to)
{
    return (int)syscall(SYS_statx, directory, path, flags & ~AT_NO_AUTOMOUNT, mask, to);
}

int fstatat(int directory, const char *restrict path, struct stat *restrict to, int flags)
{
    return (int)syscall(SYS_newfstatat, directory, path, to, flags & ~AT_NO_AUTOMOUNT);
}

int fstatat64(int directory, const char *restrict path, struct stat64 *restrict to, int flags)
{
    return (int)syscall(SYS_newfstatat, directory, path, to, flags & ~AT_NO_AUTOMOUNT);
}
