/* A tool of LD_AUDIT: it sees every object and every binding by name, and changes nothing. At exit of the process it tells how many. */
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_ulong objects, bindings, ours;

unsigned la_version(unsigned version)
{
    return version;
}

unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie)
{
    (void)space, (void)cookie;
    atomic_fetch_add(&objects, 1);
    if (strstr(map->l_name, "libheadroom"))
        atomic_fetch_add(&ours, 1);
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

#if UINTPTR_MAX > 0xffffffffu
uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags,
                       const char *name)
{
    (void)index, (void)from, (void)to, (void)flags, (void)name;
    atomic_fetch_add(&bindings, 1);
    return symbol->st_value;
}
#endif

__attribute__((destructor)) static void tell(void)
{
    const char *fd = getenv("TEST_AUDIT_FD");
    if (fd)
        dprintf((int)strtol(fd, NULL, 10), "%lu objects, %lu bindings, %lu of headroom\n", atomic_load(&objects),
                atomic_load(&bindings), atomic_load(&ours));
}
