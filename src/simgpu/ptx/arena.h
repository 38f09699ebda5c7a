/*
 * Memory of one module: everything the parser makes lives in an arena and goes with the module, so that an error can leave
 * from any depth without leaking. Plus a hash map from names (slices of text) to pointers, in the same arena.
 */
#ifndef SG_PTX_ARENA_H
#define SG_PTX_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct ptx_arena_block;
struct ptx_arena {
    struct ptx_arena_block *blocks;
    size_t used_bytes; /* of the newest block */
};

/* Zeroed memory, aligned to 16; NULL when out of memory. */
void *ptx_arena_take(struct ptx_arena *arena, size_t bytes);
char *ptx_arena_text(struct ptx_arena *arena, const char *text, size_t bytes);
void ptx_arena_finish(struct ptx_arena *arena);

struct ptx_map_entry {
    const char *name;
    uint32_t name_bytes, hash;
    void *value;
};
struct ptx_map {
    struct ptx_map_entry *entries;
    uint32_t capacity, count;
};
void *ptx_map_find(const struct ptx_map *map, const char *name, size_t name_bytes);
/* The name is not copied. 0, 1 if the name is there already, -1 out of memory. */
int ptx_map_add(struct ptx_map *map, struct ptx_arena *arena, const char *name, size_t name_bytes, void *value);

/* Makes room for one more element of a plain heap array. 0 or -1. */
int ptx_grow(void **array, size_t count, size_t *capacity, size_t element_bytes);

#endif
