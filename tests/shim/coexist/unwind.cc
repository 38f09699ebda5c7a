// C++ for a C program to open: exceptions, cancelled threads, and how long they take.
#include <pthread.h>
#include <time.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace
{
thread_local int alive;

struct Counted {
    Counted() { alive++; }
    ~Counted() { alive--; }
    Counted(const Counted &) = delete;
};

__attribute__((noinline)) int dive(int depth, bool raise)
{
    Counted here;
    if (depth == 0) {
        if (raise)
            throw std::runtime_error("from " + std::to_string(alive));
        return alive;
    }
    return dive(depth - 1, raise) + 0 * alive;
}

__attribute__((noinline)) int through_c(int (*call)(int), int value)
{
    return call(value);
}

int rethrow(int depth)
{
    try {
        return dive(depth, true);
    } catch (const std::exception &) {
        std::exception_ptr kept = std::current_exception();
        std::rethrow_exception(kept);
    }
}

struct Flag {
    int *value;
    ~Flag() { ++*value; }
};

void on_cancel(void *value)
{
    ++*static_cast<int *>(value);
}

struct Waiting {
    int destroyed = 0, cleaned = 0;
    pthread_barrier_t *ready;
};

void *wait_for_cancel(void *arg)
{
    auto *w = static_cast<Waiting *>(arg);
    Flag flag{&w->destroyed};
    pthread_cleanup_push(on_cancel, &w->cleaned);
    pthread_barrier_wait(w->ready);
    for (;;) {
        timespec long_time{3600, 0};
        nanosleep(&long_time, nullptr);
    }
    pthread_cleanup_pop(0);
    return nullptr;
}

bool cancel_one()
{
    pthread_barrier_t ready;
    pthread_t thread;
    Waiting w;
    void *result = nullptr;
    pthread_barrier_init(&ready, nullptr, 2);
    w.ready = &ready;
    if (pthread_create(&thread, nullptr, wait_for_cancel, &w) != 0)
        return false;
    pthread_barrier_wait(&ready);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    pthread_barrier_destroy(&ready);
    return result == PTHREAD_CANCELED && w.destroyed == 1 && w.cleaned == 1;
}

double now_us()
{
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); // others may want the processors
    return 1e6 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_nsec);
}
} // namespace

// Prints what came of everything: the same words wherever it runs.
extern "C" int unwind_check(void)
{
    long caught = 0;
    for (int i = 0; i < 2000; i++) {
        try {
            dive(i % 50, true);
        } catch (const std::runtime_error &e) {
            caught += std::strlen(e.what());
        }
        try {
            through_c(rethrow, i % 20);
        } catch (...) {
            caught++;
        }
    }
    std::printf("caught %ld, alive %d\n", caught, alive);
    std::vector<std::thread> threads;
    long sum[8] = {};
    for (int t = 0; t < 8; t++)
        threads.emplace_back([t, &sum] {
            for (int i = 0; i < 500; i++) {
                try {
                    through_c(rethrow, 10 + t);
                } catch (const std::exception &) {
                    sum[t]++;
                }
            }
            sum[t] += alive;
        });
    for (auto &thread : threads)
        thread.join();
    std::printf("in threads %ld\n", sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7]);
    int cancelled = 0;
    for (int i = 0; i < 100; i++)
        cancelled += cancel_one();
    std::printf("cancelled %d\n", cancelled);
    try {
        dive(3, true);
    } catch (const std::logic_error &) {
        std::printf("of the wrong kind\n");
    } catch (const std::exception &e) {
        std::printf("%s\n", e.what());
    }
    return std::fflush(stdout);
}

// Microseconds of CPU time each: an exception over ten frames, a thread that is made, cancelled and joined.
extern "C" void unwind_time(double *exception_us, double *cancel_us)
{
    const int exceptions = 20000, threads = 300;
    double start = now_us();
    for (int i = 0; i < exceptions; i++) {
        try {
            dive(10, true);
        } catch (const std::exception &) {
        }
    }
    *exception_us = (now_us() - start) / exceptions;
    start = now_us();
    for (int i = 0; i < threads; i++)
        cancel_one();
    *cancel_us = (now_us() - start) / threads;
}

// Nobody catches it: the process ends as C++ says.
extern "C" void unwind_uncaught(void)
{
    dive(2, true);
}
