// SPDX-License-Identifier: Apache-2.0
// Life of an operation (op.h): created with copies of what was asked, answered at the worker's next turn, freed.
#include "node/broker/op.h"
#include "node/base/mem.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { FENCE_TIMEOUT_MS = 1000, SUBMIT_TIMEOUT_MS = 10000, OP_STRINGS = 8 };

struct op_full {
    struct op op;  // First.
    void *strings[OP_STRINGS];
    uint32_t strings_count;
};

struct op *op_create(struct broker *b, struct broker_vhost *v, struct span user, broker_done_fn *done, void *ctx)
{
    struct op_full *f = mem_zalloc(sizeof(*f));
    f->op.broker = b;
    f->op.vhost = v ? mem_strndup(v->name, strlen(v->name)) : NULL;
    f->op.done = done;
    f->op.ctx = ctx;
    f->op.user = op_copy(&f->op, user);
    return &f->op;
}

struct span op_copy(struct op *op, struct span s)
{
    struct op_full *f = container_of(op, struct op_full, op);
    assert(f->strings_count < OP_STRINGS);
    char *copy = mem_strndup(s.ptr, s.len);
    f->strings[f->strings_count++] = copy;
    return span_of(copy, s.len);
}

struct span op_copy_name(struct op *op, struct span s)
{
    struct span copy = op_copy(op, s);
    uint8_t *p = (uint8_t *)(uintptr_t)copy.ptr;
    size_t n = 0;
    for (size_t i = 0; i < copy.len; i++) {
        if (p[i] != '\r' && p[i] != '\n') {
            p[n++] = p[i];
        }
    }
    return span_of(p, n);
}

struct broker_vhost *op_vhost(struct op *op)
{
    return op->vhost ? broker_vhost_find(op->broker, span_str(op->vhost)) : NULL;
}

static void finish(void *arg)
{
    struct op_full *f = arg;
    f->op.done(f->op.ctx, &f->op.result);
    for (uint32_t i = 0; i < f->strings_count; i++) {
        free(f->strings[i]);
    }
    free(f->op.vhost);
    free(f);
}

static void end(struct op *op)
{
    const struct broker_config *c = &op->broker->config;
    c->post(c->ctx, c->worker, finish, container_of(op, struct op_full, op));
}

void op_fail(struct op *op, enum rc rc, uint16_t code, bool is_connection_error, const char *format, ...)
{
    op->result = (struct broker_result){.rc = rc, .code = code, .is_connection_error = is_connection_error};
    va_list args;
    va_start(args, format);
    vsnprintf(op->result.text, sizeof(op->result.text), format, args);
    va_end(args);
    end(op);
}

void op_ok(struct op *op)
{
    op->result = (struct broker_result){.rc = RC_OK};
    end(op);
}

static void on_fenced(void *ctx, const struct meta_result *r)
{
    // Without a majority the node answers from what it knows and changes nothing (decision 16).
    (void)r;
    struct op *op = ctx;
    op->again(op);
}

bool op_fence_first(struct op *op)
{
    if (op->has_fenced) {
        return false;
    }
    op->has_fenced = true;
    metastore_fence(op->broker->config.metastore, op->broker->config.worker, FENCE_TIMEOUT_MS, on_fenced, op);
    return true;
}

static void on_submitted(void *ctx, const struct meta_result *r)
{
    struct op *op = ctx;
    switch (r->rc) {
    case RC_NO_QUORUM:
    case RC_TIMEOUT:
    case RC_NOT_LEADER:
    case RC_SHUTDOWN:
        op_fail(op, r->rc, 541, true,
                "the metadata store has no majority of its nodes; nothing was changed as far as this node "
                "knows: start the missing nodes and try again");
        break;
    case RC_TOO_LARGE:
    case RC_INVALID:
        op_fail(op, r->rc, 406, false, "the metadata store refused the request: %s", rc_text(r->rc));
        break;
    default:
        op->committed(op, r);
    }
}

void op_submit(struct op *op, struct meta_command *c)
{
    metastore_submit(op->broker->config.metastore, op->broker->config.worker, c, SUBMIT_TIMEOUT_MS, on_submitted, op);
    meta_command_deinit(c);
}

void op_delete(struct broker *b, struct span name, struct meta_path (*path_of)(struct span name),
               void (*committed)(struct op *op, const struct meta_result *r), broker_done_fn *done, void *ctx)
{
    struct op *op = op_create(b, NULL, span_str(""), done, ctx);
    op->name = op_copy(op, name);
    op->committed = committed;
    struct meta_path path = path_of(op->name);
    struct meta_command c;
    meta_command_init(&c);
    meta_delete(&c, &path, META_IF_PRESENT, 0);
    op_submit(op, &c);
}

bool op_allowed(struct op *op, enum broker_access access, const char *kind, struct span name)
{
    static const char *const words[] = {"configure", "write", "read"};
    struct broker_vhost *v = op_vhost(op);
    if (op->user.len == 0) {
        return true;  // The system itself.
    }
    struct span checked = name.len == 0 ? span_str("amq.default") : name;
    if (v && broker_allowed(op->broker, op->user, v, access, checked)) {
        return true;
    }
    op_refuse(op, RC_DENIED, 403, "%s access to %s '%.*s' in vhost '%s' refused for user '%.*s'", words[access], kind,
              SPAN_ARGS(checked), op->vhost, SPAN_ARGS(op->user));
    return false;
}

bool op_allowed_to_look(struct op *op, const char *kind, struct span name)
{
    struct broker_vhost *v = op_vhost(op);
    bool is_allowed = v && op->user.len > 0 &&
                      (broker_allowed(op->broker, op->user, v, ACCESS_WRITE, name) ||
                       broker_allowed(op->broker, op->user, v, ACCESS_READ, name));
    return is_allowed || op_allowed(op, ACCESS_CONFIGURE, kind, name);
}
