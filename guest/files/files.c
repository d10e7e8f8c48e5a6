/* Reading, writing and listing files, in a process of their own with the rights of a command. Which file a
 * name means, and whether it may be touched, is the kernel's answer here, inside; never the host's. */
#include "../guest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char temporary[PATH_MAX];

void files_write(int note, const char *what, int fd, const void *data, size_t n)
{
    for (const char *at = data; n > 0;) {
        ssize_t done = write(fd, at, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            int error = errno;
            unlink(temporary);
            child_fail(note, code_of(error), what, error);
        }
        at += done;
        n -= (size_t)done;
    }
}

static _Noreturn void read_file(const struct start *s, int note)
{
    static char buffer[WINDOW];
    const char *path = s->argv[0];
    struct stat about;
    unsigned long long left = strtoull(s->argv[2], NULL, 10);
    /* O_NONBLOCK: a pipe without a writer must not hold us here. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        child_fail(note, errno == ENXIO ? NOT_A_FILE : code_of(errno), path, errno);
    if (fstat(fd, &about) != 0)
        child_fail(note, code_of(errno), path, errno);
    if (!S_ISREG(about.st_mode))
        child_fail(note, NOT_A_FILE, path, S_ISDIR(about.st_mode) ? EISDIR : EINVAL);
    if (lseek(fd, (off_t)strtoll(s->argv[1], NULL, 10), SEEK_SET) < 0)
        child_fail(note, FAILED, path, errno);
    while (left > 0) {
        ssize_t n = read(fd, buffer, left < sizeof buffer ? (size_t)left : sizeof buffer);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            child_fail(note, code_of(errno), path, errno);
        if (n == 0)
            break;
        files_write(note, path, STDOUT_FILENO, buffer, (size_t)n);
        left -= (size_t)n;
    }
    _exit(0);
}

void files_make_parents(int note, char *directory)
{
    struct stat about;
    if (stat(directory, &about) == 0 && S_ISDIR(about.st_mode))
        return;
    for (char *slash = directory + 1;; slash++) {
        if (*slash != '/' && *slash != 0)
            continue;
        char kept = *slash;
        *slash = 0;
        if (mkdir(directory, 0755) != 0 && errno != EEXIST)
            child_fail(note, errno == ENOTDIR ? FAILED : code_of(errno), directory, errno);
        *slash = kept;
        if (kept == 0)
            break;
    }
    if (stat(directory, &about) != 0 || !S_ISDIR(about.st_mode))
        child_fail(note, FAILED, directory, ENOTDIR);
}

static void give_up(int number)
{
    unlink(temporary);
    signal(number, SIG_DFL);
    raise(number);
}

/* Where the bytes belong: through links, as any editor would. */
static const char *resolve(int note, const char *path, char into[PATH_MAX])
{
    struct stat about;
    if (stat(path, &about) == 0) {
        if (!S_ISREG(about.st_mode))
            child_fail(note, NOT_A_FILE, path, S_ISDIR(about.st_mode) ? EISDIR : EINVAL);
        if (access(path, W_OK) != 0)
            child_fail(note, code_of(errno), path, errno);
        return realpath(path, into) != NULL ? into : path;
    }
    if (errno != ENOENT && errno != ENOTDIR)
        child_fail(note, code_of(errno), path, errno);
    return path;
}

static _Noreturn void write_file(const struct start *s, int note)
{
    static char buffer[WINDOW], resolved[PATH_MAX], parent[PATH_MAX];
    if (strlen(s->argv[0]) + sizeof "/.cloister-XXXXXX" > PATH_MAX)
        child_fail(note, NOT_FOUND, s->argv[0], ENAMETOOLONG);
    const char *path = resolve(note, s->argv[0], resolved);
    size_t length = strlen(path);
    if (length == 0 || path[length - 1] == '/')
        child_fail(note, NOT_A_FILE, s->argv[0], EISDIR);
    strcpy(parent, path);
    char *directory = dirname(parent);
    files_make_parents(note, directory);
    signal(SIGTERM, give_up);
    snprintf(temporary, sizeof temporary, "%.*s/.cloister-XXXXXX", PATH_MAX - 32, directory);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        temporary[0] = 0;
        child_fail(note, code_of(errno), path, errno);
    }
    /* Without a size the end of the stream is the end of the file: who gives up kills us instead. */
    bool sized = strcmp(s->argv[2], "-") != 0;
    unsigned long long left = sized ? strtoull(s->argv[2], NULL, 10) : ULLONG_MAX;
    for (ssize_t n; (n = read(STDIN_FILENO, buffer, sizeof buffer)) != 0;) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || (unsigned long long)n > left)
            give_up(SIGTERM);
        files_write(note, path, fd, buffer, (size_t)n);
        left -= (size_t)n;
    }
    if (sized && left > 0)
        give_up(SIGTERM); /* the stream broke off: half a file is no file */
    if (fchmod(fd, (mode_t)strtoul(s->argv[1], NULL, 8) & 07777) != 0 || close(fd) != 0 ||
        rename(temporary, path) != 0) {
        int error = errno;
        unlink(temporary);
        child_fail(note, error == EISDIR ? NOT_A_FILE : code_of(error), path, error);
    }
    _exit(0);
}

static uint8_t kind_of(mode_t mode)
{
    return S_ISREG(mode) ? 0 : S_ISDIR(mode) ? 1 : S_ISLNK(mode) ? 2 : 3;
}

static void put_u64(uint8_t *at, uint64_t value)
{
    put_u32(at, (uint32_t)value);
    put_u32(at + 4, (uint32_t)(value >> 32));
}

/* What a listing says of one file; the number of bytes. */
size_t files_entry(uint8_t *record, const char *name, size_t length, const struct stat *about)
{
    int64_t modified = (int64_t)about->st_mtim.tv_sec * 1000 + about->st_mtim.tv_nsec / 1000000;
    record[0] = kind_of(about->st_mode);
    put_u64(record + 1, (uint64_t)about->st_size);
    put_u32(record + 9, about->st_mode & 07777);
    put_u64(record + 13, modified > 0 ? (uint64_t)modified : 0);
    put_u32(record + 21, (uint32_t)length);
    memcpy(record + ENTRY_HEAD, name, length);
    return ENTRY_HEAD + length;
}

static _Noreturn void list_files(const struct start *s, int note)
{
    const char *path = s->argv[0];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        child_fail(note, errno == ENOTDIR ? NOT_A_DIRECTORY : code_of(errno), path, errno);
    DIR *directory = fdopendir(fd);
    if (directory == NULL)
        child_fail(note, FAILED, path, errno);
    static uint8_t records[MAX_PAYLOAD];
    size_t used = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        struct stat about;
        size_t n = strlen(entry->d_name);
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (n > NAME_MAX || fstatat(fd, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0)
            continue; /* gone since */
        if (used + ENTRY_HEAD + n > sizeof records) {
            files_write(note, path, STDOUT_FILENO, records, used);
            used = 0;
        }
        used += files_entry(records + used, entry->d_name, n, &about);
    }
    files_write(note, path, STDOUT_FILENO, records, used);
    _exit(0);
}

_Noreturn void files_run(const struct start *s, int note)
{
    switch (s->kind) {
    case KIND_READ: read_file(s, note);
    case KIND_WRITE: write_file(s, note);
    case KIND_LIST: list_files(s, note);
    case KIND_STAT: tree_stat(s, note);
    case KIND_MOVE: tree_move(s, note);
    case KIND_REMOVE: tree_remove(s, note);
    case KIND_MAKE: tree_make(s, note);
    default: watch_run(s, note);
    }
}
