/*
 * The file of what copies have shown. Lines of text with a sum each, so that damage costs a line; files of other versions are left
 * unread and replaced at the next writing. Replaced as a whole by renaming: readers see the old or the new one.
 */
#ifndef HR_FABRIC_PATHCACHE_H
#define HR_FABRIC_PATHCACHE_H

#include "fabric/discover.h"

/* The file to use into path_out; false: none (off, no home, a simulated node that none was named for). */
bool hr_pathcache_place(char *path_out, size_t bytes);

/* Fills in what the file knows of this machine. A file that is not there is no error. */
void hr_pathcache_read(const char *path, struct hr_discovery *discovery);

/* Puts what is known of this machine in place of what the file had of it; keeps the rest. 0 or a negative errno; EINVAL: the path leads
 * to what is no regular file, and it is left alone. */
int hr_pathcache_write(const char *path, const struct hr_discovery *discovery);

#endif
