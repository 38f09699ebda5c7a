/* Whether this is a build with a sanitizer, in which everything takes several times as long. */
#ifndef TESTS_SUPPORT_SANITIZER_H
#define TESTS_SUPPORT_SANITIZER_H

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SANITIZED_THREADS 1
#elif __has_feature(address_sanitizer)
#define SANITIZED_ADDRESSES 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) && !defined(SANITIZED_THREADS)
#define SANITIZED_THREADS 1
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(SANITIZED_ADDRESSES)
#define SANITIZED_ADDRESSES 1
#endif
#ifndef SANITIZED_THREADS
#define SANITIZED_THREADS 0
#endif
#ifndef SANITIZED_ADDRESSES
#define SANITIZED_ADDRESSES 0
#endif
#define SANITIZED (SANITIZED_THREADS || SANITIZED_ADDRESSES)

#endif
