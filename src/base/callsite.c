#include "base/callsite.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/loader.h"

extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

typedef int (*backtrace_function)(void **pcs, int count);

static backtrace_function find_backtrace(void)
{
    static _Atomic(void *) found;
    static int none; /* its address stands for 'looked for, not there' */
    void *function = atomic_load_explicit(&found, memory_order_acquire);
    if (function == NULL) {
        void *library = hr_loader_open("libunwind.so.8", RTLD_LOCAL | RTLD_LAZY);
        function = library != NULL ? hr_loader_find(library, "unw_backtrace") : NULL;
        if (function == NULL)
            function = &none;
        atomic_store_explicit(&found, function, memory_order_release);
    }
    return function == &none ? NULL : (backtrace_function)function;
}

static bool is_ours(const void *pc)
{
    return (const char *)pc >= __ehdr_start && (const char *)pc < _end;
}

void hr_callsite_capture(void *return_pc, struct hr_callsite *site_out)
{
    void *raw[HR_CALLSITE_DEPTH + 12];
    backtrace_function backtrace = find_backtrace();
    int count = backtrace != NULL ? backtrace(raw, (int)(sizeof raw / sizeof raw[0])) : 0;
    int first = 0;
    while (first < count && raw[first] != return_pc)
        first++;
    if (first == count) /* a tail call or an unreadable frame hid it: drop what is surely ours */
        for (first = 0; first < count && is_ours(raw[first]);)
            first++;
    site_out->depth = 0;
    for (int i = first; i < count && site_out->depth < HR_CALLSITE_DEPTH; i++) {
        if (raw[i] != NULL)
            site_out->pc[site_out->depth++] = raw[i];
    }
    if (site_out->depth == 0)
        site_out->pc[site_out->depth++] = return_pc;
}

uint64_t hr_callsite_hash(const struct hr_callsite *site)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < site->depth; i++) {
        hash ^= (uint64_t)(uintptr_t)site->pc[i];
        hash *= UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
    }
    return hash != 0 ? hash : 1;
}

struct search {
    uintptr_t pc;
    char *out;
    size_t out_bytes;
};

static int look_in_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    struct search *search = arg;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD || search->pc - info->dlpi_addr - segment->p_vaddr >= segment->p_memsz)
            continue;
        char program[1024] = "";
        const char *name = info->dlpi_name;
        if (name == NULL || name[0] == '\0') { /* the program itself: by its path, since others read the log later */
            ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
            program[n > 0 ? n : 0] = '\0';
            name = n > 0 ? program : "/proc/self/exe";
        }
        snprintf(search->out, search->out_bytes, "%s+0x%lx", name, (unsigned long)(search->pc - info->dlpi_addr));
        return 1;
    }
    return 0;
}

void hr_callsite_describe(const void *pc, char *out, size_t out_bytes)
{
    struct search search = {(uintptr_t)pc, out, out_bytes};
    if (dl_iterate_phdr(look_in_object, &search) == 0)
        snprintf(out, out_bytes, "%p", pc);
}
