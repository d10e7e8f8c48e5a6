/* Read a tar archive: ustar, with the extended headers of PAX and GNU. Every byte and every entry counts. */
#include "archive.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXTENDED_MOST = 1 << 20, IDS_MOST = 65535, UNKNOWN_ID = 65534 };

struct archive archive;

/* What an extended header says of the next entry. */
static struct {
    char *block, *path, *link, *size, *uid, *gid, *modified;
    struct attribute attributes[ATTRIBUTES_MOST];
    unsigned attribute_count;
} said;

static char long_name[PATH_MAX], long_link[PATH_MAX];

_Noreturn void refuse(const char *why, const char *name)
{
    if (name)
        dprintf(STDERR_FILENO, "%s: %.200s\n", why, name);
    else
        dprintf(STDERR_FILENO, "%s\n", why);
    _exit(1);
}

_Noreturn void failed(const char *name)
{
    refuse(strerror(errno), name);
}

void archive_take(void *into, size_t size)
{
    uint8_t *at = into;
    if (size > archive.bytes_left) {
        char most[32];
        snprintf(most, sizeof most, "%llu bytes", (unsigned long long)archive.bytes_most);
        refuse("the archive is larger than the limit", most);
    }
    archive.bytes_left -= size;
    while (size > 0) {
        ssize_t n = read(STDIN_FILENO, at, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            failed("the archive");
        if (n == 0)
            refuse("the archive ends too early", NULL);
        at += n, size -= (size_t)n;
    }
}

void archive_skip(uint64_t size)
{
    static uint8_t buffer[65536];
    while (size > 0) {
        size_t n = size < sizeof buffer ? (size_t)size : sizeof buffer;
        archive_take(buffer, n);
        size -= n;
    }
}

uint64_t archive_padding(uint64_t size)
{
    return (BLOCK - size % BLOCK) % BLOCK;
}

/* Octal digits, or with the highest bit set a binary number. */
static uint64_t number(const uint8_t *field, size_t width)
{
    uint64_t value = 0;
    if (field[0] & 0x80) {
        for (size_t i = 1; i < width; i++) {
            if (value >> 55)
                refuse("a number in the archive is too large", NULL);
            value = value << 8 | field[i];
        }
        return field[0] & 0x40 ? 0 : value; /* negative: only times before 1970 are */
    }
    size_t i = 0;
    while (i < width && field[i] == ' ')
        i++;
    for (; i < width && field[i] >= '0' && field[i] <= '7'; i++)
        value = value << 3 | (uint64_t)(field[i] - '0');
    return value;
}

static uint64_t decimal(const char *text)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || end == text || text[0] == '-' || (*end && *end != '.'))
        refuse("an extended header is wrong", text);
    return value;
}

void archive_forget(void)
{
    free(said.block);
    memset(&said, 0, sizeof said);
    long_name[0] = long_link[0] = 0;
}

static void take_record(char *key, char *value, size_t length)
{
    static const char xattr[] = "SCHILY.xattr.user.";
    if (strcmp(key, "path") == 0)
        said.path = value;
    else if (strcmp(key, "linkpath") == 0)
        said.link = value;
    else if (strcmp(key, "size") == 0)
        said.size = value;
    else if (strcmp(key, "uid") == 0)
        said.uid = value;
    else if (strcmp(key, "gid") == 0)
        said.gid = value;
    else if (strcmp(key, "mtime") == 0)
        said.modified = value;
    else if (strncmp(key, "GNU.sparse.", 11) == 0)
        refuse("sparse files in an archive are not supported", NULL);
    else if (strncmp(key, xattr, sizeof xattr - 1) == 0 && said.attribute_count < ATTRIBUTES_MOST)
        said.attributes[said.attribute_count++] = (struct attribute){key + 13, value, length};
}

/* Records of the form `LENGTH KEY=VALUE\n`. */
static void take_extended(uint64_t size)
{
    if (size > EXTENDED_MOST)
        refuse("an extended header is too large", NULL);
    free(said.block);
    memset(&said, 0, sizeof said);
    said.block = malloc((size_t)size + 1);
    if (!said.block)
        failed("an extended header");
    archive_take(said.block, (size_t)size);
    said.block[size] = 0;
    archive_skip(archive_padding(size));
    for (char *at = said.block, *last = said.block + size; at < last;) {
        char *key;
        unsigned long length = strtoul(at, &key, 10);
        if (key == at || *key != ' ' || length > (size_t)(last - at) || length < (size_t)(key - at) + 3)
            refuse("an extended header is wrong", NULL);
        char *end = at + length - 1;
        key++;
        char *equals = memchr(key, '=', (size_t)(end - key));
        if (!equals || *end != '\n')
            refuse("an extended header is wrong", NULL);
        *equals = *end = 0;
        take_record(key, equals + 1, (size_t)(end - equals - 1));
        at += length;
    }
}

