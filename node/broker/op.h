// SPDX-License-Identifier: Apache-2.0
// One asynchronous operation of the broker: what was asked, copied, and how to answer. Files of node/broker only.
#pragma once
#include "node/broker/internal.h"

struct op {
    struct broker *broker;
    char *vhost;          // Name: the struct may go while the operation waits.
    broker_done_fn *done;
    void *ctx;
    struct broker_result result;
    bool has_fenced;      // "Not found" has been proven (decision 16).
    void (*again)(struct op *op);             // After the fence.
    void (*committed)(struct op *op, const struct meta_result *r);
    // Strings asked with, copied behind the struct's life: freed by op_end.
    struct span user, name, type, source, destination, key, arguments;
    bool is_passive, is_durable, is_exclusive, is_auto_delete, is_internal, if_unused, if_empty, to_queue, is_unbind;
};

struct op *op_create(struct broker *b, struct broker_vhost *v, struct span user, broker_done_fn *done, void *ctx);
struct span op_copy(struct op *op, struct span s);       // Freed with the op.
struct span op_copy_name(struct op *op, struct span s);  // Without CR and LF (data-plane §1.10).
struct broker_vhost *op_vhost(struct op *op);            // NULL: gone meanwhile.

// Ends with an error / with success. `done` runs at the worker's next turn; the op is freed.
void op_fail(struct op *op, enum rc rc, uint16_t code, bool is_connection_error, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void op_ok(struct op *op);
// Channel error.
#define op_refuse(op, rc, code, ...) op_fail(op, rc, code, false, __VA_ARGS__)
// Runs op->again once after a metastore fence; false if that has been done: absence is proven.
bool op_fence_first(struct op *op);
// Takes the command; op->committed is called with the outcome unless there was no majority (answered here,
// decision 18).
void op_submit(struct op *op, struct meta_command *c);
// Deletes the record at path_of(name), which must be there: RC_NOT_FOUND to `committed` otherwise.
void op_delete(struct broker *b, struct span name, struct meta_path (*path_of)(struct span name),
               void (*committed)(struct op *op, const struct meta_result *r), broker_done_fn *done, void *ctx);
// Checks one permission, answering 403 and returning false if it is missing. `kind` is "queue" or "exchange".
MUST_USE bool op_allowed(struct op *op, enum broker_access access, const char *kind, struct span name);

#define SPAN_ARGS(s) (int)((s).len < 255 ? (s).len : 255), (const char *)((s).ptr ? (s).ptr : (const uint8_t *)"")

// exchange_ops.c
// True if the user has any permission on it: enough for a passive declaration.
bool op_allowed_to_look(struct op *op, const char *kind, struct span name);
// True if `key` differs in value or presence; `text` gets "received X but current is Y".
bool argument_differs(struct span received, struct span current, const char *key, struct buf *text);
// op_ok, after auto-delete exchanges that have lost their last binding as a source are gone, one after the other: each
// may have been the last destination of another.
void op_ok_without_idle(struct op *op);
