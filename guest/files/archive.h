/* Reading a hostile tar archive from stdin, with limits. Shared by archive.c and unpack.c. */
#ifndef ARCHIVE_H
#define ARCHIVE_H

#include "../guest.h"

#include <limits.h>

enum { BLOCK = 512, ATTRIBUTES_MOST = 64 };

struct attribute {
    char *name, *value;
    size_t length;
};

struct entry {
    char name[PATH_MAX], link[PATH_MAX];
    uint64_t size;
    long long modified;
    unsigned long uid, gid;
    mode_t mode;
    char type;
    struct attribute attributes[ATTRIBUTES_MOST];
    unsigned attribute_count;
};

/* The archive so far: where it goes, and how much more of it may come. */
struct archive {
    const char *top;
    uint64_t bytes_left, bytes_most, entries_left, entries_most;
};

extern struct archive archive;

_Noreturn void refuse(const char *why, const char *name);
_Noreturn void failed(const char *name);

/* Exactly so many bytes, which count against the limit. */
void archive_take(void *into, size_t size);
void archive_skip(uint64_t size);
uint64_t archive_padding(uint64_t size);

/* The next header that is a file; false at the end. Its content follows on stdin. */
bool archive_next(struct entry *entry);
void archive_forget(void);

#endif