static void take_long(char *into, uint64_t size)
{
    if (size >= PATH_MAX)
        refuse("a name in the archive is too long", NULL);
    archive_take(into, (size_t)size);
    into[size] = 0;
    archive_skip(archive_padding(size));
}

static bool is_zero(const uint8_t *block)
{
    for (int i = 0; i < BLOCK; i++)
        if (block[i])
            return false;
    return true;
}

static void check_sum(const uint8_t *block)
{
    uint64_t sum = 0;
    for (int i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : block[i];
    if (number(block + 148, 8) != sum)
        refuse("this is not a tar archive", NULL);
}

/* Copy a name; `.`, `..` and empty parts are resolved here, so that none leads out of TOP by itself. */
static void set_name(char *into, const char *from, bool below_top)
{
    size_t base = below_top && strcmp(archive.top, "/") != 0 ? (size_t)snprintf(into, PATH_MAX, "%s", archive.top) : 0;
    size_t used = base;
    while (*from) {
        const char *end = strchrnul(from, '/');
        size_t n = (size_t)(end - from);
        if (n == 2 && from[0] == '.' && from[1] == '.') {
            while (used > base && into[--used] != '/')
                ;
        } else if (n > 0 && !(n == 1 && from[0] == '.')) {
            if (used + n + 2 > PATH_MAX)
                refuse("a name in the archive is too long", NULL);
            into[used++] = '/';
            memcpy(into + used, from, n);
            used += n;
        }
        from = *end ? end + 1 : end;
    }
    into[used] = 0;
}

/* The next header that is a file; false at the end. */
bool archive_next(struct entry *entry)
{
    uint8_t block[BLOCK];
    char name[256 + 2], link[101];
    for (;;) {
        archive_take(block, sizeof block);
        if (is_zero(block))
            return false;
        check_sum(block);
        if (archive.entries_left-- == 0) {
            char most[32];
            snprintf(most, sizeof most, "%llu", (unsigned long long)archive.entries_most);
            refuse("the archive has more entries than the limit", most);
        }
        uint64_t size = number(block + 124, 12);
        switch (block[156]) {
        case 'x': take_extended(size); continue;
        case 'g': archive_skip(size); archive_skip(archive_padding(size)); continue;
        case 'L': take_long(long_name, size); continue;
        case 'K': take_long(long_link, size); continue;
        case 'S': refuse("sparse files in an archive are not supported", NULL);
        }
        bool has_prefix = memcmp(block + 257, "ustar\0", 6) == 0 && block[345];
        snprintf(name, sizeof name, "%.155s%s%.100s", has_prefix ? (char *)block + 345 : "", has_prefix ? "/" : "", (char *)block);
        snprintf(link, sizeof link, "%.100s", (char *)block + 157);
        const char *whole = said.path ? said.path : long_name[0] ? long_name : name;
        size_t length = strlen(whole);
        entry->type = block[156] == 0 || block[156] == '7' ? '0' : (char)block[156];
        if (entry->type == '0' && length > 0 && whole[length - 1] == '/')
            entry->type = '5'; /* as old archives say it */
        set_name(entry->name, whole, true);
        const char *target = said.link ? said.link : long_link[0] ? long_link : link;
        if (entry->type == '1')
            set_name(entry->link, target, true);
        else if (snprintf(entry->link, PATH_MAX, "%s", target) >= PATH_MAX)
            refuse("a link in the archive is too long", NULL);
        entry->size = said.size ? decimal(said.size) : size;
        uint64_t uid = said.uid ? decimal(said.uid) : number(block + 108, 8);
        uint64_t gid = said.gid ? decimal(said.gid) : number(block + 116, 8);
        entry->uid = uid < IDS_MOST ? uid : UNKNOWN_ID;
        entry->gid = gid < IDS_MOST ? gid : UNKNOWN_ID;
        entry->mode = (mode_t)(number(block + 100, 8) & 07777);
        entry->modified = (long long)(said.modified && said.modified[0] != '-' ? decimal(said.modified) : number(block + 136, 12));
        memcpy(entry->attributes, said.attributes, sizeof said.attributes);
        entry->attribute_count = said.attribute_count;
        return true;
    }
}
