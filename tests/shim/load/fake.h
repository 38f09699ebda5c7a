/* What a fake driver tells the test that runs on it; from its cuGetExportTable(&stats, NULL). */
#ifndef HR_TESTS_FAKE_H
#define HR_TESTS_FAKE_H

struct fake_stats {
    int (*calls)(const char *name); /* how often it was called; -1: it has no such function */
    const char *(*last)(void);      /* the function called last */
    const long *(*arguments)(void); /* the first eight of that call */
    float (*float_argument)(void);  /* of the last cuParamSetf */
    int (*look_up)(const char *name, void **address, int version, unsigned long long flags,
                   int *status);  /* not through us */
    const char *(*found)(void);   /* the function that the last look_up found; NULL: none */
    const void *private_function; /* what look_up returns for cuMemAllocExtra, a name that only it knows */
    void (*leave_main)(void);     /* from now on calls are late; its destructor tells how many there were */
};

#endif
