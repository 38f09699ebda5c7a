/*
 * Included first in every file of the library: binds to the old symbol versions of what glibc 2.32-2.38 moved or renewed, so that a
 * library built on a new machine loads on an old one. tests/check looks at what the library needs.
 *
 * The functions moved into libc.so.6 with 2.34 keep their old version there; on older systems libdl and libpthread define it.
 */
#ifndef HR_BASE_SYMVER_H
#define HR_BASE_SYMVER_H

#if defined(__GLIBC__) || __has_include(<gnu/libc-version.h>)
#if defined(__x86_64__)
#define HR_OLD "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define HR_OLD "GLIBC_2.17"
#endif
#if defined(HR_OLD) && !defined(__ASSEMBLER__)
#define HR_BIND(name) __asm__(".symver " #name ", " #name "@" HR_OLD);
HR_BIND(dlsym)
HR_BIND(dlclose)
HR_BIND(dlerror)
HR_BIND(dladdr)
HR_BIND(dlvsym)
HR_BIND(pthread_create)
HR_BIND(pthread_join)
HR_BIND(pthread_detach)
HR_BIND(pthread_once)
HR_BIND(pthread_key_create)
HR_BIND(pthread_key_delete)
HR_BIND(pthread_getspecific)
HR_BIND(pthread_setspecific)
HR_BIND(pthread_mutex_trylock)
HR_BIND(pthread_rwlock_init)
HR_BIND(pthread_rwlock_destroy)
HR_BIND(pthread_rwlock_rdlock)
HR_BIND(pthread_rwlock_wrlock)
HR_BIND(pthread_rwlock_unlock)
HR_BIND(pthread_kill)
HR_BIND(pthread_sigmask)
HR_BIND(sem_init)
HR_BIND(sem_destroy)
HR_BIND(sem_post)
HR_BIND(sem_wait)
HR_BIND(sem_trywait)
#if defined(__x86_64__)
__asm__(".symver pthread_condattr_setclock, pthread_condattr_setclock@GLIBC_2.3.3");
__asm__(".symver pthread_setname_np, pthread_setname_np@GLIBC_2.12");
__asm__(".symver fcntl64, fcntl@GLIBC_2.2.5");
#else
HR_BIND(pthread_condattr_setclock)
HR_BIND(pthread_setname_np)
__asm__(".symver fcntl64, fcntl@GLIBC_2.17");
#endif
#endif
#endif

#endif
