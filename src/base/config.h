/*
 * The settings. One table (config.def) makes the environment variables, the flags of `headroom run`, their help and this struct.
 *
 * The environment is read once, at the first call of hr_config(). A bad value is named once on stderr with what is accepted, and
 * the default is used; a setting that is understood but has no effect in this version says so in one line.
 */
#ifndef HR_BASE_CONFIG_H
#define HR_BASE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"

#define HR_CONFIG_TEXT_BYTES 1024

enum hr_size_kind { HR_SIZE_UNSET, HR_SIZE_BYTES, HR_SIZE_PERCENT };
struct hr_size {
    enum hr_size_kind kind;
    uint64_t value; /* bytes, or percent (1..100) of the whole that it is asked about */
};

struct hr_nvm_place {
    char dir[HR_CONFIG_TEXT_BYTES]; /* "" = no NVM tier */
    struct hr_size size;            /* of the file system's free space where in percent */
};

struct hr_log_choice {
    enum hr_log_level level;
    char path[HR_CONFIG_TEXT_BYTES]; /* "" = stderr; %p and %h not yet replaced */
};

enum hr_peers { HR_PEERS_OFF, HR_PEERS_AUTO, HR_PEERS_ALL };
enum hr_port_choice { HR_PORT_AUTO, HR_PORT_ANY, HR_PORT_ROUNDROBIN, HR_PORT_ALL, HR_PORT_ADDRESS };
enum hr_routes_choice { HR_ROUTES_FLOW, HR_ROUTES_PROBE };
enum hr_policy_choice { HR_POLICY_PREDICT, HR_POLICY_LRU, HR_POLICY_STATIC };
enum hr_verify { HR_VERIFY_AUTO, HR_VERIFY_OFF };
enum hr_commit { HR_COMMIT_AUTO, HR_COMMIT_LAZY, HR_COMMIT_EAGER };

struct hr_config {
    double ratio;        /* window / VRAM; 0 = auto: all that can be backed */
    struct hr_size vram; /* cap of the VRAM used per GPU */
    struct hr_size host; /* cap of host memory */
    struct hr_nvm_place nvm;
    enum hr_peers peers;
    enum hr_port_choice ports;
    enum hr_routes_choice routes;
    enum hr_policy_choice policy;
    uint64_t lead_ns; /* prefetch lead; 0 = auto */
    uint64_t idle_ns; /* idle span before moving out; 0 = off */
    enum hr_commit commit;
    char stats[HR_CONFIG_TEXT_BYTES]; /* path pattern; "" = off */
    char trace[HR_CONFIG_TEXT_BYTES]; /* path pattern; "" = off */
    struct hr_log_choice log;
    char driver[HR_CONFIG_TEXT_BYTES];     /* the real driver's file or folder; "" = search */
    char topo[HR_CONFIG_TEXT_BYTES];       /* topology file; "" = ask the machine */
    char topo_cache[HR_CONFIG_TEXT_BYTES]; /* "" = the usual place, "off" = none */
    enum hr_verify verify;
    uint64_t verify_wait_ns; /* for one copy */
    bool disable;
};

enum hr_setting_type {
    HR_TYPE_RATIO,
    HR_TYPE_SIZE,
    HR_TYPE_NVM,
    HR_TYPE_CHOICE,
    HR_TYPE_SPAN,
    HR_TYPE_TEXT,
    HR_TYPE_LOG,
    HR_TYPE_BOOL
};
enum hr_setting_effect { HR_EFFECT_NOW, HR_EFFECT_LATER };

struct hr_setting {
    const char *env;  /* "HEADROOM_RATIO" */
    const char *flag; /* "ratio": `headroom run --ratio` */
    enum hr_setting_type type;
    const char *choices;      /* HR_TYPE_CHOICE: "auto|lazy|eager", in the order of the enum; else "" */
    const char *default_text; /* as one would write it */
    const char *accepted;     /* what a bad value is answered with */
    const char *help;
    enum hr_setting_effect effect;
    size_t offset; /* of the field in struct hr_config */
};

/* The settings of this process, read from the environment at the first call. Never fails. Thread-safe. Locks: none. */
const struct hr_config *hr_config(void);

/* The table, in the order of config.def. */
const struct hr_setting *hr_config_settings(size_t *count_out);

/* The setting with that environment name ("HEADROOM_RATIO") or flag ("ratio"), or NULL. */
const struct hr_setting *hr_config_find(const char *name);

/* Whether text is a legal value of the setting: what `headroom run` asks before it starts anything. */
bool hr_config_accepts(const struct hr_setting *setting, const char *text);

/* Parse all settings from lookup(env_name, arg) (NULL = not set) into *config_out. Complaints go to complain(line, arg). */
void hr_config_parse(const char *(*lookup)(const char *env, void *arg), void (*complain)(const char *line, void *arg),
                     void *arg, struct hr_config *config_out);

/* Bytes that a size setting means: value, or that share of whole_bytes; unset_bytes where it is not set. */
uint64_t hr_config_size(const struct hr_size *size, uint64_t whole_bytes, uint64_t unset_bytes);

/* Write pattern with %p (pid), %h (host name) and %% replaced. False when it does not fit (then *out is ""). */
bool hr_config_path(const char *pattern, char *out, size_t out_bytes);

#endif
