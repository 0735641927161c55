// SPDX-License-Identifier: Apache-2.0
// Headers exchanges (data-plane §2.2): binding arguments against the message's header table.
#include "node/broker/internal.h"
#include <stdio.h>

enum match_kind { MATCH_ALL, MATCH_ANY, MATCH_ALL_X, MATCH_ANY_X };

static bool parse_kind(struct span arguments, enum match_kind *kind, struct table_value *bad)
{
    *kind = MATCH_ALL;
    if (!table_find(arguments, "x-match", bad)) {
        return true;
    }
    static const char *const names[] = {"all", "any", "all-with-x", "any-with-x"};
    if (bad->type != TABLE_STRING) {
        return false;
    }
    for (int i = 0; i < 4; i++) {
        if (span_equal(bad->bytes, span_str(names[i]))) {
            *kind = (enum match_kind)i;
            return true;
        }
    }
    return false;
}

const char *headers_check(struct span arguments, char *text, size_t text_size)
{
    enum match_kind kind;
    struct table_value bad;
    if (parse_kind(arguments, &kind, &bad)) {
        return NULL;
    }
    if (bad.type == TABLE_STRING) {
        snprintf(text, text_size,
                 "Invalid x-match field value <<\"%.*s\">>; expected all, any, all-with-x, or any-with-x",
                 (int)(bad.bytes.len < 100 ? bad.bytes.len : 100), (const char *)bad.bytes.ptr);
    } else {
        struct buf value = {0};
        table_value_print(&bad, &value);
        struct span shown = buf_span(&value);
        if (shown.len >= 2 && shown.ptr[0] == '\'') {
            shown = span_of(shown.ptr + 1, shown.len - 2);  // Numbers stand here without quotes.
        }
        snprintf(text, text_size, "Invalid x-match field type %s (value %.*s); expected longstr",
                 table_type_name(bad.type), (int)(shown.len < 100 ? shown.len : 100),
                 (const char *)shown.ptr);
        buf_deinit(&value);
    }
    return text;
}

bool headers_match(struct span arguments, struct span headers)
{
    enum match_kind kind;
    struct table_value value, header;
    if (!parse_kind(arguments, &kind, &value)) {
        return false;
    }
    bool is_any = kind == MATCH_ANY || kind == MATCH_ANY_X;
    bool sees_x = kind == MATCH_ALL_X || kind == MATCH_ANY_X;
    struct table_reader r = table_reader_of(arguments);
    struct span key;
    while (table_next(&r, &key, &value)) {
        if (span_equal(key, span_str("x-match")) || (!sees_x && span_starts_with(key, "x-"))) {
            continue;
        }
        bool is_there = table_find_span(headers, key, &header);
        bool fits = is_there && (value.type == TABLE_VOID || table_value_matches(&value, &header));
        if (fits && is_any) {
            return true;
        }
        if (!fits && !is_any) {
            return false;
        }
    }
    return !is_any;
}
