/* nodes.def with those rows that its includer has no macro for left out. To be included more than once. */
#ifndef SG_LINK_TYPE
#define SG_LINK_TYPE(name, kind, gbps, latency_ns, source)
#endif
#ifndef SG_MACHINE
#define SG_MACHINE(key, model, cards, sockets, source)
#endif
#ifndef SG_ROW
#define SG_ROW(shape, type, a, b, c, d, count)
#endif
#ifndef SG_CARD_AT
#define SG_CARD_AT(card, bus_id, source)
#endif
#define SG_LINKS(type, a, b, count, source) SG_ROW(LINKS, type, a, b, 0, 0, count)
#define SG_MESH(type, first, last, count, source) SG_ROW(MESH, type, first, last, 0, 0, count)
#define SG_STAR(type, first, last, s_first, s_last, count, source)                                                     \
    SG_ROW(STAR, type, first, last, s_first, s_last, count)
#define SG_STAR_PCIE(type, first, last, to, source) SG_ROW(LEAVES, type, first, last, to, 0, 1)
#define SG_CHAIN(type, first, last, count, source) SG_ROW(CHAIN, type, first, last, 0, 0, count)
#include "simgpu/nodes.def"
#undef SG_LINK_TYPE
#undef SG_MACHINE
#undef SG_ROW
#undef SG_CARD_AT
#undef SG_LINKS
#undef SG_MESH
#undef SG_STAR
#undef SG_STAR_PCIE
#undef SG_CHAIN
