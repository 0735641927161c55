// SPDX-License-Identifier: Apache-2.0
// The metadata tree in the simulator: a store on every node, clients that change it, and a model of it.
//
// The model is a small tree of its own, fed with each command when it is committed; it knows each command's
// result and a hash of all nodes after each index. Checked: every answer (code and index) is the model's, so
// conditions hold and of two creators of one path one succeeds; a node's projection equals the model whenever
// a batch has been told, has passed an answered command's index when the answer comes, and everything
// acknowledged anywhere when a fence passes that was asked for later; the replicas' digests agree (sim_observe.c).
#include "metastore/meta_fsm.h"
#include "metastore/metastore_internal.h"
#include "tests/sim/sim_apps.h"
#include <assert.h>

enum { PATH_MAX_BYTES = 16, NODES_MAX = 512, PAYLOAD_MAX = 64, WATCHES = 2 };

struct model_node {
    char path[PATH_MAX_BYTES];      // "u/3", "p/1/2".
    char watched[WATCHES][PATH_MAX_BYTES];
    uint64_t version;               // 0: none here.
    uint32_t len;
    uint8_t payload[PAYLOAD_MAX];
};

struct tree_copy {
    struct model_node nodes[NODES_MAX];
    uint32_t count;
    uint64_t hash;                  // Sum over all nodes.
};

struct outcome {  // Of the command with this reference.
    uint64_t index;
    enum rc rc;
    uint32_t failed_op;
};

struct meta_state {
    struct tree_copy model;
    struct tree_copy undo;
    uint64_t next_number;
    struct buf hashes;              // u64, by index from 1: the model's hash.
    struct map outcomes;            // Session hash ^ counter -> struct outcome.
    uint64_t acked;                 // Highest index anybody was told of.
    uint64_t interval;
    uint64_t counters[SIM_NODES_MAX];
    uint64_t successes, failures, unknown, fences;
    // The end.
    uint64_t final_asked[SIM_NODES_MAX + 1];  // In which life of the node.
    bool is_final_done[SIM_NODES_MAX + 1], is_final_fenced[SIM_NODES_MAX + 1];
};

struct mirror {
    struct tree_copy tree;
    uint64_t index;
    bool is_loaded;
};

struct ask {
    struct sim_node *node;
    uint64_t incarnation;
    uint64_t key;       // Of the outcome.
    uint64_t acked;     // Fence: what was known when it was asked for.
    bool is_final, is_fence;
};

static struct meta_state *meta_state(const struct sim *s)
{
    return s->meta_state;
}

// ---- a small tree -----------------------------------------------------------------------------------------

static void copy_all(struct tree_copy *to, const struct tree_copy *from)
{
    memcpy(to->nodes, from->nodes, from->count * sizeof(from->nodes[0]));
    to->count = from->count;
    to->hash = from->hash;
}

static uint64_t node_hash(const struct model_node *n)
{
    return hash_u64(hash_bytes(span_of((const uint8_t *)n->path, strlen(n->path))) ^
                    hash_u64(n->version ^ hash_bytes(span_of(n->payload, n->len))));
}

static struct model_node *copy_find(struct tree_copy *t, const char *path)
{
    for (uint32_t i = 0; i < t->count; i++) {
        if (strcmp(t->nodes[i].path, path) == 0) {
            return &t->nodes[i];
        }
    }
    return NULL;
}

static struct model_node *copy_put(struct tree_copy *t, const char *path, struct span payload, uint64_t version)
{
    struct model_node *n = copy_find(t, path);
    if (n) {
        t->hash -= node_hash(n);
    } else {
        assert(t->count < NODES_MAX);
        n = &t->nodes[t->count++];
        *n = (struct model_node){0};
        memcpy(n->path, path, strlen(path) + 1);
    }
    assert(payload.len <= PAYLOAD_MAX);
    n->version = version;
    n->len = (uint32_t)payload.len;
    if (payload.len > 0) {
        memcpy(n->payload, payload.ptr, payload.len);
    }
    t->hash += node_hash(n);
    return n;
}

