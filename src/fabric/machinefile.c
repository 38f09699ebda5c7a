/* Machine files: reading one whole, telling which of the formats it is, and the extras beside it. */
#include "fabric/discover.h"
#include "fabric/sources.h"
#include "fabric/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_BYTES (16u << 20)
#define MAX_LINE 256
#define BYTE_ORDER_MARK "\xef\xbb\xbf" /* as some editors begin UTF-8 with */

char *hr_source_read(const char *path, size_t most_bytes, size_t *bytes_out)
{
    struct stat about;
    size_t count = 0;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes must not hold the job */

    if (fd < 0)
        return NULL;
    errno = EINVAL;
    /* By number: the wrapper is of glibc 2.33. */
    if (syscall(SYS_fstat, fd, &about) == 0 && S_ISREG(about.st_mode) && (uint64_t)about.st_size <= most_bytes)
        text = malloc((size_t)about.st_size + 1);
    while (text && count < (size_t)about.st_size) {
        ssize_t n = read(fd, text + count, (size_t)about.st_size - count);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        count += (size_t)n;
    }
    close(fd);
    if (text)
        text[count] = 0;
    *bytes_out = count;
    return text;
}

/* "FILE.extras"; NULL with errno 0 where there is none. */
static char *read_extras(const char *path, size_t *bytes_out)
{
    char beside[PATH_MAX];
    int n = snprintf(beside, sizeof beside, "%s.extras", path);

    if (n < 0 || (size_t)n >= sizeof beside)
        return NULL;
    return hr_source_read(beside, MAX_BYTES, bytes_out);
}

int hr_discover_file(const char *path, struct hr_topology **out, struct hr_text_error *why)
{
    size_t bytes, extras_bytes;
    struct hr_text_error unused;
    char *text = hr_source_read(path, MAX_BYTES, &bytes);

    why = why ? why : &unused;
    memset(why, 0, sizeof *why);
    if (!text) {
        int code = errno;
        hr_text_refuse(why, 0, "%s", code == EINVAL ? "not a regular file of at most 16 MiB" : strerror(code));
        return -code;
    }
    size_t mark = strncmp(text, BYTE_ORDER_MARK, sizeof BYTE_ORDER_MARK - 1) == 0 ? sizeof BYTE_ORDER_MARK - 1 : 0;
    size_t first = mark + strspn(text + mark, " \t\r\n");
    int rc = text[first] == '<' ? hr_topology_read_xml(text, bytes, out, why)
                                : hr_topology_read_matrix(text + mark, bytes - mark, 0, out, why);
    free(text);
    char *extras = rc == 0 ? read_extras(path, &extras_bytes) : NULL;
    if (extras) {
        rc = hr_topology_read_extras(extras, extras_bytes, *out, why);
        if (rc != 0) {
            char said[sizeof why->text];
            memcpy(said, why->text, sizeof said);
            hr_text_refuse(why, why->line, "in %.60s.extras: %.180s", path, said);
            hr_topology_destroy(*out);
            *out = NULL;
        }
    }
    free(extras);
    return rc;
}

/* The file was checked as a whole, with all its GPUs; here lines about what the process does not see are passed over. */
void hr_source_apply_extras(const char *path, struct hr_topology *topology)
{
    size_t bytes;
    char *text = read_extras(path, &bytes);

    for (char *at = text; at && *at;) {
        size_t length = strcspn(at, "\n");
        hr_topology_read_extras(at, length, topology, NULL);
        at += length + (at[length] == '\n');
    }
    free(text);
}
