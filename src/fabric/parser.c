#include "fabric/parser.h"

#include "base/loader.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

static struct hr_expat functions;
static bool complete;

static void open_library(void)
{
    void *library = hr_loader_open("libexpat.so.1", RTLD_LOCAL | RTLD_NOW);

    if (!library)
        return;
    complete = true;
#define HR_EXPAT_FIND(name)                                                                                            \
    functions.name = (__typeof__(&name))hr_loader_find(library, #name);                                                \
    complete = complete && functions.name;
    HR_EXPAT_FUNCTIONS(HR_EXPAT_FIND)
#undef HR_EXPAT_FIND
}

const struct hr_expat *hr_expat(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, open_library);
    return complete ? &functions : NULL;
}
