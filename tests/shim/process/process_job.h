/* What the modes of process_job share. Whatever goes wrong ends the process with a line on stderr. */
#ifndef PROCESS_JOB_H
#define PROCESS_JOB_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#define MIB ((size_t)1 << 20)
#define BUFFER_BYTES (4 * MIB)
#define BUFFERS 12

#define NEED(condition) need((condition), #condition, __FILE__, __LINE__)
#define OK(call) ok((call), #call, __LINE__)
void need(int holds, const char *what, const char *file, int line);
void ok(CUresult result, const char *what, int line);

struct set { /* of buffers in one context */
    CUcontext context;
    CUfunction kernel;
    unsigned count, seed, added;
    CUdeviceptr buffer[BUFFERS];
};

CUcontext context_on(int device);
/* So many buffers, each word of which is a number of its own, in the context; which becomes current. */
void set_make(struct set *set, CUcontext context, unsigned count, unsigned seed);
void set_add(struct set *set);         /* a kernel adds 1 to a word in every 4 KiB of all buffers */
void set_check(const struct set *set); /* all words are what they have to be */
void set_free(struct set *set);
/* All of it, on a device: make, add some times, check, free. */
void work(int device, unsigned seed);

int devices_mode(void); /* devices.c: what is seen of the machine, and copies between GPUs */
int processes_mode(const char *mode, const char *self, const char *file);

#endif
