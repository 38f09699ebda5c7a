/*
 * One process at a time tries copies for a file of paths. Where the ranks of a job all start on a cold file they would try the same copies
 * at once, wait for each other's, and write down rates of links that they shared.
 *
 * Who has the turn holds a socket in the abstract name space: it is of this machine, leaves nothing behind, and goes with the process
 * however that ends. Who waits is connected to it and so told of the end.
 */
#ifndef HR_FABRIC_TURN_H
#define HR_FABRIC_TURN_H

#include <stdint.h>

struct hr_turn {
    int fd; /* -1 = none is held */
};

enum hr_turn_answer {
    HR_TURN_MINE,   /* until hr_turn_end */
    HR_TURN_WAITED, /* another process of this user had it, and is done or gone: see what it wrote, and ask again */
    HR_TURN_NONE,   /* it cannot be had: the deadline passed, or the socket is refused. Go on without */
};

/* Asks for the turn of the file `place`. Blocks while another process has it, at most until hr_clock_ns() is deadline_ns. turn_out holds
 * nothing unless the answer is MINE. Locks: none. Any thread. */
enum hr_turn_answer hr_turn_take(const char *place, uint64_t deadline_ns, struct hr_turn *turn_out);

/* Lets the others go on; also where a process that was forked meanwhile has the socket as well. Nothing where none is held. */
void hr_turn_end(struct hr_turn *turn);

#endif
