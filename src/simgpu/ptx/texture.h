/*
 * Textures and surfaces as kernels see them: what a handle means. Whoever hands out handles fills in the struct, which does not
 * change afterwards and is not freed while grids run; a grid finds it through ptx_grid_args.texture.
 */
#ifndef SG_PTX_TEXTURE_H
#define SG_PTX_TEXTURE_H

#include <stdbool.h>
#include <stdint.h>

#define PTX_TEXTURE_LEVELS 16

enum ptx_texel {
    PTX_TEXEL_U8,
    PTX_TEXEL_U16,
    PTX_TEXEL_U32,
    PTX_TEXEL_S8,
    PTX_TEXEL_S16,
    PTX_TEXEL_S32,
    PTX_TEXEL_F16,
    PTX_TEXEL_F32
};
enum ptx_address_mode {
    PTX_ADDRESS_WRAP,
    PTX_ADDRESS_CLAMP,
    PTX_ADDRESS_MIRROR,
    PTX_ADDRESS_BORDER
}; /* as CUDA numbers them */

struct ptx_texture_level {
    uint64_t va; /* of the first texel, an address in the grid's page table */
    uint32_t width, height,
        depth;             /* in texels; height and depth 1 where there is no such dimension, depth: or layers */
    uint64_t pitch, slice; /* bytes from row to row, from slice or layer to the next */
};

struct ptx_texture {
    bool is_surface;
    bool is_buffer; /* plain memory of one dimension: fetched by integer coordinates, zeros outside */
    uint8_t dimensions;
    bool layered;
    enum ptx_texel texel;
    uint8_t channels; /* 1, 2, 4 */
    bool normalized;  /* coordinates */
    bool linear, mip_linear;
    bool as_integer; /* integers are returned as they are, rather than as fractions of one */
    enum ptx_address_mode address[3];
    float border[4];
    float level_bias, level_min, level_max;
    uint32_t levels;
    struct ptx_texture_level level[PTX_TEXTURE_LEVELS];
};

/* The meaning of a handle; NULL = none. Thread-safe, without locks. */
typedef const struct ptx_texture *ptx_texture_fn(uint64_t handle);

/* params of the OUT functions tex and surface */
enum ptx_geometry { PTX_GEOMETRY_1D, PTX_GEOMETRY_2D, PTX_GEOMETRY_3D, PTX_GEOMETRY_A1D, PTX_GEOMETRY_A2D };
#define PTX_TEX_GEOMETRY(params) ((enum ptx_geometry)((params)&7))
#define PTX_TEX_INTEGER (1u << 3) /* coordinates are .s32 */
#define PTX_TEX_FLOAT (1u << 4)   /* the result's type is .f32 */
#define PTX_TEX_LEVEL (1u << 5)   /* the last operand is a level of detail */
#define PTX_TEX_GATHER_AT 6       /* tld4: 1 + the channel */
#define PTX_SURFACE_STORE (1u << 3)
#define PTX_SURFACE_LOG2_AT 4  /* of an element's bytes */
#define PTX_SURFACE_COUNT_AT 6 /* log2 of the elements: 0 .. 2 */
#define PTX_SURFACE_CLAMP_AT 8
enum ptx_surface_clamp { PTX_SURFACE_TRAP, PTX_SURFACE_CLAMP, PTX_SURFACE_ZERO };
enum ptx_texture_query {
    PTX_QUERY_WIDTH,
    PTX_QUERY_HEIGHT,
    PTX_QUERY_DEPTH,
    PTX_QUERY_ARRAY_SIZE,
    PTX_QUERY_LEVELS,
    PTX_QUERY_DATA_TYPE,
    PTX_QUERY_ORDER,
    PTX_QUERY_NORMALIZED,
    PTX_QUERY_SAMPLES,
    PTX_QUERY_COUNT,
};

#endif
