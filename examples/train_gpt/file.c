#include "file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

unsigned char *file_read(const char *path, size_t *bytes_out)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    size_t bytes = 0, room = 1 << 16;
    unsigned char *data = malloc(room);
    while (data) {
        bytes += fread(data + bytes, 1, room - bytes, f);
        if (bytes < room)
            break;
        unsigned char *larger = realloc(data, room *= 2);
        if (!larger)
            free(data);
        data = larger;
    }
    int error = !data ? ENOMEM : ferror(f) ? errno : 0;
    fclose(f);
    if (error) {
        free(data);
        errno = error;
        return NULL;
    }
    data[bytes] = 0; /* fread filled less than the room there is */
    *bytes_out = bytes;
    return data;
}
