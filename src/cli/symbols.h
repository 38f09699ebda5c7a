/* From (object file, offset) to a name a person can read. */
#ifndef HR_CLI_SYMBOLS_H
#define HR_CLI_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

struct hr_cli_frame {
    const char *object; /* path of the ELF file; borrowed */
    uint64_t offset;    /* return address minus the object's load address (dlpi_addr) */
    char *text;         /* out: "function at file.c:12", "function (object)", or "object+0x1f"; malloc'ed */
};

/* Fills `text` of every frame: through addr2line (one process per object) where that is installed and knows, else from
 * the object's own symbol table, else object and offset. A frame's text is NULL only when memory ran out. */
void hr_cli_symbolize(struct hr_cli_frame *frames, size_t count);

#endif
