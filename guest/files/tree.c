/* Looking at, moving, making and removing names, in the same kind of process as files.c. */
#include "../guest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Noreturn void tree_stat(const struct start *s, int note)
{
    static char copy[PATH_MAX];
    static uint8_t record[ENTRY_HEAD + NAME_MAX];
    const char *path = s->argv[0];
    struct stat about;
    if (strlen(path) >= sizeof copy)
        child_fail(note, NOT_FOUND, path, ENAMETOOLONG);
    if (lstat(path, &about) != 0)
        child_fail(note, code_of(errno), path, errno);
    strcpy(copy, path);
    const char *name = basename(copy);
    files_write(note, path, STDOUT_FILENO, record, files_entry(record, name, strnlen(name, NAME_MAX), &about));
    _exit(0);
}

static void make_parent(int note, const char *path)
{
    static char copy[PATH_MAX];
    if (strlen(path) >= sizeof copy)
        child_fail(note, NOT_FOUND, path, ENAMETOOLONG);
    strcpy(copy, path);
    files_make_parents(note, dirname(copy));
}

_Noreturn void tree_make(const struct start *s, int note)
{
    const char *path = s->argv[0];
    struct stat about;
    make_parent(note, path);
    if (mkdir(path, (mode_t)strtoul(s->argv[1], NULL, 8) & 07777) == 0)
        _exit(0);
    int error = errno;
    if (error == EEXIST && stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        _exit(0);
    child_fail(note, error == EEXIST ? NOT_A_DIRECTORY : code_of(error), path, error == EEXIST ? ENOTDIR : error);
}

_Noreturn void tree_move(const struct start *s, int note)
{
    const char *from = s->argv[0], *to = s->argv[1];
    struct stat about;
    if (lstat(from, &about) != 0)
        child_fail(note, code_of(errno), from, errno);
    make_parent(note, to);
    if (rename(from, to) == 0)
        _exit(0);
    if (errno != EXDEV)
        child_fail(note, errno == ENOENT ? FAILED : code_of(errno), to, errno);
    /* Another file system, or a directory of the template: it has to be copied, which mv knows how to. */
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    execlp("mv", "mv", "-T", "--", from, to, (char *)NULL);
    child_fail(note, FAILED, "mv", errno);
}

static bool is_dots(const char *name)
{
    return name[0] == '.' && (name[1] == 0 || (name[1] == '.' && name[2] == 0));
}

/* Remove what is in this directory, up to the first directory that is not empty: go down into that one. */
static bool went_down(int note, const char *path)
{
    DIR *here = opendir(".");
    bool down = false;
    if (here == NULL)
        child_fail(note, code_of(errno), path, errno);
    for (struct dirent *entry; !down && (entry = readdir(here)) != NULL;) {
        const char *name = entry->d_name;
        if (is_dots(name) || unlinkat(AT_FDCWD, name, 0) == 0 || errno == ENOENT)
            continue;
        if (errno == EISDIR && unlinkat(AT_FDCWD, name, AT_REMOVEDIR) == 0)
            continue;
        int below = errno == ENOTEMPTY || errno == EEXIST
                        ? open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
        if (below < 0 || fchdir(below) != 0)
            child_fail(note, code_of(errno), name, errno);
        close(below);
        down = true;
    }
    closedir(here);
    return down;
}

_Noreturn void tree_remove(const struct start *s, int note)
{
    const char *path = s->argv[0];
    struct stat about;
    if (lstat(path, &about) != 0)
        child_fail(note, code_of(errno), path, errno);
    if (!S_ISDIR(about.st_mode) || strcmp(s->argv[1], "0") == 0) {
        if (unlinkat(AT_FDCWD, path, S_ISDIR(about.st_mode) ? AT_REMOVEDIR : 0) != 0)
            child_fail(note, code_of(errno), path, errno);
        _exit(0);
    }
    int root = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int above = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || above < 0 || fchdir(root) != 0)
        child_fail(note, code_of(errno), path, errno);
    /* By steps from one directory to the next: no depth needs more descriptors or a longer path. */
    for (unsigned long depth = 0;;) {
        if (went_down(note, path))
            depth++;
        else if (depth-- == 0)
            break;
        else if (chdir("..") != 0)
            child_fail(note, code_of(errno), path, errno);
    }
    if (fchdir(above) != 0 || rmdir(path) != 0)
        child_fail(note, code_of(errno), path, errno);
    _exit(0);
}
