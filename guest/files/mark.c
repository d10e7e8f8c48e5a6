/* Whether anything below a directory changed: one number made of what the kernel says about each file. No file is read,
 * so that it costs what looking at the names costs; where that is much, there is no number. The guest does it itself: there
 * is one after nearly every command, nothing is opened but directories, and all that comes of it is equal or not. */
#include "../guest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_MARKED = 2048, MAX_DEPTH = 64, JUST_NOW_MS = 20 };

static uint64_t sum; /* of all files, so that the order in which a directory names them does not matter */
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

/* False when there is too much, or not all may be seen; `errno` says what is wrong with the directory itself. */
static bool mark(const char *path, const char *without, uint64_t *found)
{
    struct timespec now;
    sum = 1;
    marked = 0;
    newest = 0;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    clock_gettime(CLOCK_REALTIME, &now);
    bool whole = mark_below(fd, 1, 0, without);
    errno = 0;
    /* The kernel's clock has steps: a change in the same one as the last would not be seen. */
    *found = newest > in_ms(now) - JUST_NOW_MS ? 0 : sum;
    return whole;
}

void mark_tell(uint32_t id, const struct start *s)
{
    uint64_t found = 0;
    uint8_t data[1 + 8] = {1}, ended[7] = {0};
    bool whole = mark(s->argv[0], s->argv[1], &found);
    if (!whole && errno != 0) {
        bool no_directory = errno == ENOTDIR || errno == ELOOP;
        out_fail(id, no_directory ? NOT_A_DIRECTORY : code_of(errno), strerror(errno));
        return;
    }
    put_u32(data + 1, (uint32_t)found);
    put_u32(data + 5, (uint32_t)(found >> 32));
    if (whole)
        out_frame(DATA, id, data, sizeof data);
    out_frame(EXIT, id, ended, sizeof ended);
}
