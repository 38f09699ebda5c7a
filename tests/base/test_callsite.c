#include "base/callsite.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __attribute__((noinline)) void hook(struct hr_callsite *site)
{
    hr_callsite_capture(__builtin_return_address(0), site);
}

static __attribute__((noinline)) void caller(struct hr_callsite *site)
{
    hook(site);
    __asm__ volatile("" ::: "memory"); /* no tail call */
}

Test(callsite, begins_where_the_hook_returns_to)
{
    struct hr_callsite site;
    caller(&site);
    cr_assert_geq(site.depth, 1);
    uintptr_t pc = (uintptr_t)site.pc[0];
    cr_assert(pc > (uintptr_t)caller && pc < (uintptr_t)caller + 64, "not inside the caller");
}

Test(callsite, equal_places_have_equal_hashes)
{
    struct hr_callsite site[3];
    for (volatile int i = 0; i < 2; i++) /* volatile: one call in the code, not two unrolled */
        caller(&site[i]);
    caller(&site[2]);
    cr_assert_eq(hr_callsite_hash(&site[0]), hr_callsite_hash(&site[1]));
    cr_assert_neq(hr_callsite_hash(&site[0]), hr_callsite_hash(&site[2]));
}

Test(callsite, an_address_is_described_by_file_and_offset)
{
    char text[512], *end;
    hr_callsite_describe((void *)(uintptr_t)caller, text, sizeof text);
    char *plus = strrchr(text, '+');
    cr_assert_not_null(plus);
    cr_assert_gt(strtoul(plus + 1, &end, 16), 0);
    cr_assert(*end == '\0' && text[0] == '/', "%s", text);
    hr_callsite_describe((void *)8, text, sizeof text);
    cr_assert_str_eq(text, "0x8");
}
