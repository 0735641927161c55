// SPDX-License-Identifier: Apache-2.0
// Users, passwords and permissions (operator-plane §6.1, §6.2), and what a new cluster starts with.
//
// Passwords are stored as RabbitMQ stores them: 4 bytes of salt and SHA-256 over salt and password. Permission patterns
// are PCRE2 expressions matched anywhere in the name; an empty one matches nothing. A pattern is compiled at its first
// use; its match is bounded (match limit), and a match that hits the bound counts as no.
#include "node/broker/op.h"
#include "node/base/env.h"
#include "node/base/mem.h"
#include "proto/broker.pb-c.h"
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

enum { SALT_BYTES = 4, HASH_BYTES = 32, PATTERN_MATCH_LIMIT = 100000 };

static void hash_password(const uint8_t salt[SALT_BYTES], struct span password, uint8_t out[SALT_BYTES + HASH_BYTES])
{
    memcpy(out, salt, SALT_BYTES);
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned int n = 0;
    bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) && EVP_DigestUpdate(md, salt, SALT_BYTES) &&
              EVP_DigestUpdate(md, password.ptr, password.len) && EVP_DigestFinal_ex(md, out + SALT_BYTES, &n);
    assert(ok && n == HASH_BYTES);
    EVP_MD_CTX_free(md);
}

bool broker_user_exists(struct broker *b, struct span user)
{
    return map_get_bytes(&b->users, user) != NULL;
}

bool broker_authenticate(struct broker *b, struct span user, struct span password, struct broker_user *out)
{
    static const struct user nobody;
    const struct user *u = map_get_bytes(&b->users, user);
    uint8_t salt[SALT_BYTES] = {0}, computed[SALT_BYTES + HASH_BYTES];
    bool is_usable = u && u->hash_len == SALT_BYTES + HASH_BYTES && password.len > 0;
    if (is_usable) {
        memcpy(salt, u->hash, SALT_BYTES);
    } else {
        u = &nobody;
    }
    hash_password(salt, password, computed);  // Also for unknown users: the same time.
    if (!is_usable || CRYPTO_memcmp(computed, u->hash, sizeof(computed)) != 0 || user.len >= sizeof(out->name)) {
        return false;
    }
    *out = (struct broker_user){.is_impersonator = u->is_impersonator};
    memcpy(out->name, user.ptr, user.len);
    return true;
}

bool broker_may_enter(struct broker *b, struct span user, struct broker_vhost *v)
{
    (void)b;
    return map_get_bytes(&v->permissions, user) != NULL;
}

static pcre2_code *compile(const char *pattern)
{
    int error;
    PCRE2_SIZE at;
    return pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &error, &at, NULL);
}

bool broker_allowed(struct broker *b, struct span user, struct broker_vhost *v, enum broker_access access,
                    struct span name)
{
    struct permission *p = map_get_bytes(&v->permissions, user);
    if (!p || p->patterns[access][0] == '\0') {
        return false;
    }
    if (strcmp(p->patterns[access], ".*") == 0) {
        return true;
    }
    if (!p->code[access]) {
        p->code[access] = compile(p->patterns[access]);
        if (!p->code[access]) {
            return false;
        }
    }
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(limits, PATTERN_MATCH_LIMIT);
    int rc = pcre2_match(p->code[access], name.ptr ? name.ptr : (const uint8_t *)"", name.len, 0, 0, b->match, limits);
    pcre2_match_context_free(limits);
    return rc >= 0;
}

// ---- changes -----------------------------------------------------------------------------------------------------

static void put_user(struct meta_command *c, struct span name, struct span password, bool is_administrator,
                     bool is_impersonator, enum meta_if condition)
{
    uint8_t salt[SALT_BYTES], hash[SALT_BYTES + HASH_BYTES];
    env_system_random(salt, sizeof(salt));
    hash_password(salt, password, hash);
    Warren__UserRecord r = WARREN__USER_RECORD__INIT;
    r.password_hash.data = hash;
    r.password_hash.len = sizeof(hash);
    char *tags[2];
    r.tags = tags;
    if (is_administrator) {
        tags[r.n_tags++] = "administrator";
    }
    if (is_impersonator) {
        tags[r.n_tags++] = "impersonator";
    }
    struct buf payload = {0};
    warren__user_record__pack(&r, buf_extend(&payload, warren__user_record__get_packed_size(&r)));
    struct meta_path path = path_user(name);
    meta_put(c, &path, buf_span(&payload), condition, 0);
    buf_deinit(&payload);
}

static void put_permission(struct meta_command *c, struct span vhost, struct span user, char *configure,
                           char *write, char *read)
{
    Warren__PermissionRecord r = WARREN__PERMISSION_RECORD__INIT;
    r.configure = configure;
    r.write = write;
    r.read = read;
    struct buf payload = {0};
    warren__permission_record__pack(&r, buf_extend(&payload, warren__permission_record__get_packed_size(&r)));
    struct meta_path path = path_permission(vhost, user), watched = path_user(user);
    meta_put(c, &path, buf_span(&payload), META_IF_ANY, 0);
    meta_keep_while(c, &watched, false);
    buf_deinit(&payload);
}

