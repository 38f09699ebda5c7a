#ifndef TRAIN_GPT_FILE_H
#define TRAIN_GPT_FILE_H

#include <stddef.h>

/* The file's bytes and a 0 behind them, the caller's to free. NULL with errno set if it cannot be read. */
unsigned char *file_read(const char *path, size_t *bytes_out);

#endif
