// SPDX-License-Identifier: Apache-2.0
// The end of a test program: its one test case as a suite, run; what main returns.
#pragma once
#include <check.h>
#include <stdlib.h>

static inline int suite_run(const char *name, TCase *tests)
{
    Suite *s = suite_create(name);
    suite_add_tcase(s, tests);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
