// SPDX-License-Identifier: Apache-2.0
// The texts and categories of rc.h, generated from its one list.
#include "node/base/rc.h"

const char *rc_text(enum rc rc)
{
    switch (rc) {
#define RC_CASE(name, category, text)                                                              \
    case RC_##name:                                                                                \
        return text;
        RC_LIST(RC_CASE)
#undef RC_CASE
    case RC_COUNT:
        break;
    }
    return "unknown result";
}

enum rc_category rc_category(enum rc rc)
{
    switch (rc) {
#define RC_CASE(name, category, text)                                                              \
    case RC_##name:                                                                                \
        return RC_CATEGORY_##category;
        RC_LIST(RC_CASE)
#undef RC_CASE
    case RC_COUNT:
        break;
    }
    return RC_CATEGORY_BUG;
}
