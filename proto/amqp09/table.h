// SPDX-License-Identifier: Apache-2.0
// AMQP 0-9-1 field tables and arrays in RabbitMQ's dialect (data-plane §1.8).
//
// A "table" span is everywhere the content behind the 4-byte length; an "array" span likewise. Nothing is
// copied: values point into the bytes they were read from. Bytes from outside are checked once with
// table_check (or array_check); readers on checked bytes never fail, and on unchecked ones stop at the first
// fault.
//
// Thread: any. No allocation except into the caller's struct buf.
#pragma once
#include "node/base/buf.h"
#include "node/base/reader.h"

enum {
    // Tables within tables (and arrays) accepted from outside. Deeper ones are malformed: no client makes
    // them, and the checks recurse.
    TABLE_DEPTH_MAX = 64,
};

// Letters on the wire.
enum table_type {
    TABLE_BOOL = 't',
    TABLE_I8 = 'b',
    TABLE_U8 = 'B',
    TABLE_I16 = 's',  // Never a short string in this dialect.
    TABLE_U16 = 'u',
    TABLE_I32 = 'I',
    TABLE_U32 = 'i',
    TABLE_I64 = 'l',
    TABLE_I64_ALIAS = 'L',  // Read only; read as TABLE_I64.
    TABLE_F32 = 'f',
    TABLE_F64 = 'd',
    TABLE_DECIMAL = 'D',
    TABLE_STRING = 'S',
    TABLE_BINARY = 'x',
    TABLE_ARRAY = 'A',
    TABLE_TIMESTAMP = 'T',
    TABLE_TABLE = 'F',
    TABLE_VOID = 'V',
};

struct table_value {
    enum table_type type;
    union {
        bool b;             // BOOL
        int64_t i;          // I8, I16, I32, I64
        uint64_t u;         // U8, U16, U32, TIMESTAMP (seconds)
        float f32;          // F32, bits as on the wire
        double f64;         // F64, bits as on the wire
        struct span bytes;  // STRING, BINARY; ARRAY and TABLE: their content
        struct {
            uint8_t scale;
            uint32_t digits;
        } decimal;  // DECIMAL
    };
};

// ---- reading ------------------------------------------------------------------------------------

struct table_reader {
    struct reader r;  // r.is_bad after a malformed entry.
    bool is_array;    // Entries have no key.
};

struct table_reader table_reader_of(struct span table);
struct table_reader array_reader_of(struct span array);
// Next entry in wire order; false at the end or at a fault. `key` may be NULL for arrays.
bool table_next(struct table_reader *t, struct span *key, struct table_value *value);

// The first entry with that key; false if there is none.
bool table_find(struct span table, const char *key, struct table_value *value);
bool table_find_span(struct span table, struct span key, struct table_value *value);
// Entry of type STRING / BOOL; false if absent or of another type.
bool table_find_string(struct span table, const char *key, struct span *value);
bool table_find_bool(struct span table, const char *key, bool *value);
uint32_t table_count(struct span table);

// Complete check, recursively. RC_MALFORMED.
MUST_USE enum rc table_check(struct span table);
MUST_USE enum rc array_check(struct span array);

// Any integer letter (b B s u I i l L): its value. u64 does not occur, so int64 holds all. False for other
// types.
bool table_value_integer(const struct table_value *v, int64_t *out);
// RabbitMQ's name of the type ("longstr", "signedint", ...), as printed in its errors.
const char *table_type_name(enum table_type type);
// The value as RabbitMQ prints it in errors: 'text', numbers, true/false, otherwise a short stand-in.
// Appends.
void table_value_print(const struct table_value *v, struct buf *to);

// ---- comparing ----------------------------------------------------------------------------------

// Equality of declared arguments (data-plane §1.10): integers of any width by value, floats of both widths by
// value, otherwise same type and same value; tables and arrays entry by entry in order.
bool table_value_equivalent(const struct table_value *a, const struct table_value *b);
// Equality in headers exchanges (data-plane §2.2): as above, and a string equals a binary with the same
// bytes. (That VOID in a binding tests presence only is the exchange's business.)
bool table_value_matches(const struct table_value *a, const struct table_value *b);

// ---- writing ------------------------------------------------------------------------------------

// Nested or length-prefixed: table_begin writes the 4-byte length to be patched by table_end. Content alone
// (as in the spans above) needs neither.
size_t table_begin(struct buf *b);
void table_end(struct buf *b, size_t at);
// Keys are at most 255 bytes (asserted).
void table_put(struct buf *b, struct span key, const struct table_value *value);
void table_put_string(struct buf *b, const char *key, struct span value);
void table_put_text(struct buf *b, const char *key, const char *value);
void table_put_bool(struct buf *b, const char *key, bool value);
void table_put_i32(struct buf *b, const char *key, int32_t value);
void table_put_i64(struct buf *b, const char *key, int64_t value);
void table_put_timestamp(struct buf *b, const char *key, uint64_t seconds);
// Start of a nested table or array; ended by table_end.
size_t table_begin_table(struct buf *b, const char *key);
size_t table_begin_array(struct buf *b, const char *key);
// A value without key: an entry of an array.
void array_put(struct buf *b, const struct table_value *value);
void array_put_string(struct buf *b, struct span value);

// Appends the entries of `table` sorted by key, each key once (the first of equal ones wins), leaving out
// `without` (may be NULL) - what RabbitMQ does whenever it rewrites a header table. The input must have been
// checked.
void table_put_sorted(struct buf *b, struct span table, const char *const *without, uint32_t without_count);
