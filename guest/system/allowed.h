/* The system calls that are allowed whatever their arguments, by what they are for. Included by seccomp.c. */

/* Files */
SYS_read, SYS_write, SYS_open, SYS_close, SYS_stat, SYS_fstat, SYS_lstat, SYS_lseek, SYS_pread64, SYS_pwrite64,
SYS_readv, SYS_writev, SYS_preadv, SYS_pwritev, SYS_preadv2, SYS_pwritev2, SYS_access, SYS_pipe, SYS_pipe2, SYS_dup,
SYS_dup2, SYS_dup3, SYS_fcntl, SYS_flock, SYS_fsync, SYS_fdatasync, SYS_sync, SYS_syncfs, SYS_sync_file_range,
SYS_truncate, SYS_ftruncate, SYS_fallocate, SYS_fadvise64, SYS_readahead, SYS_getdents, SYS_getdents64, SYS_getcwd,
SYS_chdir, SYS_fchdir, SYS_rename, SYS_renameat, SYS_renameat2, SYS_mkdir, SYS_mkdirat, SYS_rmdir, SYS_creat, SYS_link,
SYS_linkat, SYS_unlink, SYS_unlinkat, SYS_symlink, SYS_symlinkat, SYS_readlink, SYS_readlinkat, SYS_chmod, SYS_fchmod,
SYS_fchmodat, SYS_chown, SYS_fchown, SYS_lchown, SYS_fchownat, SYS_umask, SYS_utime, SYS_utimes, SYS_utimensat,
SYS_futimesat, SYS_mknod, SYS_mknodat, SYS_statfs, SYS_fstatfs, SYS_openat, SYS_openat2, SYS_newfstatat, SYS_statx,
SYS_faccessat, SYS_faccessat2, SYS_close_range, SYS_copy_file_range, SYS_sendfile, SYS_splice, SYS_tee, SYS_vmsplice,
SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_listxattr, SYS_llistxattr,
SYS_flistxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_name_to_handle_at, SYS_memfd_create, SYS_chroot,
SYS_inotify_init, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch,
/* Waiting */
SYS_poll, SYS_ppoll, SYS_select, SYS_pselect6, SYS_epoll_create, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_ctl_old,
SYS_epoll_wait, SYS_epoll_wait_old, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd, SYS_eventfd2, SYS_signalfd,
SYS_signalfd4, SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime,
/* Memory */
SYS_mmap, SYS_mprotect, SYS_munmap, SYS_brk, SYS_mremap, SYS_msync, SYS_mincore, SYS_madvise, SYS_mlock, SYS_mlock2,
SYS_munlock, SYS_mlockall, SYS_munlockall, SYS_remap_file_pages, SYS_pkey_mprotect, SYS_pkey_alloc, SYS_pkey_free,
SYS_get_mempolicy, SYS_set_mempolicy, SYS_mbind, SYS_membarrier,
/* Processes and threads; clone is looked at, clone3 is not there */
SYS_fork, SYS_vfork, SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_getpid, SYS_getppid,
SYS_gettid, SYS_getpgrp, SYS_getpgid, SYS_setpgid, SYS_getsid, SYS_setsid, SYS_prctl, SYS_arch_prctl, SYS_set_tid_address,
SYS_set_robust_list, SYS_get_robust_list, SYS_futex, SYS_futex_waitv, SYS_rseq, SYS_pidfd_open, SYS_pidfd_send_signal,
SYS_set_thread_area, SYS_get_thread_area, SYS_restart_syscall, SYS_pause,
/* Signals */
SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending,
SYS_rt_sigtimedwait, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_rt_sigsuspend, SYS_sigaltstack,
/* Users, capabilities, restrictions of oneself */
SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_getresuid,
SYS_setresuid, SYS_getresgid, SYS_setresgid, SYS_setfsuid, SYS_setfsgid, SYS_getgroups, SYS_setgroups, SYS_capget,
SYS_capset, SYS_landlock_create_ruleset, SYS_landlock_add_rule, SYS_landlock_restrict_self,
/* Scheduling and limits */
SYS_sched_yield, SYS_sched_getparam, SYS_sched_getscheduler, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
SYS_sched_rr_get_interval, SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_sched_getattr, SYS_getpriority,
SYS_setpriority, SYS_ioprio_get, SYS_ioprio_set, SYS_getrlimit, SYS_setrlimit, SYS_prlimit64, SYS_getrusage, SYS_times,
SYS_getcpu, SYS_uname, SYS_sysinfo,
/* Time */
SYS_time, SYS_gettimeofday, SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_nanosleep, SYS_alarm,
SYS_getitimer, SYS_setitimer, SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun,
SYS_timer_delete,
/* Sockets that exist; what kind may be made is looked at */
SYS_connect, SYS_accept, SYS_accept4, SYS_bind, SYS_listen, SYS_getsockname, SYS_getpeername, SYS_sendto, SYS_recvfrom,
SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg, SYS_shutdown, SYS_setsockopt, SYS_getsockopt,
/* System V and POSIX queues, semaphores and shared memory */
SYS_shmget, SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_semget, SYS_semop, SYS_semctl, SYS_semtimedop, SYS_msgget, SYS_msgsnd,
SYS_msgrcv, SYS_msgctl, SYS_mq_open, SYS_mq_unlink, SYS_mq_timedsend, SYS_mq_timedreceive, SYS_mq_notify,
SYS_mq_getsetattr,
/* Randomness */
SYS_getrandom,
