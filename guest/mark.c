/* Whether anything below a directory changed: one number made of what the kernel says about each file. No file is read,
 * so that it costs what looking at the names costs; where that is much, there is no number. */
#include "guest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_MARKED = 2048, MAX_DEPTH = 64, JUST_NOW_MS = 20 };

static uint64_t sum = 1; /* and all files, so that the order in which a directory names them does not matter */
static unsigned marked;
static int64_t newest; /* change of them all */

static int64_t in_ms(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static uint64_t mixed(uint64_t state, uint64_t value)
{
    state = (state ^ value) * 0x9e3779b97f4a7c15u;
    return state ^ state >> 32;
}

static uint64_t mixed_name(uint64_t state, const char *name)
{
    for (; *name; name++)
        state = mixed(state, (uint8_t)*name);
    return mixed(state, '/');
}

static uint64_t mixed_about(uint64_t state, const struct stat *about)
{
    const uint64_t facts[] = {
        about->st_ino, about->st_mode, (uint64_t)about->st_size,
        (uint64_t)about->st_mtim.tv_sec, (uint64_t)about->st_mtim.tv_nsec,
        (uint64_t)about->st_ctim.tv_sec, (uint64_t)about->st_ctim.tv_nsec,
    };
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        state = mixed(state, facts[i]);
    return state;
}

/* Takes the descriptor. False when there is too much, or not all may be seen. */
static bool mark_below(int fd, uint64_t above, unsigned depth, const char *without)
{
    DIR *directory = fd < 0 || depth == MAX_DEPTH ? NULL : fdopendir(fd);
    bool whole = directory != NULL;
    for (struct dirent *entry; whole && (entry = readdir(directory)) != NULL;) {
        struct stat about;
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, without) == 0)
            continue;
        if (++marked > MAX_MARKED || fstatat(fd, name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
            whole = false;
            break;
        }
        uint64_t own = mixed_name(above, name);
        sum += mixed_about(own, &about);
        if (in_ms(about.st_ctim) > newest)
            newest = in_ms(about.st_ctim);
        if (S_ISDIR(about.st_mode))
            whole = mark_below(openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), own, depth + 1, "");
    }
    if (directory != NULL)
        closedir(directory);
    else if (fd >= 0)
        close(fd);
    return whole;
}

_Noreturn void mark_run(const struct start *s, int note)
{
    const char *path = s->argv[0];
    struct timespec now;
    uint8_t record[8];
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        child_fail(note, errno == ENOTDIR ? NOT_A_DIRECTORY : code_of(errno), path, errno);
    clock_gettime(CLOCK_REALTIME, &now);
    if (!mark_below(fd, 1, 0, s->argv[1]))
        _exit(0);
    /* The kernel's clock has steps: a change in the same one as the last would not be seen. */
    if (newest > in_ms(now) - JUST_NOW_MS)
        sum = 0;
    put_u32(record, (uint32_t)sum);
    put_u32(record + 4, (uint32_t)(sum >> 32));
    files_write(note, path, STDOUT_FILENO, record, sizeof record);
    _exit(0);
}
