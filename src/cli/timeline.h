/* `headroom report --timeline`: draws what simgpu wrote to SIMGPU_TIMELINE. */
#ifndef HR_CLI_TIMELINE_H
#define HR_CLI_TIMELINE_H

/* Reads the timeline at `path` and writes an SVG picture to `svg_path` (NULL = standard output). Returns a status of
 * cli.h; says in one line what is wrong with the input. */
int hr_cli_timeline(const char *path, const char *svg_path);

#endif
