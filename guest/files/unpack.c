/* Programs of a build, started as `guest --WHAT …` by root inside: they work in images that hold no program at all.
 *
 *   --unpack TOP BYTES ENTRIES FLAGS   unpack the tar archive on stdin into TOP
 *   --as UID GID PROGRAM ARGUMENT...   run a program as another user of the image
 *   --look PATH                        print what PATH is: none, file, directory, or empty for an empty directory
 *
 * The archive is hostile. It is read here, inside the sandbox, so its names and links reach nothing but the sandbox.
 * Every byte of the archive counts, headers too, and so does every entry. FLAGS: `w` obeys the whiteouts of an image's
 * layer, `k` keeps the owner and mode of directories that exist. */
#include "archive.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { WALK_FILES = 64 };

static bool obeys_whiteouts, keeps_directories;

/* The files of this layer, so that an opaque directory loses only older ones. */
static uint64_t *seen;
static size_t seen_room, seen_count;

static uint64_t key_of(const struct stat *about)
{
    uint64_t key = about->st_ino ^ (uint64_t)about->st_dev * 0x9e3779b97f4a7c15ull;
    return key ? key : 1;
}

static uint64_t *slot_of(uint64_t *table, size_t room, uint64_t key)
{
    size_t at = (key * 0x9e3779b97f4a7c15ull) >> 20 & (room - 1);
    while (table[at] && table[at] != key)
        at = (at + 1) & (room - 1);
    return table + at;
}

static void remember(const char *path)
{
    struct stat about;
    if (!obeys_whiteouts || lstat(path, &about) != 0)
        return;
    if (2 * (seen_count + 1) > seen_room) {
        size_t room = seen_room ? 2 * seen_room : 4096;
        uint64_t *table = calloc(room, sizeof *table);
        if (!table)
            refuse("too many files for the memory of the sandbox", NULL);
        for (size_t i = 0; i < seen_room; i++)
            if (seen[i])
                *slot_of(table, room, seen[i]) = seen[i];
        free(seen);
        seen = table, seen_room = room;
    }
    uint64_t key = key_of(&about), *slot = slot_of(seen, seen_room, key);
    seen_count += *slot == 0;
    *slot = key;
}

static bool is_of_this_layer(const struct stat *about)
{
    return seen && *slot_of(seen, seen_room, key_of(about)) != 0;
}

static bool only_older;

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *at)
{
    (void)at;
    if (only_older && is_of_this_layer(about))
        return 0;
    if ((kind == FTW_DP || kind == FTW_DNR ? rmdir(path) : unlink(path)) == 0 || errno == ENOENT)
        return 0;
    return only_older && errno == ENOTEMPTY ? 0 : -1;
}

static void remove_all(const char *path, bool older)
{
    struct stat about;
    if (lstat(path, &about) != 0)
        return;
    only_older = older;
    if (nftw(path, remove_one, WALK_FILES, FTW_DEPTH | FTW_PHYS) != 0)
        failed(path);
}

/* What a runtime mounted belongs to no image. */
static bool is_mounted(const char *path)
{
    static const char *const mounted[] = {"/proc", "/dev", "/.cloister"};
    for (unsigned i = 0; i < sizeof mounted / sizeof *mounted; i++) {
        size_t n = strlen(mounted[i]);
        if (strncmp(path, mounted[i], n) == 0 && (path[n] == 0 || path[n] == '/'))
            return true;
    }
    return false;
}

static void empty(const char *directory)
{
    static char path[PATH_MAX + NAME_MAX + 2];
    DIR *here = opendir(directory[0] ? directory : "/");
    if (!here)
        return;
    for (struct dirent *each; (each = readdir(here));) {
        snprintf(path, sizeof path, "%s/%s", directory, each->d_name);
        if (strcmp(each->d_name, ".") != 0 && strcmp(each->d_name, "..") != 0 && !is_mounted(path))
            remove_all(path, true);
    }
    closedir(here);
}

static bool was_whiteout(const char *path)
{
    static char target[PATH_MAX];
    const char *name = strrchr(path, '/');
    if (!obeys_whiteouts || !name || strncmp(name + 1, ".wh.", 4) != 0)
        return false;
    int folder = (int)(name - path);
    snprintf(target, sizeof target, "%.*s", folder, path);
    if (strcmp(name + 1, ".wh..wh..opq") == 0)
        empty(target);
    else if (strncmp(name + 1, ".wh..wh.", 8) != 0 && name[5] && strcmp(name + 5, ".") != 0 && strcmp(name + 5, "..") != 0) {
        snprintf(target, sizeof target, "%.*s/%s", folder, path, name + 5);
        if (!is_mounted(target))
            remove_all(target, false);
    }
    return true;
}

static void make_parents(char *path)
{
    struct stat about;
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0755) == 0)
            remember(path);
        else if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode))
            refuse("a parent is not a directory", path);
        *slash = '/';
    }
}

