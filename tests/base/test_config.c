#include "base/config.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct given {
    const char *env, *text;
    unsigned complaints;
    char last[1024];
};

static const char *lookup(const char *env, void *arg)
{
    struct given *given = arg;
    return given->env != NULL && strcmp(env, given->env) == 0 ? given->text : NULL;
}

static void complain(const char *line, void *arg)
{
    struct given *given = arg;
    given->complaints++;
    snprintf(given->last, sizeof given->last, "%s", line);
}

static struct hr_config parse(struct given *given)
{
    struct hr_config config;
    hr_config_parse(lookup, complain, given, &config);
    return config;
}

/* One value of one setting; whether it is accepted without a word. */
static struct hr_config parse_one(const char *env, const char *text, bool *accepted_out)
{
    struct given given = {env, text, 0, ""};
    struct hr_config config = parse(&given);
    *accepted_out = given.complaints == 0;
    return config;
}

Test(config, every_default_is_a_legal_value)
{
    size_t count;
    const struct hr_setting *s = hr_config_settings(&count);
    cr_assert_eq(count, 20);
    for (size_t i = 0; i < count; i++)
        cr_assert(hr_config_accepts(&s[i], s[i].default_text), "%s=%s", s[i].env, s[i].default_text);
}

Test(config, nothing_set_gives_the_defaults_in_silence)
{
    struct given given = {NULL, NULL, 0, ""};
    struct hr_config c = parse(&given);
    cr_assert_eq(given.complaints, 0);
    cr_assert(c.ratio == 0 && c.commit == HR_COMMIT_AUTO && c.policy == HR_POLICY_LRU && !c.disable);
    cr_assert(c.vram.kind == HR_SIZE_PERCENT && c.vram.value == 100);
    cr_assert(c.log.level == HR_LOG_WARN && c.log.path[0] == '\0' && c.driver[0] == '\0' && c.trace[0] == '\0');
    cr_assert_str_eq(c.stats, "headroom-%h-%p.jsonl");
}

Test(config, values_are_read_as_documented)
{
    bool ok;
    cr_assert(parse_one("HEADROOM_RATIO", "6", &ok).ratio == 6 && ok);
    cr_assert(parse_one("HEADROOM_RATIO", "1.5", &ok).ratio == 1.5 && ok);
    cr_assert_eq(parse_one("HEADROOM_VRAM", "64M", &ok).vram.value, 64u << 20);
    cr_assert_eq(parse_one("HEADROOM_VRAM", "2g", &ok).vram.value, UINT64_C(2) << 30);
    cr_assert_eq(parse_one("HEADROOM_VRAM", "1.5K", &ok).vram.value, 1536);
    cr_assert_eq(parse_one("HEADROOM_HOST", "4096", &ok).host.value, 4096);
    cr_assert(parse_one("HEADROOM_HOST", "50%", &ok).host.kind == HR_SIZE_PERCENT && ok);
    cr_assert_eq(parse_one("HEADROOM_COMMIT", "eager", &ok).commit, HR_COMMIT_EAGER);
    cr_assert(parse_one("HEADROOM_DISABLE", "1", &ok).disable && ok);
    struct hr_config c = parse_one("HEADROOM_LOG", "debug:/tmp/a:b", &ok);
    cr_assert(c.log.level == HR_LOG_DEBUG && strcmp(c.log.path, "/tmp/a:b") == 0 && ok);
    c = parse_one("HEADROOM_STATS", "off", &ok);
    cr_assert(c.stats[0] == '\0' && ok);
    c = parse_one("HEADROOM_NVM", "/mnt/fast:20G", &ok);
    cr_assert(strcmp(c.nvm.dir, "/mnt/fast") == 0 && c.nvm.size.value == UINT64_C(20) << 30);
    cr_assert_eq(parse_one("HEADROOM_LEAD", "2ms", &ok).lead_ns, 2000000);
}

