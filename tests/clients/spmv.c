/* A sparse matrix in compressed rows, applied to a vector again and again. */
#include "client.h"

enum { IN_ROW = 16, ROUNDS = 3 };

struct matrix {
    uint32_t rows, *row, *column;
    float *value, *x, *y;
};

static void make(struct matrix *m, size_t bytes)
{
    m->rows = (uint32_t)(bytes / (IN_ROW * 8 + 12));
    size_t entries = (size_t)m->rows * IN_ROW;
    m->row = client_host((m->rows + 1) * sizeof *m->row);
    m->column = client_host(entries * sizeof *m->column);
    m->value = client_host(entries * sizeof *m->value);
    m->x = client_host(m->rows * sizeof *m->x);
    m->y = client_host(m->rows * sizeof *m->y);
    uint32_t k = 0;
    for (uint32_t r = 0; r < m->rows; r++) {
        uint32_t in_row = client_hash(r) % (IN_ROW + 1); /* some rows are empty */
        m->row[r] = k;
        m->x[r] = 1.0f / (float)(1 + r % 7);
        for (uint32_t i = 0; i < in_row; i++, k++) {
            m->column[k] = client_hash(k + 77) % m->rows;
            m->value[k] = (float)(client_hash(k) % 1000) / (float)(1000 * IN_ROW);
        }
    }
    m->row[m->rows] = k;
    for (; k < entries; k++) { /* allocated, never used */
        m->column[k] = UINT32_MAX;
        m->value[k] = -1e30f;
    }
}

static CUdeviceptr upload(const void *host, size_t bytes)
{
    CUdeviceptr p = client_alloc(bytes);
    OK(cuMemcpyHtoD_v2(p, host, bytes));
    return p;
}

static void check(const struct matrix *m, const float *found)
{
    float *x = m->x, *y = m->y;
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t r = 0; r < m->rows; r++) {
            float sum = 0;
            for (uint32_t k = m->row[r]; k < m->row[r + 1]; k++)
                sum += m->value[k] * x[m->column[k]];
            y[r] = sum;
        }
        float *swap = x;
        x = y;
        y = swap;
    }
    for (uint32_t r = 0; r < m->rows; r++) {
        float distance = found[r] > x[r] ? found[r] - x[r] : x[r] - found[r];
        if (!(distance <= 1e-5f * x[r]))
            WRONG("row %u is %g, not %g", r, (double)found[r], (double)x[r]);
    }
}

int main(int argc, char **argv)
{
    struct matrix m;
    client_start("spmv", argc, argv, 1);
    make(&m, client_bytes());
    size_t entries = (size_t)m.rows * IN_ROW, bytes = m.rows * sizeof(float);
    float *found = client_host(bytes);
    CUdeviceptr row = upload(m.row, (m.rows + 1) * sizeof *m.row),
                column = upload(m.column, entries * sizeof *m.column);
    CUdeviceptr value = upload(m.value, entries * sizeof *m.value), x = upload(m.x, bytes), y = client_alloc(bytes);
    for (int round = 0; round < ROUNDS; round++) {
        LAUNCH(client_kernel(0, "spmv"), 64, 128, NULL, &y, &row, &column, &value, &x, &m.rows);
        CUdeviceptr swap = x;
        x = y;
        y = swap;
    }
    OK(cuMemcpyDtoH_v2(found, x, bytes));
    client_sum(found, bytes);
    check(&m, found);
    free(m.row);
    free(m.column);
    free(m.value);
    free(m.x);
    free(m.y);
    free(found);
    return client_end();
}
