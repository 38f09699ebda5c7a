/* Buffers that only tables in device memory name: a table of tables, and a copy of it made on the device. */
#include "client.h"

enum { TABLES = 4, LEAVES = 8 };

/* As kernels.cu has it. */
struct tables {
    CUdeviceptr root;
    uint32_t tables, leaves, n;
};

int main(int argc, char **argv)
{
    client_start("tables", argc, argv, 1);
    uint32_t n = (uint32_t)(client_bytes() / (TABLES * LEAVES) / 4);
    CUdeviceptr leaf[TABLES][LEAVES], table[TABLES], root = client_alloc(sizeof table),
                                                     twin = client_alloc(sizeof table);
    for (uint32_t k = 0; k < TABLES; k++) {
        for (uint32_t l = 0; l < LEAVES; l++) {
            uint32_t seed = (k * LEAVES + l) * n;
            leaf[k][l] = client_alloc(n * sizeof(uint32_t));
            LAUNCH(client_kernel(0, "fill_hash"), 32, 128, NULL, &leaf[k][l], &n, &seed);
        }
        table[k] = client_alloc(sizeof leaf[k]);
        OK(cuMemcpyHtoD_v2(table[k], leaf[k], sizeof leaf[k]));
    }
    OK(cuMemcpyHtoD_v2(root, table, sizeof table));
    OK(cuMemcpyDtoD_v2(twin, root, sizeof table));
    uint32_t a = 3, tables = TABLES, leaves = LEAVES, share = n / 16;
    struct tables value = {root, TABLES, LEAVES, n};
    LAUNCH(client_kernel(0, "add_to_leaves"), 32, 128, NULL, &value, &a);
    for (uint32_t first = 0; first + share <= n; first += 4 * share) /* a quarter of each leaf goes round */
        LAUNCH(client_kernel(0, "rotate_leaves"), 1, 256, NULL, &twin, &tables, &leaves, &first, &share);
    value.root = twin;
    LAUNCH(client_kernel(0, "add_to_leaves"), 32, 128, NULL, &value, &a);

    uint32_t *found = client_host(n * sizeof *found);
    for (uint32_t k = 0; k < TABLES * LEAVES; k++) {
        OK(cuMemcpyDtoH_v2(found, leaf[k / LEAVES][k % LEAVES], n * sizeof *found));
        for (uint32_t i = 0; i < n; i++) {
            uint32_t from = i / share % 4 == 0 && i / share < 16 ? (k + 1) % (TABLES * LEAVES) : k;
            uint32_t expected = client_hash(i + from * n) + 2 * a + from + k;
            if (found[i] != expected)
                WRONG("word %u of leaf %u is %u, not %u", i, k, found[i], expected);
        }
        client_sum(found, n * sizeof *found);
    }
    free(found);
    return client_end();
}
