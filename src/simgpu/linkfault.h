/*
 * SIMGPU_LINK: links that fail at a byte, and paths between two cards that corrupt or hang although the driver says that the
 * cards can reach each other. Settings are read once and do not change.
 */
#ifndef SG_LINKFAULT_H
#define SG_LINKFAULT_H

#include "simgpu/sim.h"

enum sg_path_fault { SG_PATH_CORRUPT = 1, SG_PATH_HANG = 2 };

/* Reads SIMGPU_LINK for the machine in `config`. False: `at`, of at_bytes, is bad, and `why` says in one clause what would do. */
bool sg_linkfault_read(const struct sg_config *config, const char **at_out, size_t *at_bytes_out, const char **why_out);
void sg_linkfault_arm(void);              /* once there are routers */
bool sg_linkfault_any_path(void);         /* are there bad paths at all? */
unsigned sg_linkfault_path(int a, int b); /* what is wrong between two cards */
/* What has gone over a path that corrupts. Needs no lock. */
void sg_linkfault_corrupt(uint8_t *data, size_t bytes);
/* Would this copy go over a path that hangs? With sg.lock held. */
bool sg_linkfault_hangs(const struct sg_copy *copy);
/* A copy ended where a link failed: one line, and the context's error: told once, or sticky. With sg.lock held. */
void sg_linkfault_end(struct sg_op *op, const struct sg_moved *moved);
/* The same for a kernel that used a card's memory over it. */
void sg_linkfault_kernel(struct sg_op *op, int peer);

#endif
