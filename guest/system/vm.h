/* Between the two files of the first process of a machine. */
#ifndef VM_H
#define VM_H

#include "../guest.h"

enum { MACHINE_ID = 32 };

/* identity.c */
extern int pids_max, machine_id; /* open files: the limit of processes, and what is mounted as /etc/machine-id */
void must(bool well, const char *what);
void keep_and_go_on(void);

#endif
