/* What the two programs that start a sandbox on the host share. Each defines PROGRAM, its name, before. */
#ifndef OUTSIDE_H
#define OUTSIDE_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAILED 125
#define CGROUPS 16

static void fail(const char *format, ...)
{
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    fputs(PROGRAM ": ", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (error)
        fprintf(stderr, ": %s", strerror(error));
    fputc('\n', stderr);
    exit(FAILED);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t length = (ssize_t)strlen(text);
    if (fd < 0 || write(fd, text, (size_t)length) != length)
        fail("cannot write %s", path);
    close(fd);
}

#endif
