// SPDX-License-Identifier: Apache-2.0
// Field tables: the bytes stay as they came, values are read out of them one at a time.
//
// Idea: one function reads a value of any letter (read_value), one writes it (put_value); everything else is
// built on these two. Checking is reading everything once, with the depth bounded, so that later readers of
// the same bytes need no error path of their own.
//
// Not validated, as in RabbitMQ: UTF-8 of keys and strings, duplicate keys (lookups take the first), the byte
// of a bool (everything but 0 is true).
#include "proto/amqp09/table.h"
#include "node/base/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- reading ------------------------------------------------------------------------------------

struct table_reader table_reader_of(struct span table)
{
    return (struct table_reader){.r = reader_of(table), .is_array = false};
}

struct table_reader array_reader_of(struct span array)
{
    return (struct table_reader){.r = reader_of(array), .is_array = true};
}

static void read_value(struct reader *r, struct table_value *v)
{
    uint8_t letter = reader_u8(r);
    memset(v, 0, sizeof(*v));
    v->type = letter;
    switch (letter) {
    case TABLE_BOOL:
        v->b = reader_u8(r) != 0;
        break;
    case TABLE_I8:
        v->i = (int8_t)reader_u8(r);
        break;
    case TABLE_U8:
        v->u = reader_u8(r);
        break;
    case TABLE_I16:
        v->i = (int16_t)reader_u16be(r);
        break;
    case TABLE_U16:
        v->u = reader_u16be(r);
        break;
    case TABLE_I32:
        v->i = (int32_t)reader_u32be(r);
        break;
    case TABLE_U32:
        v->u = reader_u32be(r);
        break;
    case TABLE_I64:
    case TABLE_I64_ALIAS:
        v->type = TABLE_I64;
        v->i = (int64_t)reader_u64be(r);
        break;
    case TABLE_TIMESTAMP:
        v->u = reader_u64be(r);
        break;
    case TABLE_F32: {
        uint32_t bits = reader_u32be(r);
        memcpy(&v->f32, &bits, sizeof(bits));
        break;
    }
    case TABLE_F64: {
        uint64_t bits = reader_u64be(r);
        memcpy(&v->f64, &bits, sizeof(bits));
        break;
    }
    case TABLE_DECIMAL:
        v->decimal.scale = reader_u8(r);
        v->decimal.digits = reader_u32be(r);
        break;
    case TABLE_STRING:
    case TABLE_BINARY:
    case TABLE_ARRAY:
    case TABLE_TABLE:
        v->bytes = reader_str32be(r);
        break;
    case TABLE_VOID:
        break;
    default:
        r->is_bad = true;
        break;
    }
}

bool table_next(struct table_reader *t, struct span *key, struct table_value *value)
{
    if (reader_left(&t->r) == 0) {
        return false;
    }
    struct span k = {0};
    if (!t->is_array) {
        k = reader_str8(&t->r);
    }
    read_value(&t->r, value);
    if (t->r.is_bad) {
        return false;
    }
    if (key) {
        *key = k;
    }
    return true;
}

bool table_find_span(struct span table, struct span key, struct table_value *value)
{
    struct table_reader t = table_reader_of(table);
    struct span k;
    while (table_next(&t, &k, value)) {
        if (span_equal(k, key)) {
            return true;
        }
    }
    return false;
}

bool table_find(struct span table, const char *key, struct table_value *value)
{
    return table_find_span(table, span_str(key), value);
}

bool table_find_string(struct span table, const char *key, struct span *value)
{
    struct table_value v;
    if (!table_find(table, key, &v) || v.type != TABLE_STRING) {
        return false;
    }
    *value = v.bytes;
    return true;
}

bool table_find_bool(struct span table, const char *key, bool *value)
{
    struct table_value v;
    if (!table_find(table, key, &v) || v.type != TABLE_BOOL) {
        return false;
    }
    *value = v.b;
    return true;
}

uint32_t table_count(struct span table)
{
    struct table_reader t = table_reader_of(table);
    struct table_value v;
    uint32_t n = 0;
    while (table_next(&t, NULL, &v)) {
        n++;
    }
    return n;
}

