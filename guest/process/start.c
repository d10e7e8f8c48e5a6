/* Decode a START frame into something that can be handed to execve. */
#include "../guest.h"

#include <stdlib.h>
#include <string.h>

struct arena {
    char *at;
};

static char *take_string(struct cursor *c, struct arena *arena)
{
    uint32_t n = take_u32(c);
    const uint8_t *bytes = take_bytes(c, n);
    if (memchr(bytes, 0, n) != NULL)
        die("a string holds a NUL byte");
    char *string = arena->at;
    memcpy(string, bytes, n);
    string[n] = 0;
    arena->at += n + 1;
    return string;
}

static char **take_strings(struct cursor *c, struct arena *arena, char **into, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        into[i] = take_string(c, arena);
    into[count] = NULL;
    return into;
}

void start_decode(struct start *s, struct cursor *c)
{
    /* A string costs four bytes of payload and one NUL more than its text here, so the payload's size is
     * enough for the text; each string also needs one pointer, each list one more. */
    size_t size = (size_t)(c->end - c->at);
    size_t pointers = size / 4 + 3;
    s->block = malloc(pointers * sizeof(char *) + size + 1);
    if (s->block == NULL)
        die("no memory for a command");
    struct arena arena = {(char *)s->block + pointers * sizeof(char *)};
    s->kind = take_u8(c);
    s->flags = take_u8(c);
    s->timeout_ms = take_u32(c);
    s->grace_ms = take_u32(c);
    s->rows = take_u16(c);
    s->columns = take_u16(c);
    s->cwd = take_string(c, &arena);
    unsigned count = take_u16(c);
    if (count > (size_t)(c->end - c->at) / 4)
        die("a frame is too short");
    s->env = take_strings(c, &arena, s->block, count);
    s->argc = take_u16(c);
    if (s->argc > (size_t)(c->end - c->at) / 4)
        die("a frame is too short");
    s->argv = take_strings(c, &arena, s->env + count + 1, s->argc);
    take_nothing(c);
    static const unsigned needs[KINDS] = {1, 3, 3, 1, 1, 2, 2, 2, 1, 2};
    if (s->kind >= KINDS || s->flags > (FLAG_PTY | FLAG_ROOT) || s->argc < needs[s->kind])
        die("a START frame is wrong");
    if (s->kind != KIND_PROGRAM && (s->flags & FLAG_PTY))
        die("a file needs no terminal");
}

void start_free(struct start *s)
{
    free(s->block);
    s->block = NULL;
}
