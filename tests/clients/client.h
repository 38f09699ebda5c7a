/*
 * What the programs under tests/clients share. Each is a program of the driver API like any job: it takes the footprint of
 * its device memory (MiB=N) and options of its own, checks its result against the CPU, and prints one line with a
 * checksum of all that the GPU computed.
 */
#ifndef CLIENT_H
#define CLIENT_H

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The header is used with its true ABI names; these read better. */
#define OK(call) client_check((call), #call, __FILE__, __LINE__)
void client_check(CUresult result, const char *call, const char *file, int line);

/* Ends the program with status 1 and a line that says what is wrong. */
#define WRONG(...) client_wrong(__VA_ARGS__)
_Noreturn void client_wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Initialises the driver, makes a context on each of `devices` GPUs, loads kernels.cu into each; the first is current. */
void client_start(const char *name, int argc, char **argv, int devices);
/* The footprint in bytes. */
size_t client_bytes(void);
/* The value of an option NAME=N on the command line. */
long client_option(const char *name, long otherwise);
CUcontext client_context(int device);
/* A kernel, in the module of the current context's device. */
CUfunction client_kernel(int device, const char *name);
CUdeviceptr client_alloc(size_t bytes);
/* Of an allocation of another kind: ends the program with status 3 and a line where there was no memory. */
void client_got(CUresult r, size_t bytes);
/* Launches on the current context; `params` as cuLaunchKernel takes them. */
void client_launch(CUfunction f, unsigned blocks, unsigned threads, CUstream stream, void **params);
#define LAUNCH(f, blocks, threads, stream, ...) client_launch(f, blocks, threads, stream, (void *[]){__VA_ARGS__})

/* Mixes bytes into the checksum. */
void client_sum(const void *data, size_t bytes);
/* Prints the line, frees everything; the program's exit status. */
int client_end(void);

/* Memory or the end of the program. */
void *client_host(size_t bytes);

/* What kernels.cu's hash() computes. */
static inline uint32_t client_hash(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

/* And mix_in(): y takes in x. */
static inline void client_mix_in(uint32_t *y, const uint32_t *x, uint32_t n, uint32_t round)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = client_hash(y[i] + round) ^ x[n - 1 - i];
}

#endif