static enum rc check(struct table_reader t, uint32_t depth)
{
    if (depth > TABLE_DEPTH_MAX) {
        return RC_MALFORMED;
    }
    struct table_value v;
    while (table_next(&t, NULL, &v)) {
        if (v.type == TABLE_TABLE) {
            TRY(check(table_reader_of(v.bytes), depth + 1));
        } else if (v.type == TABLE_ARRAY) {
            TRY(check(array_reader_of(v.bytes), depth + 1));
        }
    }
    return reader_end(&t.r);
}

enum rc table_check(struct span table)
{
    return check(table_reader_of(table), 1);
}

enum rc array_check(struct span array)
{
    return check(array_reader_of(array), 1);
}

bool table_value_integer(const struct table_value *v, int64_t *out)
{
    switch (v->type) {
    case TABLE_I8:
    case TABLE_I16:
    case TABLE_I32:
    case TABLE_I64:
    case TABLE_I64_ALIAS:
        *out = v->i;
        return true;
    case TABLE_U8:
    case TABLE_U16:
    case TABLE_U32:
        *out = (int64_t)v->u;
        return true;
    default:
        return false;
    }
}

const char *table_type_name(enum table_type type)
{
    switch (type) {
    case TABLE_BOOL:
        return "bool";
    case TABLE_I8:
        return "byte";
    case TABLE_U8:
        return "unsignedbyte";
    case TABLE_I16:
        return "short";
    case TABLE_U16:
        return "unsignedshort";
    case TABLE_I32:
        return "signedint";
    case TABLE_U32:
        return "unsignedint";
    case TABLE_I64:
    case TABLE_I64_ALIAS:
        return "long";
    case TABLE_F32:
        return "float";
    case TABLE_F64:
        return "double";
    case TABLE_DECIMAL:
        return "decimal";
    case TABLE_STRING:
        return "longstr";
    case TABLE_BINARY:
        return "binary";
    case TABLE_ARRAY:
        return "array";
    case TABLE_TIMESTAMP:
        return "timestamp";
    case TABLE_TABLE:
        return "table";
    case TABLE_VOID:
        return "void";
    }
    return "unknown";
}

// The shortest way to write it, but never as an integer.
static void print_float(double value, struct buf *to)
{
    char text[40];
    snprintf(text, sizeof(text), "%g", value);
    buf_printf(to, strpbrk(text, ".eni") ? "'%s'" : "'%s.0'", text);
}

void table_value_print(const struct table_value *v, struct buf *to)
{
    int64_t i;
    if (table_value_integer(v, &i)) {
        buf_printf(to, "'%lld'", (long long)i);
        return;
    }
    switch (v->type) {
    case TABLE_STRING:
    case TABLE_BINARY:
        buf_u8(to, '\'');
        buf_span_bytes(to, v->bytes);
        buf_u8(to, '\'');
        break;
    case TABLE_BOOL:
        buf_printf(to, "'%s'", v->b ? "true" : "false");
        break;
    case TABLE_TIMESTAMP:
        buf_printf(to, "'%llu'", (unsigned long long)v->u);
        break;
    case TABLE_F32:
        print_float((double)v->f32, to);
        break;
    case TABLE_F64:
        print_float(v->f64, to);
        break;
    case TABLE_DECIMAL:
        buf_printf(to, "'{%u,%u}'", v->decimal.scale, v->decimal.digits);
        break;
    default:
        buf_printf(to, "'%s'",
                   v->type == TABLE_VOID    ? "undefined"
                   : v->type == TABLE_TABLE ? "{...}"
                                            : "[...]");
        break;
    }
}

// ---- comparing ----------------------------------------------------------------------------------

static bool is_float(const struct table_value *v, double *out)
{
    if (v->type == TABLE_F32) {
        *out = (double)v->f32;
        return true;
    }
    if (v->type == TABLE_F64) {
        *out = v->f64;
        return true;
    }
    return false;
}

