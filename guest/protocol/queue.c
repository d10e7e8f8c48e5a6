/* A ring of bytes from the host that a program has not taken yet. The credit keeps it within the window. */
#include "../guest.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

static unsigned wide;

void queue_put(struct queue *q, const uint8_t *data, uint32_t n)
{
    if (n == 0)
        return;
    if (q->ring == NULL) {
        if ((q->ring = malloc(WINDOW)) == NULL)
            die("no memory for a channel");
        q->capacity = WINDOW;
    }
    if (n > q->capacity - q->size)
        die("data beyond the credit");
    uint32_t tail = (q->head + q->size) % q->capacity;
    uint32_t first = n < q->capacity - tail ? n : q->capacity - tail;
    memcpy(q->ring + tail, data, first);
    memcpy(q->ring, data + first, n - first);
    q->size += n;
}

static uint32_t until_the_edge(const struct queue *q)
{
    return q->size < q->capacity - q->head ? q->size : q->capacity - q->head;
}

/* Write what `fd` takes now: the number of bytes, or -1 with errno. */
ssize_t queue_write(struct queue *q, int fd)
{
    uint32_t first = until_the_edge(q);
    struct iovec parts[2] = {
        {.iov_base = q->ring + q->head, .iov_len = first},
        {.iov_base = q->ring, .iov_len = q->size - first},
    };
    ssize_t n = writev(fd, parts, parts[1].iov_len > 0 ? 2 : 1);
    if (n > 0) {
        q->size -= (uint32_t)n;
        /* An empty ring begins at its start again: pages that were never needed stay untouched. */
        q->head = q->size == 0 ? 0 : (q->head + (uint32_t)n) % q->capacity;
        q->written += (uint64_t)n;
    }
    return n;
}

/* Forget what nobody will take; the room that the host was promised stays. */
void queue_empty(struct queue *q)
{
    q->head = q->size = 0;
}

/* How much more the host may send to a program that has taken much; only a few channels are widened at a time. */
uint32_t queue_widen(struct queue *q)
{
    if (q->ring == NULL || q->capacity != WINDOW || q->written < 2 * WINDOW || wide == MAX_WIDE)
        return 0;
    uint8_t *ring = malloc(WIDE);
    if (ring == NULL)
        return 0;
    uint32_t first = until_the_edge(q);
    memcpy(ring, q->ring + q->head, first);
    memcpy(ring + first, q->ring, q->size - first);
    free(q->ring);
    q->ring = ring;
    q->capacity = WIDE;
    q->head = 0;
    wide++;
    return WIDE - WINDOW;
}

void queue_free(struct queue *q)
{
    if (q->capacity == WIDE)
        wide--;
    free(q->ring);
    *q = (struct queue){0};
}
