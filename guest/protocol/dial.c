/* Connecting to a server inside, on whichever of the two loopback addresses it listens. */
#include "../guest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

/* Begin to connect, with a new socket in place of the old one; 0, or why it cannot be. */
int dial(int *fd, uint16_t port, bool second)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int one = 1;
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    six.sin6_addr = in6addr_loopback;
    if (*fd >= 0)
        close(*fd);
    *fd = socket(second ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0)
        return errno;
    setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int result = second ? connect(*fd, (struct sockaddr *)&six, sizeof six)
                        : connect(*fd, (struct sockaddr *)&four, sizeof four);
    return result == 0 || errno == EINPROGRESS ? 0 : errno;
}
