/* Many transforms of 64 points: forward, some bins against the definition; and back, all points against the start. */
#include "client.h"

#include <math.h>

enum { N = 64, STEPS = 6 };

struct point {
    float re, im;
};

/* All steps; returns the buffer that holds the result, and puts the other into *other_io. */
static CUdeviceptr transform(CUdeviceptr in, CUdeviceptr *other_io, CUdeviceptr roots, uint32_t total, float sign)
{
    CUdeviceptr out = *other_io;
    for (uint32_t step = 0, done = 1, n = N; step < STEPS; step++, done *= 2) {
        float scale = sign > 0 && step == STEPS - 1 ? 1.0f / N : 1.0f;
        LAUNCH(client_kernel(0, "fft_step"), 64, 128, NULL, &out, &in, &roots, &n, &done, &total, &sign, &scale);
        CUdeviceptr swap = in;
        in = out;
        out = swap;
    }
    *other_io = out;
    return in;
}

/* A bin of one transform by the definition. */
static void check_bin(const struct point *in, const struct point *out, uint32_t bin)
{
    double re = 0, im = 0;
    for (uint32_t i = 0; i < N; i++) {
        double angle = -2 * M_PI * (double)(i * bin % N) / N;
        re += in[i].re * cos(angle) - in[i].im * sin(angle);
        im += in[i].re * sin(angle) + in[i].im * cos(angle);
    }
    if (!(fabs(re - out[bin].re) < 1e-2 && fabs(im - out[bin].im) < 1e-2))
        WRONG("bin %u is %g %g, not %g %g", bin, (double)out[bin].re, (double)out[bin].im, re, im);
}

int main(int argc, char **argv)
{
    client_start("fft", argc, argv, 1);
    uint32_t total = (uint32_t)(client_bytes() / 2 / sizeof(struct point)) / N * N;
    size_t bytes = total * sizeof(struct point);
    struct point *in = client_host(bytes), *out = client_host(bytes), root[N / 2];
    CUdeviceptr a = client_alloc(bytes), b = client_alloc(bytes), roots = client_alloc(sizeof root);
    for (uint32_t i = 0; i < N / 2; i++)
        root[i] = (struct point){(float)cos(2 * M_PI * i / N), (float)sin(2 * M_PI * i / N)};
    for (uint32_t i = 0; i < total; i++)
        in[i] =
            (struct point){(float)(client_hash(i) % 2001) / 1000.0f - 1, (float)(client_hash(~i) % 2001) / 1000.0f - 1};
    OK(cuMemcpyHtoD_v2(roots, root, sizeof root));
    OK(cuMemcpyHtoD_v2(a, in, bytes));
    a = transform(a, &b, roots, total, -1.0f);
    OK(cuMemcpyDtoH_v2(out, a, bytes));
    for (uint32_t k = 0; k < 16; k++) {
        uint32_t which = client_hash(k) % (total / N) * N;
        check_bin(in + which, out + which, client_hash(k + 99) % N);
    }
    client_sum(out, bytes);
    a = transform(a, &b, roots, total, 1.0f);
    OK(cuMemcpyDtoH_v2(out, a, bytes));
    for (uint32_t i = 0; i < total; i++)
        if (!(fabsf(out[i].re - in[i].re) < 1e-4f && fabsf(out[i].im - in[i].im) < 1e-4f))
            WRONG("point %u came back as %g %g", i, (double)out[i].re, (double)out[i].im);
    client_sum(out, bytes);
    free(in);
    free(out);
    return client_end();
}
