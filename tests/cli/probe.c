/* A job for the tests of the command: says or does one thing that the command must not disturb.
 *
 * A program of our own instead of sh or env, so that it is instrumented alike when the preloaded library is.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "env") == 0) {
        const char *value = getenv(argv[2]);
        puts(value != NULL ? value : "(not set)");
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "exit") == 0) {
        return (int)strtol(argv[2], NULL, 10);
    }
    if (argc == 3 && strcmp(argv[1], "signal") == 0) {
        raise((int)strtol(argv[2], NULL, 10));
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "pid") == 0) {
        printf("%d\n", (int)getpid());
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "wait") == 0) {
        puts("waiting");
        fflush(stdout);
        for (;;) {
            pause();
        }
    }
    if (argc >= 2 && strcmp(argv[1], "args") == 0) {
        for (int i = 2; i < argc; i++) {
            printf("[%s]", argv[i]);
        }
        puts("");
        return 0;
    }
    fprintf(stderr, "probe: bad arguments\n");
    return 99;
}
