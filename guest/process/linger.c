/* Output of programs that outlive the command that started them: read and forgotten, so that a server left
 * running in the background is not ended by its first line of log. */
#include "../guest.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

enum { LINGERING = 64, FORGET_BYTES = 16 << 20 };

static struct {
    int fd;
    uint32_t read;
} lingering[LINGERING];
static unsigned count, polled, polled_at; /* how many were asked about in the last poll, and from where */

static void drop(unsigned i)
{
    close(lingering[i].fd);
    for (; i + 1 < count; i++)
        lingering[i] = lingering[i + 1];
    count--;
}

void linger(int fd)
{
    if (count == LINGERING)
        drop(0);
    lingering[count].fd = fd;
    lingering[count++].read = 0;
}

void linger_poll(struct pollfd *fds, unsigned *n)
{
    polled = count;
    polled_at = *n;
    for (unsigned i = 0; i < count; i++)
        fds[(*n)++] = (struct pollfd){.fd = lingering[i].fd, .events = POLLIN};
}

void linger_handle(const struct pollfd *fds)
{
    static uint8_t scratch[READ_AT_ONCE];
    for (unsigned i = polled; i-- > 0;) {
        if (fds[polled_at + i].revents == 0)
            continue;
        ssize_t n = read(lingering[i].fd, scratch, sizeof scratch);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n > 0 && (lingering[i].read += (uint32_t)n) < FORGET_BYTES)
            continue;
        drop(i); /* its end, or a flood that nobody wants to pay for */
    }
}