static bool is_text(const struct table_value *v)
{
    return v->type == TABLE_STRING || v->type == TABLE_BINARY;
}

static bool value_equal(const struct table_value *a, const struct table_value *b, bool is_loose,
                        uint32_t depth);

static bool entries_equal(struct table_reader a, struct table_reader b, bool is_loose, uint32_t depth)
{
    struct span key_a = {0}, key_b = {0};
    struct table_value va, vb;
    for (;;) {
        bool has_a = table_next(&a, &key_a, &va);
        bool has_b = table_next(&b, &key_b, &vb);
        if (has_a != has_b) {
            return false;
        }
        if (!has_a) {
            return true;
        }
        if (!span_equal(key_a, key_b) || !value_equal(&va, &vb, is_loose, depth + 1)) {
            return false;
        }
    }
}

static bool value_equal(const struct table_value *a, const struct table_value *b, bool is_loose,
                        uint32_t depth)
{
    int64_t ia, ib;
    double fa, fb;
    if (depth > TABLE_DEPTH_MAX) {
        return false;
    }
    if (table_value_integer(a, &ia)) {
        return table_value_integer(b, &ib) && ia == ib;
    }
    if (is_float(a, &fa)) {
        // Bitwise, so that a NaN equals itself; -0.0 equals 0.0 by value.
        return is_float(b, &fb) && (fa == fb || memcmp(&fa, &fb, sizeof(fa)) == 0);
    }
    if (is_loose && is_text(a)) {
        return is_text(b) && span_equal(a->bytes, b->bytes);
    }
    if (a->type != b->type) {
        return false;
    }
    switch (a->type) {
    case TABLE_BOOL:
        return a->b == b->b;
    case TABLE_TIMESTAMP:
        return a->u == b->u;
    case TABLE_DECIMAL:
        return a->decimal.scale == b->decimal.scale && a->decimal.digits == b->decimal.digits;
    case TABLE_STRING:
    case TABLE_BINARY:
        return span_equal(a->bytes, b->bytes);
    case TABLE_TABLE:
        return entries_equal(table_reader_of(a->bytes), table_reader_of(b->bytes), is_loose, depth);
    case TABLE_ARRAY:
        return entries_equal(array_reader_of(a->bytes), array_reader_of(b->bytes), is_loose, depth);
    default:
        return true;  // VOID.
    }
}

bool table_value_equivalent(const struct table_value *a, const struct table_value *b)
{
    return value_equal(a, b, false, 1);
}

bool table_value_matches(const struct table_value *a, const struct table_value *b)
{
    return value_equal(a, b, true, 1);
}

// ---- writing ------------------------------------------------------------------------------------

size_t table_begin(struct buf *b)
{
    size_t at = b->len;
    buf_u32be(b, 0);
    return at;
}

void table_end(struct buf *b, size_t at)
{
    assert(at + 4 <= b->len);
    assert(b->len - at - 4 <= UINT32_MAX);
    buf_patch_u32be(b, at, (uint32_t)(b->len - at - 4));
}

static void put_value(struct buf *b, const struct table_value *v)
{
    buf_u8(b, v->type == TABLE_I64_ALIAS ? TABLE_I64 : (uint8_t)v->type);
    switch (v->type) {
    case TABLE_BOOL:
        buf_u8(b, v->b);
        break;
    case TABLE_I8:
        buf_u8(b, (uint8_t)v->i);
        break;
    case TABLE_U8:
        buf_u8(b, (uint8_t)v->u);
        break;
    case TABLE_I16:
        buf_u16be(b, (uint16_t)v->i);
        break;
    case TABLE_U16:
        buf_u16be(b, (uint16_t)v->u);
        break;
    case TABLE_I32:
        buf_u32be(b, (uint32_t)v->i);
        break;
    case TABLE_U32:
        buf_u32be(b, (uint32_t)v->u);
        break;
    case TABLE_I64:
    case TABLE_I64_ALIAS:
        buf_u64be(b, (uint64_t)v->i);
        break;
    case TABLE_TIMESTAMP:
        buf_u64be(b, v->u);
        break;
    case TABLE_F32: {
        uint32_t bits;
        memcpy(&bits, &v->f32, sizeof(bits));
        buf_u32be(b, bits);
        break;
    }
    case TABLE_F64: {
        uint64_t bits;
        memcpy(&bits, &v->f64, sizeof(bits));
        buf_u64be(b, bits);
        break;
    }
    case TABLE_DECIMAL:
        buf_u8(b, v->decimal.scale);
        buf_u32be(b, v->decimal.digits);
        break;
    case TABLE_STRING:
    case TABLE_BINARY:
    case TABLE_ARRAY:
    case TABLE_TABLE:
        buf_str32be(b, v->bytes);
        break;
    case TABLE_VOID:
        break;
    }
}