Test(config, a_bad_value_is_named_once_with_what_is_accepted_and_the_default_is_used)
{
    static const char *const bad[][2] = {
        {"HEADROOM_RATIO", "0.5"},        {"HEADROOM_RATIO", "1001"},
        {"HEADROOM_RATIO", "x"},          {"HEADROOM_RATIO", "4x"},
        {"HEADROOM_RATIO", "-4"},         {"HEADROOM_VRAM", "101%"},
        {"HEADROOM_VRAM", "0"},           {"HEADROOM_VRAM", "64MX"},
        {"HEADROOM_HOST", "12.5%"},       {"HEADROOM_HOST", "99999999999G"},
        {"HEADROOM_NVM", "relative"},     {"HEADROOM_NVM", "/x/y:"},
        {"HEADROOM_PEERS", "some"},       {"HEADROOM_PORTS", "a"},
        {"HEADROOM_ROUTES", "shortest"},  {"HEADROOM_POLICY", "LRU"},
        {"HEADROOM_LEAD", "5"},           {"HEADROOM_IDLE", "0s"},
        {"HEADROOM_COMMIT", "auto|lazy"}, {"HEADROOM_LOG", "loud"},
        {"HEADROOM_LOG", "warn:"},        {"HEADROOM_DISABLE", "yes"},
        {"HEADROOM_VERIFY_WAIT", "off"},  {"HEADROOM_VERIFY_WAIT", "auto"},
        {"HEADROOM_LEAD", "off"},         {"HEADROOM_IDLE", "auto"},
    };
    struct given none = {NULL, NULL, 0, ""};
    struct hr_config defaults = parse(&none);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct given given = {bad[i][0], bad[i][1], 0, ""};
        struct hr_config config = parse(&given);
        if (strcmp(bad[i][1], "/x/y:") == 0)
            continue; /* a folder whose name ends in a colon is legal */
        cr_assert_eq(given.complaints, 1, "%s=%s", bad[i][0], bad[i][1]);
        cr_assert(strstr(given.last, bad[i][0]) != NULL && strstr(given.last, bad[i][1]) != NULL &&
                      strstr(given.last, hr_config_find(bad[i][0])->accepted) != NULL,
                  "%s", given.last);
        cr_assert(config.ratio == defaults.ratio && config.policy == defaults.policy &&
                      config.vram.value == defaults.vram.value && config.host.value == defaults.host.value &&
                      config.log.level == defaults.log.level && config.disable == defaults.disable,
                  "%s=%s changes something", bad[i][0], bad[i][1]);
    }
}

Test(config, a_setting_without_effect_says_so)
{
    struct given given = {"HEADROOM_IDLE", "2s", 0, ""};
    struct hr_config c = parse(&given);
    cr_assert(c.idle_ns == UINT64_C(2000000000) && given.complaints == 1 && strstr(given.last, "no effect") != NULL);
    bool silent;
    parse_one("HEADROOM_IDLE", "off", &silent);
    cr_assert(silent, "the default has no effect either and needs no word");
    parse_one("HEADROOM_IDLE", "", &silent);
    cr_assert(silent, "an empty value is not set");
}

Test(config, settings_are_found_by_variable_and_by_flag)
{
    cr_assert_eq(hr_config_find("ratio"), hr_config_find("HEADROOM_RATIO"));
    cr_assert_not_null(hr_config_find("ratio"));
    cr_assert_null(hr_config_find("RATIO"));
    cr_assert_null(hr_config_find(""));
}

Test(config, path_patterns_are_filled_in)
{
    char path[300], wanted[64], host[256] = "", small[8];
    cr_assert(hr_config_path("/tmp/a-%p-%%.log", path, sizeof path));
    snprintf(wanted, sizeof wanted, "/tmp/a-%ld-%%.log", (long)getpid());
    cr_assert_str_eq(path, wanted);
    gethostname(host, sizeof host - 1);
    cr_assert(hr_config_path("%h", path, sizeof path));
    cr_assert_str_eq(path, host);
    cr_assert_not(hr_config_path("12345678", small, sizeof small));
    cr_assert_str_eq(small, "");
}

Test(config, sizes_are_taken_of_the_whole)
{
    struct hr_size percent = {HR_SIZE_PERCENT, 80}, bytes = {HR_SIZE_BYTES, 5}, unset = {HR_SIZE_UNSET, 0};
    cr_assert_eq(hr_config_size(&percent, 1000, 1), 800);
    cr_assert_eq(hr_config_size(&percent, UINT64_MAX, 1), UINT64_MAX / 100 * 80 + 15 * 80 / 100);
    cr_assert_eq(hr_config_size(&bytes, 1000, 1), 5);
    cr_assert_eq(hr_config_size(&unset, 1000, 1), 1);
}