static void copy_remove(struct tree_copy *t, struct model_node *n)
{
    t->hash -= node_hash(n);
    *n = t->nodes[--t->count];
}

static void path_text(const struct meta_path *p, char out[PATH_MAX_BYTES])
{
    size_t len = 0;
    for (uint32_t i = 0; i < p->depth; i++) {
        assert(len + p->names[i].len + 2 <= PATH_MAX_BYTES);
        if (i > 0) {
            out[len++] = '/';
        }
        memcpy(out + len, p->names[i].ptr, p->names[i].len);
        len += p->names[i].len;
    }
    out[len] = 0;
}

static bool is_below(const char *path, const char *above)
{
    const size_t n = strlen(above);
    return strncmp(path, above, n) == 0 && path[n] == '/';
}

// ---- the model --------------------------------------------------------------------------------------------

static bool has_children(const struct tree_copy *t, const char *path)
{
    for (uint32_t i = 0; i < t->count; i++) {
        if (is_below(t->nodes[i].path, path)) {
            return true;
        }
    }
    return false;
}

static enum rc model_check(struct tree_copy *t, const char *path, enum meta_if condition, uint64_t version)
{
    const struct model_node *n = copy_find(t, path);
    switch (condition) {
    case META_IF_ABSENT:
        return n ? RC_EXISTS : RC_OK;
    case META_IF_PRESENT:
        return n ? RC_OK : RC_NOT_FOUND;
    case META_IF_VERSION:
        return !n ? RC_NOT_FOUND : n->version == version ? RC_OK : RC_CONFLICT;
    case META_IF_NO_CHILDREN:
        return has_children(t, path) ? RC_CONFLICT : RC_OK;
    case META_IF_ANY:
        break;
    }
    return RC_OK;
}

static void model_delete(struct tree_copy *t, const char *path)
{
    // What is below it, then whatever watched something that is gone, until nothing more goes.
    for (uint32_t i = 0; i < t->count;) {
        if (strcmp(t->nodes[i].path, path) == 0 || is_below(t->nodes[i].path, path)) {
            copy_remove(t, &t->nodes[i]);
        } else {
            i++;
        }
    }
    for (uint32_t i = 0; i < t->count; i++) {
        const struct model_node *n = &t->nodes[i];
        for (uint32_t k = 0; k < WATCHES; k++) {
            if (n->watched[k][0] != 0 && !copy_find(t, n->watched[k])) {
                char gone[PATH_MAX_BYTES];
                memcpy(gone, n->path, sizeof(gone));
                model_delete(t, gone);
                i = UINT32_MAX;
                break;
            }
        }
    }
}

static enum rc model_put(struct meta_state *x, const char *path, const struct command_op *op)
{
    struct tree_copy *t = &x->model;
    uint8_t payload[PAYLOAD_MAX];
    uint32_t watches = 0;
    memcpy(payload, op->payload.ptr, op->payload.len);
    struct reader r = reader_of(op->modifiers);
    struct command_modifier m;
    while (command_next_modifier(&r, &m) == RC_OK) {
        if (m.kind == COMMAND_IDS) {
            memcpy(payload + m.offset, &x->next_number, 8);
            x->next_number += m.count;
        }
    }
    const struct model_node *old = copy_find(t, path);
    struct model_node *n = copy_put(t, path, span_of(payload, op->payload.len), old ? old->version + 1 : 1);
    r = reader_of(op->modifiers);
    while (command_next_modifier(&r, &m) == RC_OK) {
        if (m.kind == COMMAND_KEEP) {
            if (watches == 0) {
                memset(n->watched, 0, sizeof(n->watched));
            }
            char watched[PATH_MAX_BYTES];
            path_text(&m.path, watched);
            if (!copy_find(t, watched)) {
                return RC_NOT_FOUND;
            }
            assert(watches < WATCHES);
            memcpy(n->watched[watches++], watched, PATH_MAX_BYTES);
        }
    }
    return RC_OK;
}

