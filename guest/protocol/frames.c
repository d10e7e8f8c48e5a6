/* The byte stream to and from the host: one bounded buffer each way, frames cut out of it and put into it. */
#include "../guest.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { OUT_BYTES = 4 * MAX_PAYLOAD, IN_BYTES = 4 * (HEADER + MAX_PAYLOAD) };

static uint8_t out[OUT_BYTES];
static size_t out_head, out_tail;
static uint8_t in[IN_BYTES];
static size_t in_size, in_used;

static uint32_t get_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

void put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

const uint8_t *take_bytes(struct cursor *c, uint32_t n)
{
    if ((size_t)(c->end - c->at) < n)
        die("a frame is too short");
    const uint8_t *at = c->at;
    c->at += n;
    return at;
}

uint8_t take_u8(struct cursor *c)
{
    return *take_bytes(c, 1);
}

uint16_t take_u16(struct cursor *c)
{
    const uint8_t *at = take_bytes(c, 2);
    return (uint16_t)(at[0] | at[1] << 8);
}

uint32_t take_u32(struct cursor *c)
{
    return get_u32(take_bytes(c, 4));
}

void take_nothing(struct cursor *c)
{
    if (c->at != c->end)
        die("a frame is too long");
}

/* Payload bytes that one more frame may have now. */
size_t out_room(void)
{
    size_t room = OUT_BYTES - (out_tail - out_head);
    return room > HEADER ? room - HEADER : 0;
}

bool out_pending(void)
{
    return out_tail > out_head;
}

void out_flush(void)
{
    while (out_pending()) {
        ssize_t n = write(STDOUT_FILENO, out + out_head, out_tail - out_head);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0)
            finish(0); /* nobody listens any more */
        out_head += (size_t)n;
    }
    out_head = out_tail = 0;
}

/* Where the payload of the next frame is to be written; `out_room()` says how much of it. */
uint8_t *out_payload(void)
{
    if (out_head > 0) {
        memmove(out, out + out_head, out_tail - out_head);
        out_tail -= out_head;
        out_head = 0;
    }
    return out + out_tail + HEADER;
}

void out_commit(uint8_t type, uint32_t channel, uint32_t length)
{
    uint8_t *at = out + out_tail;
    put_u32(at, length);
    at[4] = type;
    put_u32(at + 5, channel);
    out_tail += HEADER + length;
}

void out_frame(uint8_t type, uint32_t channel, const void *payload, uint32_t length)
{
    if (out_room() < length)
        die("the buffer to the host is full");
    uint8_t *at = out_payload();
    if (length > 0)
        memcpy(at, payload, length);
    out_commit(type, channel, length);
}

void out_u32(uint8_t type, uint32_t channel, uint32_t value)
{
    uint8_t payload[4];
    put_u32(payload, value);
    out_frame(type, channel, payload, sizeof payload);
}

void out_fail(uint32_t id, uint8_t code, const char *text)
{
    uint8_t payload[1 + MAX_TEXT];
    size_t n = strlen(text);
    payload[0] = code;
    memcpy(payload + 1, text, n);
    out_frame(FAIL, id, payload, 1 + (uint32_t)n);
}

/* Read what is there; false when the host closed the stream. */
bool in_read(void)
{
    ssize_t n = read(STDIN_FILENO, in + in_size, sizeof in - in_size);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    in_size += (size_t)n;
    return n > 0;
}

/* The next whole frame, valid until `in_consume`; false when there is none yet. */
bool in_frame(uint8_t *type, uint32_t *channel, struct cursor *payload)
{
    if (in_size - in_used >= HEADER) {
        const uint8_t *at = in + in_used;
        uint32_t length = get_u32(at);
        if (length > MAX_PAYLOAD)
            die("a frame is too large");
        if (in_size - in_used >= HEADER + (size_t)length) {
            *type = at[4];
            *channel = get_u32(at + 5);
            payload->at = at + HEADER;
            payload->end = at + HEADER + length;
            return true;
        }
    }
    /* What remains is the beginning of a frame: make place for the rest of it. */
    memmove(in, in + in_used, in_size - in_used);
    in_size -= in_used;
    in_used = 0;
    return false;
}

void in_consume(void)
{
    in_used += HEADER + get_u32(in + in_used);
}