void table_put(struct buf *b, struct span key, const struct table_value *value)
{
    buf_str8(b, key);
    put_value(b, value);
}

void array_put(struct buf *b, const struct table_value *value)
{
    put_value(b, value);
}

void table_put_string(struct buf *b, const char *key, struct span value)
{
    table_put(b, span_str(key), &(struct table_value){.type = TABLE_STRING, .bytes = value});
}

void table_put_text(struct buf *b, const char *key, const char *value)
{
    table_put_string(b, key, span_str(value));
}

void table_put_bool(struct buf *b, const char *key, bool value)
{
    table_put(b, span_str(key), &(struct table_value){.type = TABLE_BOOL, .b = value});
}

void table_put_i32(struct buf *b, const char *key, int32_t value)
{
    table_put(b, span_str(key), &(struct table_value){.type = TABLE_I32, .i = value});
}

void table_put_i64(struct buf *b, const char *key, int64_t value)
{
    table_put(b, span_str(key), &(struct table_value){.type = TABLE_I64, .i = value});
}

void table_put_timestamp(struct buf *b, const char *key, uint64_t seconds)
{
    table_put(b, span_str(key), &(struct table_value){.type = TABLE_TIMESTAMP, .u = seconds});
}

size_t table_begin_table(struct buf *b, const char *key)
{
    buf_str8(b, span_str(key));
    buf_u8(b, TABLE_TABLE);
    return table_begin(b);
}

size_t table_begin_array(struct buf *b, const char *key)
{
    buf_str8(b, span_str(key));
    buf_u8(b, TABLE_ARRAY);
    return table_begin(b);
}

void array_put_string(struct buf *b, struct span value)
{
    array_put(b, &(struct table_value){.type = TABLE_STRING, .bytes = value});
}

struct entry {
    struct span key;
    struct table_value value;
    uint32_t position;  // In the input: keeps the order of equal keys.
};

static int entry_compare(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = span_compare(x->key, y->key);
    return c != 0 ? c : (x->position > y->position) - (x->position < y->position);
}

static bool is_left_out(struct span key, const char *const *without, uint32_t without_count)
{
    for (uint32_t i = 0; i < without_count; i++) {
        if (span_equal(key, span_str(without[i]))) {
            return true;
        }
    }
    return false;
}

void table_put_sorted(struct buf *b, struct span table, const char *const *without, uint32_t without_count)
{
    enum { INLINE_ENTRIES = 32 };
    struct entry few[INLINE_ENTRIES];
    uint32_t count = table_count(table);
    struct entry *entries = count <= INLINE_ENTRIES ? few : mem_alloc(count * sizeof(*entries));
    uint32_t used = 0;
    struct table_reader t = table_reader_of(table);
    while (used < count && table_next(&t, &entries[used].key, &entries[used].value)) {
        entries[used].position = used;
        used++;
    }
    qsort(entries, used, sizeof(*entries), entry_compare);
    for (uint32_t i = 0; i < used; i++) {
        bool is_repeat = i > 0 && span_equal(entries[i].key, entries[i - 1].key);
        if (!is_repeat && !is_left_out(entries[i].key, without, without_count)) {
            table_put(b, entries[i].key, &entries[i].value);
        }
    }
    if (entries != few) {
        free(entries);
    }
}