static enum rc model_op(struct meta_state *x, const struct command_op *op)
{
    char path[PATH_MAX_BYTES];
    path_text(&op->path, path);
    TRY(model_check(&x->model, path, op->condition, op->version));
    if (op->kind == COMMAND_PUT) {
        return model_put(x, path, op);
    }
    if (op->kind == COMMAND_DELETE) {
        model_delete(&x->model, path);
    }
    return RC_OK;
}

static uint64_t ref_key(uint64_t session, uint64_t counter)
{
    return hash_u64(session) ^ counter;
}

static void model_command(struct meta_state *x, const struct entry *e)
{
    struct command c;
    const enum rc decoded = command_decode(e->payload, &c);
    assert(decoded == RC_OK);
    const uint64_t key = ref_key(c.ref.session, c.ref.counter);
    if (map_get(&x->outcomes, key)) {
        return;  // A repeat.
    }
    copy_all(&x->undo, &x->model);
    const uint64_t number = x->next_number;
    struct outcome *out = mem_zalloc(sizeof(*out));
    out->index = e->index;
    struct reader ops = reader_of(c.ops);
    struct command_op op;
    for (uint32_t i = 0; out->rc == RC_OK && command_next(&ops, &op) == RC_OK; i++) {
        out->rc = model_op(x, &op);
        out->failed_op = out->rc == RC_OK ? 0 : i;
    }
    if (out->rc != RC_OK) {
        copy_all(&x->model, &x->undo);
        x->next_number = number;
    }
    map_put(&x->outcomes, key, out);
}

static void committed(struct sim *s, uint32_t slot, const struct entry *e)
{
    struct meta_state *x = meta_state(s);
    (void)slot;
    if (e->kind == RECORD_ENTRY) {
        model_command(x, e);
    }
    assert(x->hashes.len == (e->index - 1) * 8);
    buf_u64(&x->hashes, x->model.hash);
}

// ---- a node's projection ----------------------------------------------------------------------------------

static void on_change(void *ctx, const struct meta_change *c)
{
    struct sim_node *n = ctx;
    struct mirror *m = sim_parts(n)->mirror;
    char path[PATH_MAX_BYTES];
    path_text(c->path, path);
    struct model_node *old = copy_find(&m->tree, path);
    if (c->is_deleted) {
        if (!old) {
            sim_violation(n->sim, "node %u: %s is said to be deleted and was not there", n->id, path);
            return;
        }
        copy_remove(&m->tree, old);
    } else {
        if (c->is_created == (old != NULL)) {
            sim_violation(n->sim, "node %u: %s is said to be %s", n->id, path,
                          old ? "created again" : "changed and was not there");
        }
        copy_put(&m->tree, path, c->payload, c->version);
    }
}

static void on_reset(void *ctx)
{
    struct mirror *m = sim_parts(ctx)->mirror;
    m->tree.count = 0;
    m->tree.hash = 0;
}

static void compare(struct sim_node *n, uint64_t index)
{
    struct mirror *m = sim_parts(n)->mirror;
    struct meta_state *x = meta_state(n->sim);
    uint64_t hash = 0;
    if (index * 8 > x->hashes.len) {
        sim_violation(n->sim, "node %u: its projection is at %llu, nothing there is committed", n->id,
                      (unsigned long long)index);
        return;
    }
    if (index > 0) {
        memcpy(&hash, x->hashes.ptr + (index - 1) * 8, 8);
    }
    if (hash != m->tree.hash) {
        sim_violation(n->sim, "node %u: its projection at %llu is not what was committed (%u nodes)", n->id,
                      (unsigned long long)index, m->tree.count);
    }
    if (index < m->index) {
        sim_violation(n->sim, "node %u: its projection goes back from %llu to %llu", n->id,
                      (unsigned long long)m->index, (unsigned long long)index);
    }
    m->index = index;
}

static void on_loaded(void *ctx, uint64_t index)
{
    struct mirror *m = sim_parts(ctx)->mirror;
    m->is_loaded = true;
    compare(ctx, index);
}

static void on_batch_end(void *ctx, uint64_t index)
{
    compare(ctx, index);
}

