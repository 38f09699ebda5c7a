/* Bodies that attract each other. Each step keeps its table of distances, and in the end all tables are read again. */
#include "client.h"

#include <math.h>

enum { N = 512, MOST = 64 };

struct body {
    float x, y, z, mass;
};

static void step_on_host(struct body *body, struct body *speed, float dt)
{
    static struct body next[N];
    for (int i = 0; i < N; i++) {
        double a[3] = {0};
        for (int j = 0; j < N; j++) {
            double x = body[j].x - body[i].x, y = body[j].y - body[i].y, z = body[j].z - body[i].z;
            double d2 = x * x + y * y + z * z + 0.01, f = body[j].mass / (d2 * sqrt(d2));
            a[0] += f * x;
            a[1] += f * y;
            a[2] += f * z;
        }
        speed[i].x += (float)a[0] * dt;
        speed[i].y += (float)a[1] * dt;
        speed[i].z += (float)a[2] * dt;
        next[i] = (struct body){body[i].x + speed[i].x * dt, body[i].y + speed[i].y * dt, body[i].z + speed[i].z * dt,
                                body[i].mass};
    }
    memcpy(body, next, sizeof next);
}

static void check(const struct body *found, struct body *start, unsigned steps, float dt)
{
    static struct body speed[N];
    for (unsigned s = 0; s < steps; s++)
        step_on_host(start, speed, dt);
    for (int i = 0; i < N; i++)
        if (!(fabsf(found[i].x - start[i].x) < 1e-4f && fabsf(found[i].y - start[i].y) < 1e-4f &&
              fabsf(found[i].z - start[i].z) < 1e-4f))
            WRONG("body %d is at %g %g %g, not at %g %g %g", i, (double)found[i].x, (double)found[i].y,
                  (double)found[i].z, (double)start[i].x, (double)start[i].y, (double)start[i].z);
}

int main(int argc, char **argv)
{
    client_start("nbody", argc, argv, 1);
    size_t table_bytes = (size_t)N * N * sizeof(float);
    unsigned steps = (unsigned)(client_bytes() / table_bytes);
    uint32_t n = N, words = N * N, blocks = 64;
    float dt = 0.001f;
    static struct body start[N], found[N];
    CUdeviceptr table[MOST], at[2], speed = client_alloc(sizeof start), partial = client_alloc(64 * 8), sum;
    steps = steps < MOST ? steps : MOST;
    at[0] = client_alloc(sizeof start);
    at[1] = client_alloc(sizeof start);
    sum = client_alloc(8);
    for (uint32_t i = 0; i < N; i++)
        start[i] = (struct body){(float)(client_hash(i) % 1000) / 100, (float)(client_hash(i + N) % 1000) / 100,
                                 (float)(client_hash(i + 2 * N) % 1000) / 100, 1 + (float)(i % 3)};
    OK(cuMemcpyHtoD_v2(at[0], start, sizeof start));
    OK(cuMemsetD8_v2(speed, 0, sizeof start));
    for (unsigned s = 0; s < steps; s++) {
        table[s] = client_alloc(table_bytes);
        LAUNCH(client_kernel(0, "distances"), 64, 128, NULL, &table[s], &at[s % 2], &n);
        LAUNCH(client_kernel(0, "step_bodies"), 4, 128, NULL, &at[1 - s % 2], &speed, &at[s % 2], &table[s], &n, &dt);
    }
    OK(cuMemcpyDtoH_v2(found, at[steps % 2], sizeof found));
    client_sum(found, sizeof found);
    for (unsigned s = 0; s < steps; s++) {
        uint64_t bits;
        LAUNCH(client_kernel(0, "sum_words"), 64, 256, NULL, &partial, &table[s], &words);
        LAUNCH(client_kernel(0, "sum_partials"), 1, 256, NULL, &sum, &partial, &blocks);
        OK(cuMemcpyDtoH_v2(&bits, sum, sizeof bits));
        client_sum(&bits, sizeof bits);
    }
    check(found, start, steps, dt);
    return client_end();
}
