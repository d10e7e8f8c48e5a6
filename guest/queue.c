/* A ring of bytes from the host that a program has not taken yet. The credit keeps it within the window. */
#include "guest.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

void queue_put(struct queue *q, const uint8_t *data, uint32_t n)
{
    if (n == 0)
        return;
    if (q->ring == NULL && (q->ring = malloc(WINDOW)) == NULL)
        die("no memory for a channel");
    if (n > WINDOW - q->size)
        die("data beyond the credit");
    uint32_t tail = (q->head + q->size) % WINDOW;
    uint32_t first = n < WINDOW - tail ? n : WINDOW - tail;
    memcpy(q->ring + tail, data, first);
    memcpy(q->ring, data + first, n - first);
    q->size += n;
}

/* Write what `fd` takes now: the number of bytes, or -1 with errno. */
ssize_t queue_write(struct queue *q, int fd)
{
    uint32_t first = q->size < WINDOW - q->head ? q->size : WINDOW - q->head;
    struct iovec parts[2] = {
        {.iov_base = q->ring + q->head, .iov_len = first},
        {.iov_base = q->ring, .iov_len = q->size - first},
    };
    ssize_t n = writev(fd, parts, parts[1].iov_len > 0 ? 2 : 1);
    if (n > 0) {
        q->head = (q->head + (uint32_t)n) % WINDOW;
        q->size -= (uint32_t)n;
    }
    return n;
}

void queue_free(struct queue *q)
{
    free(q->ring);
    *q = (struct queue){0};
}
