/*
 * Plays plans in virtual time, without threads: every chunk passes the legs of its path one after the other, copies that use an edge
 * at the same time share it evenly, relays hold as many chunks as they have slots. Shows what a plan is worth before any device sees
 * it, and what becomes of it when a link fails.
 *
 * Pure; a model belongs to one caller. Errors are negative errno values.
 */
#ifndef HR_FABRIC_MODEL_H
#define HR_FABRIC_MODEL_H

#include "fabric/pipeline.h"

struct hr_model;

/* The graph must outlive the model. NULL without memory. destroy takes NULL. */
struct hr_model *hr_model_create(const struct hr_graph *graph, const struct hr_pipeline_costs *costs);
void hr_model_destroy(struct hr_model *model);

/*
 * Begins a plan now; plans that are under way share the edges with it. Plan and routes are copied. Returns the plan's number or
 * -ENOMEM.
 */
int hr_model_begin(struct hr_model *model, const struct hr_plan *plan, const struct hr_routes *routes);

/* Runs until all plans have ended, or until the given time. 0; -ETIMEDOUT: the time came first; -EPIPE: what is left cannot move. */
int hr_model_run(struct hr_model *model, double until_ns);

double hr_model_now_ns(const struct hr_model *model);
/* When a plan's last byte arrived; negative = not yet. */
double hr_model_end_ns(const struct hr_model *model, uint32_t plan);

/*
 * An edge fails: what is on it is lost, and so is every undelivered chunk of a path that uses it. Then all plans give back what
 * still has to be planned again: those chunks, and of other paths what has not begun. Extents in address order into
 * extents_out, which the caller frees; their number is returned, or -ENOMEM. What moves on paths that are whole goes on.
 */
int hr_model_fail(struct hr_model *model, uint32_t edge, struct hr_part **extents_out);

/*
 * How long what is under way keeps each path of `routes` busy, for the costs of the next plan: the bytes that still have to cross the
 * path's fullest edge, over its rate. busy_ns_out has room for all paths. -ENOMEM.
 */
int hr_model_busy_ns(const struct hr_model *model, const struct hr_routes *routes, double *busy_ns_out);

/* What has arrived, in the order of arrival. The model's own. */
const struct hr_part *hr_model_delivered(const struct hr_model *model, uint32_t *count_out);

#endif
