/* SHA-256 (FIPS 180-4), so that two runs' weights can be compared by one line. */
#ifndef TRAIN_GPT_SHA256_H
#define TRAIN_GPT_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t state[8];
    uint64_t total_bytes;
    unsigned char block[64];
};

void sha256_init(struct sha256 *s);
void sha256_update(struct sha256 *s, const void *data, size_t bytes);
/* Writes 64 hexadecimal digits and a 0. *s must be initialised again before further use. */
void sha256_finish(struct sha256 *s, char hex_out[65]);

#endif