static void put_exchange(struct meta_command *c, struct span vhost, const char *name, const char *type,
                         bool is_internal)
{
    Warren__ExchangeRecord r = WARREN__EXCHANGE_RECORD__INIT;
    r.type = (char *)(uintptr_t)type;
    r.durable = true;
    r.internal = is_internal;
    struct buf payload = {0};
    warren__exchange_record__pack(&r, buf_extend(&payload, warren__exchange_record__get_packed_size(&r)));
    struct meta_path path = path_exchange(vhost, span_str(name));
    meta_put(c, &path, buf_span(&payload), META_IF_ANY, 0);
    buf_deinit(&payload);
}

void broker_found(struct broker *b, const struct broker_founding *f, meta_done_fn *done, void *ctx)
{
    struct meta_command c;
    meta_command_init(&c);
    struct span vhost = span_str("/");
    struct meta_path path = path_vhost(vhost);
    Warren__VhostRecord r = WARREN__VHOST_RECORD__INIT;
    r.description = "Default virtual host";
    struct buf payload = {0};
    warren__vhost_record__pack(&r, buf_extend(&payload, warren__vhost_record__get_packed_size(&r)));
    meta_put(&c, &path, buf_span(&payload), META_IF_ABSENT, 0);
    buf_deinit(&payload);
    node_record_put(&c, f->node_name, f->store_id, f->address, f->node_id, f->replica_id, NULL);
    put_user(&c, f->user, f->password, true, false, META_IF_ABSENT);
    put_permission(&c, vhost, f->user, ".*", ".*", ".*");
    put_exchange(&c, vhost, "amq.direct", "direct", false);
    put_exchange(&c, vhost, "amq.fanout", "fanout", false);
    put_exchange(&c, vhost, "amq.topic", "topic", false);
    put_exchange(&c, vhost, "amq.headers", "headers", false);
    put_exchange(&c, vhost, "amq.match", "headers", false);
    put_exchange(&c, vhost, "amq.rabbitmq.trace", "topic", true);
    metastore_submit(b->config.metastore, b->config.worker, &c, 10000, done, ctx);
    meta_command_deinit(&c);
}

static void user_committed(struct op *op, const struct meta_result *r)
{
    if (r->rc == RC_OK) {
        op_ok(op);
    } else if (r->rc == RC_EXISTS) {
        op_refuse(op, RC_EXISTS, 406, "User \"%.*s\" already exists", SPAN_ARGS(op->name));
    } else if (r->rc == RC_NOT_FOUND) {
        op_refuse(op, RC_NOT_FOUND, 404, "User \"%.*s\" does not exist", SPAN_ARGS(op->name));
    } else {
        op_fail(op, r->rc, 541, true, "the user was not changed: %s", rc_text(r->rc));
    }
}

void broker_user_put(struct broker *b, struct span name, struct span password, bool must_exist,
                     bool must_be_new, broker_done_fn *done, void *ctx)
{
    struct op *op = op_create(b, NULL, span_str(""), done, ctx);
    op->name = op_copy(op, name);
    op->committed = user_committed;
    if (name.len == 0 || name.len > META_NAME_MAX) {
        op_refuse(op, RC_INVALID, 406, "a user name has 1 to 255 bytes");
        return;
    }
    struct meta_command c;
    meta_command_init(&c);
    const struct user *old = must_be_new ? NULL : map_get_bytes(&b->users, op->name);  // A new password keeps the tags.
    put_user(&c, op->name, password, old && old->is_administrator, old && old->is_impersonator,
             must_be_new  ? META_IF_ABSENT
             : must_exist ? META_IF_PRESENT
                          : META_IF_ANY);
    op_submit(op, &c);
}

void broker_user_delete(struct broker *b, struct span name, broker_done_fn *done, void *ctx)
{
    op_delete(b, name, path_user, user_committed, done, ctx);
}

static void permission_committed(struct op *op, const struct meta_result *r)
{
    if (r->rc == RC_NOT_FOUND && r->failed_op == 1) {
        op_refuse(op, RC_NOT_FOUND, 404, "Virtual host '%.*s' does not exist", SPAN_ARGS(op->source));
    } else {
        user_committed(op, r);
    }
}

void broker_permissions_put(struct broker *b, struct span user, struct span vhost, struct span configure,
                            struct span write, struct span read, broker_done_fn *done, void *ctx)
{
    struct op *op = op_create(b, NULL, span_str(""), done, ctx);
    op->name = op_copy(op, user);
    op->source = op_copy(op, vhost);
    struct span patterns[3] = {op_copy(op, configure), op_copy(op, write), op_copy(op, read)};
    op->committed = permission_committed;
    for (int i = 0; i < 3; i++) {
        pcre2_code *code = compile((const char *)patterns[i].ptr);
        if (!code) {
            op_refuse(op, RC_INVALID, 406, "the pattern '%.*s' is not a valid regular expression",
                      SPAN_ARGS(patterns[i]));
            return;
        }
        pcre2_code_free(code);
    }
    struct meta_path user_path = path_user(op->name), vhost_path = path_vhost(op->source);
    struct meta_command c;
    meta_command_init(&c);
    meta_require(&c, &user_path, META_IF_PRESENT, 0);
    meta_require(&c, &vhost_path, META_IF_PRESENT, 0);
    put_permission(&c, op->source, op->name, (char *)(uintptr_t)patterns[0].ptr, (char *)(uintptr_t)patterns[1].ptr,
                   (char *)(uintptr_t)patterns[2].ptr);
    op_submit(op, &c);
}
