/*
 * Starting a helper program from inside a job. The job must not notice: no SIGCHLD, nothing that its wait() could find, none of its
 * descriptors, signal masks or handlers in the helper. fork handlers do not run.
 */
#ifndef HR_BASE_CHILD_H
#define HR_BASE_CHILD_H

/*
 * Starts the program at `path` with its standard input and error at /dev/null; what it writes to standard output is read from
 * *fd_out (close-on-exec, the caller's to close), whose end means that it is gone; *pid_out is for hr_child_forget. It cannot be signalled: it has to end by itself.
 * Returns 0 or a negative errno, that of exec included. Locks: none. Any thread.
 */
int hr_child_start(const char *path, char *const argv[], char *const envp[], int *fd_out, int *pid_out);

/*
 * Once it has said all: where orphans come to this very process (the first one of a container, a subreaper) it takes the helper's end from
 * among those of the job's children, waiting up to 5 s for it. Elsewhere it does nothing.
 */
void hr_child_forget(int pid);

#endif