static uint64_t digest(const struct sim_observer *o, uint64_t *index)
{
    const struct meta_fsm *f = o->ctx;
    *index = f->tree.meta.applied_index;
    return tree_digest(&f->tree);
}

void sim_meta_init_node(struct sim *s, struct sim_node *n)
{
    struct sim_parts *p = sim_parts(n);
    const struct metastore_config config = {
        .map_bytes = 1 << 30, .node_id = n->id, .workers = 1, .clock = &s->clock};
    const enum rc rc = metastore_open(&config, &p->meta);
    assert(rc == RC_OK);
    p->mirror = mem_zalloc(sizeof(struct mirror));
    const struct meta_subscriber subscriber = {
        .change = on_change, .reset = on_reset, .loaded = on_loaded, .batch_end = on_batch_end, .ctx = n};
    metastore_subscribe(p->meta, 0, &subscriber);
}

void sim_meta_add(struct sim_node *n, uint32_t slot, const struct store_group *recovered)
{
    struct sim *s = n->sim;
    const struct sim_group *g = &s->groups[slot];
    const bool is_first =
        recovered == NULL && g->initial.members[0].replica_id == n->replicas[slot] && n->incarnation == 1;
    sim_observe_begin(n, &sim_parts(n)->observers, digest, committed);
    const enum rc rc =
        metastore_start(sim_parts(n)->meta, n->host, n->replicas[slot], &g->initial, recovered, is_first);
    sim_observe_end();
    if (rc != RC_OK) {
        sim_violation(s, "node %u: the metadata store does not start: %s", n->id, rc_text(rc));
    }
    n->groups[slot] = metastore_group(sim_parts(n)->meta);
}

void sim_meta_node_gone(struct sim_node *n)
{
    struct sim_parts *p = sim_parts(n);
    metastore_close(p->meta);
    free(p->mirror);
    p->meta = NULL;
    p->mirror = NULL;
}

// ---- clients ----------------------------------------------------------------------------------------------

static struct meta_path path_of(char buffer[PATH_MAX_BYTES], const char *text)
{
    struct meta_path p = {0};
    memcpy(buffer, text, strlen(text) + 1);
    for (char *at = buffer; *at;) {
        char *end = strchr(at, '/');
        const size_t len = end ? (size_t)(end - at) : strlen(at);
        p.names[p.depth++] = span_of((const uint8_t *)at, len);
        at += len + (end != NULL);
    }
    return p;
}

static uint64_t some_version(struct sim *s, struct sim_node *n, const char *path)
{
    struct mirror *m = sim_parts(n)->mirror;
    const struct model_node *k = copy_find(&m->tree, path);
    return sim_chance(s, 5) || !k ? 1 + rng_below(&s->rng, 5) : k->version;
}

static void add_op(struct sim *s, struct sim_node *n, struct meta_command *c)
{
    char text[PATH_MAX_BYTES], buffer[PATH_MAX_BYTES], other[PATH_MAX_BYTES];
    uint8_t payload[PAYLOAD_MAX];
    const uint64_t unique = rng_next(&s->rng);
    const uint32_t a = (uint32_t)rng_below(&s->rng, 8), b = (uint32_t)rng_below(&s->rng, 4);
    static const char kinds[] = "uvwip";
    const char kind = kinds[rng_below(&s->rng, 5)];
    for (uint32_t i = 0; i < sizeof(payload); i++) {
        payload[i] = (uint8_t)(unique >> i % 8 * 8);
    }
    const struct span value = span_of(payload, 16 + rng_below(&s->rng, PAYLOAD_MAX - 16));
    if (kind == 'p' && sim_chance(s, 2)) {
        snprintf(text, sizeof(text), "p/%u/%u", a, b);
    } else {
        snprintf(text, sizeof(text), "%c/%u", kind, a);
    }
    const struct meta_path path = path_of(buffer, text);
    const enum meta_if condition = kind == 'u' ? META_IF_ABSENT : (enum meta_if)rng_below(&s->rng, 5);
    const uint64_t version = some_version(s, n, text);
    const uint64_t what = rng_below(&s->rng, 10);
    if (what < 3) {
        meta_delete(c, &path, (enum meta_if)rng_below(&s->rng, 5), version);
    } else if (what == 3) {
        meta_require(c, &path, condition, version);
    } else {
        meta_put(c, &path, value, condition, version);
        if (kind == 'w') {
            snprintf(text, sizeof(text), "u/%u", b);
            const struct meta_path watched = path_of(other, text);
            meta_keep_while(c, &watched, false);
        } else if (kind == 'i') {
            meta_allocate_ids(c, 8, 1 + b);
        }
    }
}

