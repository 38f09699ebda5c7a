#include "simgpu/ptx/arena.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES (64u << 10)

struct ptx_arena_block {
    struct ptx_arena_block *next;
    size_t bytes;
    _Alignas(16) unsigned char data[];
};

void *ptx_arena_take(struct ptx_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    if (!arena->blocks || arena->blocks->bytes - arena->used_bytes < bytes) {
        size_t data_bytes = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        struct ptx_arena_block *block = calloc(1, sizeof(*block) + data_bytes);
        if (!block)
            return NULL;
        block->bytes = data_bytes;
        block->next = arena->blocks;
        arena->blocks = block;
        arena->used_bytes = 0;
    }
    void *at = arena->blocks->data + arena->used_bytes;
    arena->used_bytes += bytes;
    return at;
}

char *ptx_arena_text(struct ptx_arena *arena, const char *text, size_t bytes)
{
    char *copy = ptx_arena_take(arena, bytes + 1);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

void ptx_arena_finish(struct ptx_arena *arena)
{
    for (struct ptx_arena_block *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    arena->blocks = NULL;
}

static uint32_t hash_of(const char *name, size_t bytes)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    return hash ^ hash >> 15;
}

static struct ptx_map_entry *slot_of(const struct ptx_map *map, const char *name, size_t bytes, uint32_t hash)
{
    for (uint32_t i = hash & (map->capacity - 1);; i = (i + 1) & (map->capacity - 1)) {
        struct ptx_map_entry *entry = &map->entries[i];
        if (!entry->name)
            return entry;
        if (entry->hash == hash && entry->name_bytes == bytes && !memcmp(entry->name, name, bytes))
            return entry;
    }
}

void *ptx_map_find(const struct ptx_map *map, const char *name, size_t name_bytes)
{
    if (!map->count)
        return NULL;
    return slot_of(map, name, name_bytes, hash_of(name, name_bytes))->value;
}

static int grow_map(struct ptx_map *map, struct ptx_arena *arena)
{
    struct ptx_map bigger = {.capacity = map->capacity ? map->capacity * 2 : 16, .count = map->count};
    bigger.entries = ptx_arena_take(arena, bigger.capacity * sizeof(*bigger.entries));
    if (!bigger.entries)
        return -1;
    for (uint32_t i = 0; i < map->capacity; i++) {
        struct ptx_map_entry *entry = &map->entries[i];
        if (entry->name)
            *slot_of(&bigger, entry->name, entry->name_bytes, entry->hash) = *entry;
    }
    *map = bigger;
    return 0;
}

int ptx_map_add(struct ptx_map *map, struct ptx_arena *arena, const char *name, size_t name_bytes, void *value)
{
    if (map->count * 2 >= map->capacity && grow_map(map, arena))
        return -1;
    uint32_t hash = hash_of(name, name_bytes);
    struct ptx_map_entry *entry = slot_of(map, name, name_bytes, hash);
    if (entry->name)
        return 1;
    *entry = (struct ptx_map_entry){name, (uint32_t)name_bytes, hash, value};
    map->count++;
    return 0;
}

int ptx_grow(void **array, size_t count, size_t *capacity, size_t element_bytes)
{
    if (count < *capacity)
        return 0;
    size_t more = *capacity ? *capacity * 2 : 32;
    void *bigger = realloc(*array, more * element_bytes);
    if (!bigger)
        return -1;
    *array = bigger;
    *capacity = more;
    return 0;
}
