/* Second half of a fake driver, after its table. */

static int found_index = -1; /* by the last look_up */

static void private_function(void)
{
}

static int look_up(const char *name, void **address, int version, unsigned long long flags, int *status)
{
    const struct form *best = NULL;
    int known = 0;
    *address = NULL;
    *status = 1;
    if (version > FAKE_VERSION)
        return 1;
    if (strcmp(name, "cuMemAllocExtra") == 0) {
        *address = (void *)private_function;
        *status = 0;
        return 0;
    }
    for (const struct form *f = forms; f < forms + I_COUNT; f++) {
        if (strcmp(f->base, name) != 0)
            continue;
        known = 1;
        if (f->since <= version && (!f->per_thread || (flags & 2)) &&
            (best == NULL || f->per_thread > best->per_thread ||
             (f->per_thread == best->per_thread && f->since > best->since)))
            best = f;
    }
    if (best != NULL)
        *address = best->address;
    found_index = best != NULL ? best->index : -1;
    *status = best != NULL ? 0 : known ? 2 : 1;
    return 0;
}

static int calls(const char *name)
{
    for (int i = 0; i < I_COUNT; i++) {
        if (strcmp(names[i], name) == 0)
            return count[i];
    }
    return -1;
}

static const char *last(void)
{
    return last_index >= 0 ? names[last_index] : "";
}

static const long *last_arguments(void)
{
    return arguments;
}

static float last_float(void)
{
    return float_argument;
}

static const char *found(void)
{
    return found_index >= 0 ? names[found_index] : NULL;
}

static void leave_main(void)
{
    main_is_over = 1;
}

int cuGetExportTable(const void **table, const void *id)
{
    static const struct fake_stats stats = {calls,   last,  last_arguments,           last_float,
                                            look_up, found, (void *)private_function, leave_main};
    (void)id;
    *table = &stats;
    return 0;
}

int cuInit(unsigned flags)
{
    return note(I_cuInit, NULL), flags != 0;
}

int cuDriverGetVersion(int *version)
{
    *version = FAKE_VERSION;
    return 0;
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
    if (address != NULL)
        *address = 0x1000;
    return note(I_cuMemAlloc_v2, (long[8]){(long)address, (long)bytes});
}

int cuParamSetf(void *function, int offset, float value)
{
    float_argument = value;
    return note(I_cuParamSetf, (long[8]){(long)function, offset});
}

#ifdef HAVE_cuGetProcAddress
int cuGetProcAddress(const char *name, void **address, int version, unsigned long long flags)
{
    int status, r;
    note(I_cuGetProcAddress, NULL);
    r = look_up(name, address, version, flags, &status);
    return r == 0 && status != 0 ? 500 : r;
}
#endif

#ifdef HAVE_cuGetProcAddress_v2
int cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long long flags, int *status)
{
    int none;
    note(I_cuGetProcAddress_v2, NULL);
    return look_up(name, address, version, flags, status != NULL ? status : &none);
}
#endif

/* A driver that uses its own exported functions: every one of these calls has to end here again. */
#ifdef EXPORTED_CALLS
static int reaches_itself(void)
{
    unsigned long long address = 0;
    int (*alloc)(unsigned long long *, size_t) = NULL;
    int status, before = count[I_cuMemAlloc_v2];
    int (*resolve)(const char *, void **, int, unsigned long long, int *) =
        (int (*)(const char *, void **, int, unsigned long long, int *))dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
    if (cuMemAlloc_v2(&address, 16) != 0 || address != 0x1000)
        return 0;
    if (resolve("cuMemAlloc", (void **)&alloc, FAKE_VERSION, 0, &status) != 0 || alloc(&address, 16) != 0)
        return 0;
    return count[I_cuMemAlloc_v2] == before + 2;
}
#endif

int cuDeviceGetCount(int *devices)
{
    note(I_cuDeviceGetCount, NULL);
    if (devices != NULL)
        *devices = 1;
#ifdef EXPORTED_CALLS
    return reaches_itself() ? 0 : 999;
#else
    return 0;
#endif
}

__attribute__((destructor)) static void at_unload(void)
{
    if (main_is_over)
        dprintf(STDERR_FILENO, "late calls: %d\n", late_calls);
}