static void write_file(const struct entry *entry)
{
    static uint8_t buffer[262144];
    int fd = open(entry->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        failed(entry->name);
    for (uint64_t left = entry->size; left > 0;) {
        size_t n = left < sizeof buffer ? (size_t)left : sizeof buffer;
        archive_take(buffer, n);
        for (size_t done = 0; done < n;) {
            ssize_t wrote = write(fd, buffer + done, n - done);
            if (wrote < 0)
                failed(entry->name);
            done += (size_t)wrote;
        }
        left -= n;
    }
    if (close(fd) != 0)
        failed(entry->name);
    archive_skip(archive_padding(entry->size));
}

static void set_about(const struct entry *entry)
{
    const char *path = entry->name[0] ? entry->name : "/";
    if (lchown(path, (uid_t)entry->uid, (gid_t)entry->gid) != 0)
        failed(path);
    /* Set-id bits mean nothing in a sandbox; on directories they only say who owns new files. */
    if (entry->type != '2' && chmod(path, entry->mode & (entry->type == '5' ? 03777 : 01777)) != 0)
        failed(path);
    for (unsigned i = 0; i < entry->attribute_count; i++) {
        const struct attribute *each = entry->attributes + i;
        if (lsetxattr(path, each->name, each->value, each->length, 0) != 0 && errno != ENOTSUP && errno != EPERM)
            failed(path);
    }
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = (time_t)entry->modified}};
    utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW);
}

/* Make room for the entry; true if it is a directory that is there already. */
static bool is_there(const struct entry *entry)
{
    struct stat about;
    if ((keeps_directories && entry->type == '5' ? stat : lstat)(entry->name[0] ? entry->name : "/", &about) != 0)
        return false;
    if (S_ISDIR(about.st_mode) && (entry->type == '5' || keeps_directories)) {
        if (entry->type != '5')
            refuse("there is a directory of that name", entry->name);
        return true;
    }
    if (!entry->name[0])
        refuse("the root is not a directory", NULL);
    remove_all(entry->name, false);
    return false;
}

static void place(struct entry *entry)
{
    bool ignored = !strchr("01256", entry->type) || is_mounted(entry->name) || was_whiteout(entry->name);
    if (ignored) {
        archive_skip(entry->size);
        archive_skip(archive_padding(entry->size));
        return;
    }
    make_parents(entry->name);
    bool there = is_there(entry);
    int made = 0;
    switch (entry->type) {
    case '0': write_file(entry); break;
    case '1': made = linkat(AT_FDCWD, entry->link, AT_FDCWD, entry->name, 0); break;
    case '2': made = symlink(entry->link, entry->name); break;
    case '5': made = there ? 0 : mkdir(entry->name, 0700); break;
    case '6': made = mkfifo(entry->name, 0600); break;
    }
    if (made != 0)
        failed(entry->name);
    if (entry->type != '0') {
        archive_skip(entry->size);
        archive_skip(archive_padding(entry->size));
    }
    if (entry->type != '1' && !(there && keeps_directories))
        set_about(entry);
    remember(entry->name[0] ? entry->name : "/");
}

static _Noreturn void unpack(char **argv)
{
    static struct entry entry;
    archive.top = argv[0];
    archive.bytes_left = archive.bytes_most = strtoull(argv[1], NULL, 10);
    archive.entries_left = archive.entries_most = strtoull(argv[2], NULL, 10);
    obeys_whiteouts = strchr(argv[3], 'w') != NULL;
    keeps_directories = strchr(argv[3], 'k') != NULL;
    umask(0);
    if (archive.top[0] != '/' || strlen(archive.top) >= PATH_MAX / 2)
        refuse("usage: guest --unpack TOP BYTES ENTRIES FLAGS", NULL);
    while (archive_next(&entry)) {
        place(&entry);
        archive_forget();
    }
    /* The rest is padding, of which there may be any amount. */
    static uint8_t rest[65536];
    ssize_t n;
    while ((n = read(STDIN_FILENO, rest, sizeof rest)) > 0) {
        if ((uint64_t)n > archive.bytes_left)
            refuse("the archive is larger than the limit", NULL);
        archive.bytes_left -= (uint64_t)n;
    }
    printf("%llu %llu\n", (unsigned long long)(archive.bytes_most - archive.bytes_left), (unsigned long long)(archive.entries_most - archive.entries_left));
    exit(fflush(stdout) == 0 ? 0 : 1);
}

static _Noreturn void run_as(char **argv)
{
    uid_t uid = (uid_t)strtoul(argv[0], NULL, 10);
    gid_t gid = (gid_t)strtoul(argv[1], NULL, 10);
    if (setgroups(0, NULL) != 0 || setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0)
        failed("switching the user");
    execvp(argv[2], argv + 2);
    dprintf(STDERR_FILENO, "%.200s: %s\n", argv[2], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

static const char *look(const char *path)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return errno == ENOENT || errno == ENOTDIR ? "none" : "file";
    DIR *here = S_ISDIR(about.st_mode) ? opendir(path) : NULL;
    if (!here)
        return S_ISDIR(about.st_mode) ? "directory" : "file";
    int names = 0;
    while (readdir(here))
        names++;
    closedir(here);
    return names > 2 ? "directory" : "empty";
}

void build_program(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "--unpack") == 0)
        unpack(argv + 2);
    if (argc >= 5 && strcmp(argv[1], "--as") == 0)
        run_as(argv + 2);
    if (argc == 3 && strcmp(argv[1], "--look") == 0)
        exit(puts(look(argv[2])) < 0);
}
