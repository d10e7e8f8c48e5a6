/* Telling what changes below a directory, as the kernel tells it. Who does not listen loses the oldest news: the
 * kernel's queue is the only one there is, and it says when it overflowed. */
#include "../guest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_WATCHED = 4096, MAX_DEPTH = 64 };
enum change { READY_NOW, CREATED, CHANGED, REMOVED, LOST };

static const uint32_t interest = IN_CREATE | IN_MOVED_TO | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM |
                                 IN_DELETE_SELF | IN_MOVE_SELF;

/* The directories that are watched: the kernel's number for each, and its name below the one that was asked for. */
static struct {
    int number;
    char *name;
} watched[MAX_WATCHED];
static unsigned count;
static int inotify, note;
static const char *root;

static void tell(enum change what, const char *directory, const char *name)
{
    static uint8_t record[5 + 2 * PATH_MAX];
    char *text = (char *)record + 5;
    int n = snprintf(text, 2 * PATH_MAX, "%s%s%s", directory, *directory && *name ? "/" : "", name);
    if (n < 0 || n >= PATH_MAX) {
        n = 0;
        what = LOST;
    }
    record[0] = (uint8_t)what;
    put_u32(record + 1, (uint32_t)n);
    files_write(note, root, STDOUT_FILENO, record, 5 + (size_t)n);
}

static void forget(unsigned i)
{
    free(watched[i].name);
    watched[i] = watched[--count];
}

/* A directory went away with its name: what it is called now, if it is here still, it will be told anew. */
static void forget_below(const char *name)
{
    size_t n = strlen(name);
    for (unsigned i = count; i-- > 0;) {
        const char *at = watched[i].name;
        if (strncmp(at, name, n) != 0 || (at[n] != 0 && at[n] != '/'))
            continue;
        inotify_rm_watch(inotify, watched[i].number);
        forget(i);
    }
}

/* Watch a directory and those below it. What is in a new one may be older than our watch, so it is told of. */
static void watch_below(const char *name, unsigned depth, bool is_new)
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s%s%s", root, *name ? "/" : "", name);
    int number = inotify_add_watch(inotify, path, interest | IN_ONLYDIR | IN_DONT_FOLLOW);
    char *kept = number < 0 ? NULL : strdup(name);
    if (number < 0 && (errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP))
        return; /* gone since, or not ours to see */
    if (kept == NULL || count == MAX_WATCHED || depth == MAX_DEPTH || strlen(path) >= PATH_MAX) {
        free(kept);
        tell(LOST, name, ""); /* what happens there is not seen */
        return;
    }
    for (unsigned i = 0; i < count; i++)
        if (watched[i].number == number) /* seen twice: made while we were looking */
            return free(kept);
    watched[count].number = number;
    watched[count++].name = kept;
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        struct stat about;
        char below[2 * PATH_MAX];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (is_new)
            tell(CREATED, name, entry->d_name);
        if (fstatat(dirfd(directory), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(about.st_mode))
            continue;
        snprintf(below, sizeof below, "%s%s%s", name, *name ? "/" : "", entry->d_name);
        watch_below(below, depth + 1, is_new);
    }
    if (directory != NULL)
        closedir(directory);
}

static unsigned depth_of(const char *name)
{
    unsigned depth = *name ? 1 : 0;
    for (; *name; name++)
        depth += *name == '/';
    return depth;
}

/* False when what was asked for is gone itself. */
static bool heed(const struct inotify_event *event)
{
    if (event->mask & IN_Q_OVERFLOW) {
        tell(LOST, "", "");
        return true;
    }
    unsigned i = 0;
    while (i < count && watched[i].number != event->wd)
        i++;
    if (i == count)
        return true;
    bool is_root = watched[i].name[0] == 0;
    if (event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT)) {
        forget(i);
        return !is_root;
    }
    char name[2 * PATH_MAX];
    const char *what = event->len > 0 ? event->name : "";
    snprintf(name, sizeof name, "%s%s%s", watched[i].name, *watched[i].name && *what ? "/" : "", what);
    if (event->mask & (IN_CREATE | IN_MOVED_TO)) {
        tell(CREATED, "", name);
        if (event->mask & IN_ISDIR)
            watch_below(name, depth_of(name), true);
    } else {
        if (event->mask & IN_MOVED_FROM && event->mask & IN_ISDIR)
            forget_below(name);
        tell(event->mask & (IN_DELETE | IN_MOVED_FROM) ? REMOVED : CHANGED, "", name);
    }
    return true;
}

_Noreturn void watch_run(const struct start *s, int note_fd)
{
    static char buffer[65536] __attribute__((aligned(__alignof__(struct inotify_event))));
    struct stat about;
    note = note_fd;
    root = s->argv[0];
    inotify = inotify_init1(IN_CLOEXEC);
    if (inotify < 0)
        child_fail(note, FAILED, root, errno);
    if (strlen(root) >= PATH_MAX / 2)
        child_fail(note, NOT_FOUND, root, ENAMETOOLONG);
    if (stat(root, &about) != 0)
        child_fail(note, code_of(errno), root, errno);
    if (!S_ISDIR(about.st_mode))
        child_fail(note, NOT_A_DIRECTORY, root, ENOTDIR);
    int error = access(root, R_OK | X_OK) != 0 ? errno : 0;
    if (error)
        child_fail(note, code_of(error), root, error);
    static char resolved[PATH_MAX];
    if (realpath(root, resolved) != NULL)
        root = resolved; /* the one link that is followed is the one that was named */
    watch_below("", 0, false);
    if (count == 0)
        child_fail(note, FAILED, root, ENOSPC);
    tell(READY_NOW, "", "");
    for (bool more = true; more;) {
        ssize_t n = read(inotify, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            child_fail(note, FAILED, root, errno);
        for (char *at = buffer; more && at < buffer + n;) {
            const struct inotify_event *event = (const struct inotify_event *)at;
            more = heed(event);
            at += sizeof *event + event->len;
        }
    }
    _exit(0);
}