static void on_done(void *ctx, const struct meta_result *r)
{
    struct ask *a = ctx;
    struct sim *s = a->node->sim;
    struct meta_state *x = meta_state(s);
    const struct outcome *known = map_get(&x->outcomes, a->key);
    if (!a->node->is_up || a->node->incarnation != a->incarnation) {
        free(a);
        return;
    }
    const struct mirror *m = sim_parts(a->node)->mirror;
    if (a->is_final) {
        sim_log(s, "node %u: the last command is answered %s at %llu", a->node->id, rc_text(r->rc),
                (unsigned long long)r->index);
    }
    if (r->index == 0) {
        // Nothing is known of it: timed out, or there is no majority. It was valid, so nothing else may be said.
        if (r->rc != RC_TIMEOUT && r->rc != RC_NO_QUORUM) {
            sim_violation(s, "node %u: a command is answered %s", a->node->id, rc_text(r->rc));
        }
        x->unknown++;
    } else if (!known) {
        sim_violation(s, "node %u: a command is answered %s at %llu and was never committed", a->node->id,
                      rc_text(r->rc), (unsigned long long)r->index);
    } else if (known->index != r->index || known->rc != r->rc || (r->rc != RC_OK && known->failed_op != r->failed_op)) {
        sim_violation(s, "node %u: a command is answered %s (%u) at %llu, right is %s (%u) at %llu",
                      a->node->id, rc_text(r->rc), r->failed_op, (unsigned long long)r->index,
                      rc_text(known->rc), known->failed_op, (unsigned long long)known->index);
    } else if (m->is_loaded && m->index < r->index) {
        sim_violation(s, "node %u: a command of %llu is answered, the projection is at %llu", a->node->id,
                      (unsigned long long)r->index, (unsigned long long)m->index);
    } else {
        x->acked = r->index > x->acked ? r->index : x->acked;
        x->successes += r->rc == RC_OK;
        x->failures += r->rc != RC_OK;
        x->is_final_done[a->node->id] |= a->is_final;
        s->counters.acks++;
    }
    free(a);
}

static void on_fenced(void *ctx, const struct meta_result *r)
{
    struct ask *a = ctx;
    struct sim *s = a->node->sim;
    if (r->rc == RC_OK && a->node->is_up && a->node->incarnation == a->incarnation) {
        const struct mirror *m = sim_parts(a->node)->mirror;
        meta_state(s)->fences++;
        meta_state(s)->is_final_fenced[a->node->id] |= a->is_final;
        if (m->is_loaded && m->index < a->acked) {
            sim_violation(s, "node %u: a fence passes at %llu, %llu was acknowledged before it was asked for",
                          a->node->id, (unsigned long long)m->index, (unsigned long long)a->acked);
        }
    }
    free(a);
}

static struct ask *ask_create(struct sim_node *n, bool is_final)
{
    struct ask *a = mem_zalloc(sizeof(*a));
    const struct metastore *m = sim_parts(n)->meta;
    a->node = n;
    a->incarnation = n->incarnation;
    a->key = ref_key(m->session, m->counter + 1);
    a->acked = meta_state(n->sim)->acked;
    a->is_final = is_final;
    return a;
}

static void submit(struct sim *s, struct sim_node *n, bool is_final)
{
    struct meta_command c;
    meta_command_init(&c);
    const uint64_t ops = sim_chance(s, 4) ? sim_range(s, 2, 3) : 1;
    for (uint64_t i = 0; i < ops; i++) {
        add_op(s, n, &c);
    }
    s->counters.proposals++;
    metastore_submit(sim_parts(n)->meta, 0, &c, is_final ? 10000 : (uint32_t)sim_range(s, 50, 6000), on_done,
                     ask_create(n, is_final));
    sim_node_wake(n, 0);
}

