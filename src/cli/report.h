/* The text form of `headroom report`. */
#ifndef HR_CLI_REPORT_H
#define HR_CLI_REPORT_H

#include "cli/statslog.h"

/* Prints one run to stdout: at most `site_limit` allocation sites, symbolised, those that moved most first. */
void hr_cli_report_print(const char *path, const struct hr_cli_run_record *record, size_t site_limit);

/* Adds to each frame of the sites a member "text", its name (symbols.h); a frame that is not one is passed over. */
void hr_cli_report_name_sites(cJSON *sites);

#endif