static void fence(struct sim *s, struct sim_node *n, bool is_final)
{
    metastore_fence(sim_parts(n)->meta, 0, is_final ? 10000 : (uint32_t)sim_range(s, 50, 6000), on_fenced,
                    ask_create(n, is_final));
    sim_node_wake(n, 0);
}

static void client(struct sim *s, void *arg, uint64_t number)
{
    struct meta_state *x = meta_state(s);
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    struct sim_node *n = &s->nodes[rng_below(&s->rng, s->nodes_count)];
    if (n->is_up && !n->is_paused) {
        const uint64_t burst = sim_chance(s, 10) ? sim_range(s, 1, 8) : 1;
        for (uint64_t i = 0; i < burst; i++) {
            submit(s, n, false);
        }
        if (sim_chance(s, 4)) {
            fence(s, n, false);
        }
    }
    sim_at(s, sim_range(s, 1, 2 * x->interval), client, NULL, 0);
}

void sim_meta_start(struct sim *s)
{
    struct meta_state *x = mem_zalloc(sizeof(*x));
    s->meta_state = x;
    x->next_number = META_NUMBER_FIRST;
    x->interval = sim_range(s, 2 * SIM_MS, 25 * SIM_MS);
    map_init_u64(&x->outcomes);
    sim_at(s, 0, client, NULL, 0);
}

// ---- the end ----------------------------------------------------------------------------------------------

// Every node takes a last command and a last fence, and then all show the same.
bool sim_meta_is_settled(struct sim *s)
{
    struct meta_state *x = meta_state(s);
    const struct sim_group *g = &s->groups[s->groups_count - 1];
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        struct sim_node *n = &s->nodes[i];
        if (!n->is_up) {
            continue;  // Gone for ever.
        }
        if (x->final_asked[n->id] != n->incarnation) {  // A fault armed earlier may still have struck.
            x->final_asked[n->id] = n->incarnation;
            submit(s, n, true);
            fence(s, n, true);
        }
    }
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        const struct sim_node *n = &s->nodes[i];
        if (!n->is_up) {
            continue;
        }
        const struct mirror *m = sim_parts(n)->mirror;
        if (!x->is_final_done[n->id] || !x->is_final_fenced[n->id] || !m->is_loaded || m->index != g->committed) {
            sim_log(s, "node %u: last command %d, last fence %d, its projection is at %llu", n->id,
                    x->is_final_done[n->id], x->is_final_fenced[n->id], (unsigned long long)m->index);
            return false;
        }
    }
    return true;
}

void sim_meta_finish(struct sim *s)
{
    struct meta_state *x = meta_state(s);
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        struct sim_node *n = &s->nodes[i];
        if (!n->is_up) {
            continue;
        }
        compare(n, ((struct mirror *)sim_parts(n)->mirror)->index);
        sim_observe_digest(sim_observe_find(&sim_parts(n)->observers, META_GROUP_ID));
        if (tree_check(&sim_parts(n)->meta->fsm.tree) != RC_OK) {
            sim_violation(s, "node %u: rows of the metadata tree do not fit together", n->id);
        }
    }
    sim_log(s, "metadata: %llu done, %llu refused, %llu unknown, %llu fences, %u nodes",
            (unsigned long long)x->successes, (unsigned long long)x->failures, (unsigned long long)x->unknown,
            (unsigned long long)x->fences, x->model.count);
}

void sim_meta_free(struct sim *s)
{
    struct meta_state *x = meta_state(s);
    uint32_t pos = 0;
    struct outcome *o;
    while ((o = map_next(&x->outcomes, &pos, NULL, NULL)) != NULL) {
        free(o);
    }
    map_deinit(&x->outcomes);
    buf_deinit(&x->hashes);
    free(x);
    s->meta_state = NULL;
}
