// SPDX-License-Identifier: Apache-2.0
// links: consensus consensus/raft consensus/solo node/base
// Replays the protocol scenarios of tests/raft/*.txt against the raft engine. The language is in tests/raft/README.md;
// what a transcript expects is what the protocol demands there, and raft_cluster.h checks its promises all along.
#include "tests/unit/consensus/raft_cluster.h"
#include <glob.h>
#include <strings.h>

// ---- fixture -----------------------------------------------------------------------------------------------------

enum { WORDS = 24 };
#define MS UINT64_C(1000000)

static struct cluster c;
static bool cut[CL_NODES + 1][CL_NODES + 1];
static char *words[WORDS];
static int words_count;
static const char *file_name;
static int line_number;
static glob_t files;

static const char *const type_names[] = {[MSG_PREVOTE] = "prevote", [MSG_PREVOTE_REPLY] = "prevote-reply",
                                         [MSG_VOTE] = "vote", [MSG_VOTE_REPLY] = "vote-reply",
                                         [MSG_APPEND] = "append", [MSG_APPEND_REPLY] = "append-reply",
                                         [MSG_TIMEOUT_NOW] = "timeout-now", [MSG_SNAPSHOT_DONE] = "snapshot-done"};
static const char *const role_names[] = {"follower", "pre-candidate", "candidate", "leader"};

#define FAIL(...)                                                                                  \
    do {                                                                                           \
        char text_[512];                                                                           \
        snprintf(text_, sizeof(text_), __VA_ARGS__);                                               \
        ck_abort_msg("%s:%d: %s", file_name, line_number, text_);                                  \
    } while (0)

// ---- helpers -----------------------------------------------------------------------------------------------------

static uint64_t number_of(const char *text)
{
    char *end = NULL;
    uint64_t v = strtoull(text, &end, 10);
    if (end == text || *end != '\0') {
        FAIL("'%s' is not a number", text);
    }
    return v;
}

static const char *word(int i)
{
    if (i >= words_count) {
        FAIL("word %d is missing", i + 1);
    }
    return words[i];
}

static uint64_t number(int i)
{
    return number_of(word(i));
}

static uint32_t node(int i)
{
    uint64_t n = number(i);
    if (n < 1 || n > c.count) {
        FAIL("no node %s", word(i));
    }
    return (uint32_t)n;
}

static struct cl_node *running(int i)
{
    struct cl_node *n = &c.nodes[node(i)];
    if (n->r == NULL) {
        FAIL("node %s is not running", word(i));
    }
    return n;
}

// "key=value" among the words: the value, or NULL.
static const char *option(const char *key)
{
    size_t n = strlen(key);
    for (int i = 1; i < words_count; i++) {
        if (strncmp(words[i], key, n) == 0 && words[i][n] == '=') {
            return words[i] + n + 1;
        }
    }
    return NULL;
}

static uint64_t option_number(const char *key, uint64_t otherwise)
{
    const char *v = option(key);
    return v == NULL ? otherwise : number_of(v);
}

static int type_of(const char *name)
{
    for (int t = MSG_PREVOTE; t <= MSG_SNAPSHOT_DONE; t++) {
        if (strcmp(type_names[t], name) == 0) {
            return t;
        }
    }
    if (strcmp(name, "snapshot") != 0) {
        FAIL("'%s' is no message type", name);
    }
    return 0;
}

static bool packet_is(const struct cl_packet *p, uint32_t from, uint32_t to, int type)
{
    return p->from_node == from && p->to_node == to &&
           (type < 0 || (type == 0 ? p->is_snapshot : !p->is_snapshot && (int)p->m.type == type));
}

static void on_packet(struct cluster *cluster, struct cl_packet *p)
{
    (void)cluster;
    if (cut[p->from_node][p->to_node]) {
        p->due = UINT64_MAX;
    }
}

// The words 2, 3 and 4: from, to, and a type or all.
static int matching_type(void)
{
    return words_count > 3 && strchr(words[3], '=') == NULL ? type_of(words[3]) : -1;
}

// A message that is sent in pieces: taken now, told to the engine as sent when the last piece is gone.
static struct cl_packet *begun;

static uint32_t position(uint32_t leader, uint32_t to)
{
    struct consensus_status st;
    cl_status(&c, leader, &st);
    for (uint32_t k = 0; k < st.config->count; k++) {
        if (st.config->members[k].node_id == to) {
            return k;
        }
    }
    FAIL("node %u is no member", to);
    return 0;
}

static void begin(void)
{
    struct consensus_send s;
    const uint32_t from = node(1);
    c.ops->next_send(running(1)->r, position(from, node(2)), &s);
    if (s.kind != SEND_APPEND || begun != NULL) {
        FAIL("nothing to begin with");
    }
    begun = cl_packet_begin(&c, from, &s, 1);
    if (begun->m.count == 0) {
        FAIL("no entry to begin with");
    }
}

static void sent(void)
{
    (void)running(1);
    if (begun == NULL) {
        FAIL("nothing was begun");
    }
    struct cl_packet *p = begun;
    begun = NULL;
    cl_packet_sent(&c, node(1), position(node(1), node(2)), p);
}

// Delivers what is under way from one node to another now, oldest first.
static void deliver(bool is_kept)
{
    uint32_t from = node(1);
    uint32_t to = node(2);
    int type = matching_type();
    uint64_t last = c.packets_number;
    uint32_t done = 0;
    for (uint32_t k = 0; k < c.packets_count;) {
        struct cl_packet *p = c.packets[k];
        if (p->number <= last && packet_is(p, from, to, type)) {
            cl_deliver(&c, is_kept ? cl_packet_dup(p) : cl_packet_take(&c, k));
            done++;
            k = is_kept ? k + 1 : 0;
        } else {
            k++;
        }
    }
    if (done == 0) {
        FAIL("nothing like that is under way");
    }
}

static void drop(void)
{
    uint32_t from = node(1);
    uint32_t to = node(2);
    int type = matching_type();
    for (uint32_t k = 0; k < c.packets_count;) {
        if (packet_is(c.packets[k], from, to, type)) {
            cl_packet_free(cl_packet_take(&c, k));
        } else {
            k++;
        }
    }
}

static void settle(void)
{
    if (!cl_settle(&c)) {
        FAIL("it never comes to rest");
    }
}

// ---- commands ----------------------------------------------------------------------------------------------------

static void check_rc(enum rc rc)
{
    const char *want = option("rc");
    static const char *const names[] = {
#define NAME(name, category, text) [RC_##name] = #name,
        RC_LIST(NAME)
#undef NAME
    };
    if (strcasecmp(names[rc], want == NULL ? "ok" : want) != 0) {
        FAIL("answered %s", names[rc]);
    }
}

static void cmd_nodes(void)
{
    uint32_t count = (uint32_t)number(1);
    uint32_t voters = (uint32_t)option_number("voters", count);
    cl_init(&c, count, voters, 1);
    c.on_packet = on_packet;
    memset(cut, 0, sizeof(cut));
    for (uint32_t i = 1; i <= count; i++) {
        c.nodes[i].is_sync = true;
        if (i <= voters) {
            cl_start(&c, i, false);
        }
    }
}

static void member_change(enum member_change_kind kind)
{
    struct cl_node *n = running(1);
    struct member_change change = {.kind = kind, .member = {.replica_id = number(2)}};
    if (kind == MEMBER_ADD_LEARNER) {
        uint32_t at = node(3);
        change.member.node_id = at;
        c.nodes[at].replica_id = change.member.replica_id;
        c.nodes[at].is_member = true;
    }
    struct consensus_out out;
    enum rc rc = raft_ops.change_members(n->r, &change, c.now, &out);
    cl_out(&c, node(1), &out, NULL);
    if (rc == RC_OK && kind == MEMBER_ADD_LEARNER && c.nodes[node(3)].r == NULL) {
        cl_start(&c, node(3), false);
    }
    check_rc(rc);
}

static void cmd_liveness(bool is_alive)
{
    uint32_t of = node(2);
    for (uint32_t i = 1; i <= c.count; i++) {
        if (strcmp(word(1), "*") == 0 || number(1) == i) {
            cl_alive(&c, i, of, is_alive);
        }
    }
}

static void cmd_restart(void)
{
    struct cl_node *n = &c.nodes[node(1)];
    n->is_amnesiac = option("amnesiac") != NULL;
    if (option("wiped") != NULL) {
        n->disk.last = n->snapshot = 0;
        n->disk_hard = (struct hard_state){0};
    }
    cl_start(&c, node(1), false);
}

static void cmd_inject(void)
{
    struct cl_packet *p = cl_packet_new(0, &(struct consensus_msg){.group = 1});
    p->m.type = (enum consensus_msg_type)type_of(word(3));
    p->m.from = number(1);
    p->to_node = node(2);
    p->m.to = c.nodes[p->to_node].replica_id;
    p->m.term = option_number("term", 0);
    p->m.index = option_number("index", 0);
    p->m.index_term = option_number("index-term", 0);
    p->m.commit = option_number("commit", 0);
    p->m.acked = option_number("acked", 0);
    p->m.read_round = option_number("round", 0);
    p->m.is_rejected = option_number("rejected", 0) != 0;
    p->m.is_transfer = option_number("transfer", 0) != 0;
    p->m.count = (uint32_t)option_number("count", 0);
    if (p->m.count > 0) {
        p->m.runs_count = 1;
        p->m.runs[0] = (struct term_run){.first = p->m.index + 1, .term = option_number("entry-term", p->m.term)};
        p->ents_count = p->m.count;
        p->ents = mem_zalloc(p->m.count * sizeof(*p->ents));
        for (uint32_t k = 0; k < p->m.count; k++) {
            p->ents[k] = (struct cl_ent){.term = p->m.runs[0].term, .value = ++c.value};
        }
    }
    cl_deliver(&c, p);
}

static void request(void (*call)(struct replica *r, struct consensus_out *out, enum rc *rc))
{
    struct cl_node *n = running(1);
    struct consensus_out out;
    enum rc rc = RC_OK;
    call(n->r, &out, &rc);
    cl_out(&c, node(1), &out, NULL);
    check_rc(rc);
}
static void call_unknown(struct replica *r, struct consensus_out *out, enum rc *rc)
{
    raft_ops.replica_unknown(r, number(2), c.now, out);
    *rc = RC_OK;
}

static void call_transfer(struct replica *r, struct consensus_out *out, enum rc *rc)
{
    *rc = raft_ops.transfer(r, number(2), c.now, out);
}
static void call_read(struct replica *r, struct consensus_out *out, enum rc *rc)
{
    c.reads[number(2) % 256].id = number(2);
    c.reads[number(2) % 256].floor = c.committed.last;
    *rc = raft_ops.read_barrier(r, number(2), c.now, out);
}
static void call_step_down(struct replica *r, struct consensus_out *out, enum rc *rc)
{
    (void)rc;
    raft_ops.step_down(r, c.now, out);
}

static void call_lost(struct replica *r, struct consensus_out *out, enum rc *rc)
{
    (void)rc;
    raft_ops.lost_memory(r, c.now, out);
}

// ---- expectations ------------------------------------------------------------------------------------------------

static void same(const char *key, uint64_t got)
{
    const char *want = option(key);
    if (want != NULL && number_of(want) != got) {
        FAIL("%s is %llu", key, (unsigned long long)got);
    }
}

static void expect_node(void)
{
    static const char *const known[] = {"role", "deadline", "term", "leader", "last", "commit", "durable", "applied",
                                        "epoch", "vote", "disk-term", "disk-vote", "members", "voters", "config",
                                        "ready", "regressed", "level", "not-before", "reads", "reads-failed", "read-index"};
    for (int i = 2; i < words_count; i++) {
        bool is_known = false;
        for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
            is_known |= strncmp(words[i], known[k], strlen(known[k])) == 0 && words[i][strlen(known[k])] == '=';
        }
        if (!is_known) {
            FAIL("'%s' cannot be expected", words[i]);
        }
    }
    struct cl_node *n = running(1);
    struct consensus_status st;
    cl_status(&c, node(1), &st);
    const char *role = option("role");
    if (role != NULL && strcmp(role, role_names[st.role]) != 0) {
        FAIL("role is %s", role_names[st.role]);
    }
    const char *deadline = option("deadline");
    uint64_t at = raft_ops.deadline(n->r);
    if (deadline != NULL && strcmp(deadline, "none") == 0 && at != UINT64_MAX) {
        FAIL("there is a deadline in %llu ms", (unsigned long long)((at - c.now) / MS));
    } else if (deadline != NULL && strcmp(deadline, "none") != 0 && at > c.now + number_of(deadline) * MS) {
        FAIL("no deadline within %s ms", deadline);
    }
    const char *later = option("not-before");
    if (later != NULL && at < c.now + number_of(later) * MS) {
        FAIL("there is a deadline before %s ms", later);
    }
    same("term", st.term), same("leader", st.leader), same("last", st.last), same("commit", st.commit);
    same("durable", st.durable), same("applied", st.applied), same("epoch", st.log_epoch);
    same("vote", n->hard.vote), same("disk-term", n->disk_hard.term), same("disk-vote", n->disk_hard.vote);
    same("members", st.config->count), same("voters", config_voters(st.config)), same("config", st.config->index);
    same("ready", st.is_ready), same("regressed", st.regressed), same("level", st.level_at);
    same("reads", n->reads_done), same("reads-failed", n->reads_failed), same("read-index", n->read_index);
}

// Terms of the whole log, in order.
static void expect_log(void)
{
    struct cl_node *n = running(1);
    if (n->mem.last != (uint64_t)(words_count - 2)) {
        FAIL("the log has %llu entries", (unsigned long long)n->mem.last);
    }
    for (int i = 2; i < words_count; i++) {
        if (n->mem.at[i - 1].term != number(i)) {
            FAIL("entry %d is of term %llu", i - 1, (unsigned long long)n->mem.at[i - 1].term);
        }
    }
}

static void expect_under_way(void)
{
    uint32_t from = node(1);
    uint32_t to = node(2);
    int type = type_of(word(3));
    const struct cl_packet *last = NULL;
    uint32_t count = 0;
    for (uint32_t k = 0; k < c.packets_count; k++) {
        if (packet_is(c.packets[k], from, to, type)) {
            last = c.packets[k];
            count++;
        }
    }
    if (words_count > 4 && strcmp(words[4], "none") == 0) {
        if (count != 0) {
            FAIL("%u are under way", count);
        }
        return;
    }
    if (last == NULL) {
        FAIL("none is under way");
    }
    same("times", count), same("term", last->m.term), same("index", last->m.index), same("acked", last->m.acked);
    same("index-term", last->m.index_term), same("commit", last->m.commit), same("count", last->m.count);
    same("rejected", last->m.is_rejected), same("hint", last->m.hint_index), same("hint-term", last->m.hint_term);
    same("transfer", last->m.is_transfer);
}

static void heal(void)
{
    memset(cut, 0, sizeof(cut));
}

static void run_words(void)
{
    const char *name = words[0];
    if (strcmp(name, "nodes") == 0) {
        cmd_nodes();
    } else if (strcmp(name, "manual") == 0) {
        running(1)->is_sync = false;
    } else if (strcmp(name, "sync") == 0) {
        running(1)->is_sync = true;
        cl_disk(&c, node(1), UINT32_MAX);
    } else if (strcmp(name, "disk") == 0) {
        (void)running(1);
        cl_disk(&c, node(1), words_count > 2 ? (uint32_t)number(2) : UINT32_MAX);
    } else if (strcmp(name, "timeout") == 0) {
        uint64_t at = raft_ops.deadline(running(1)->r);
        if (at == UINT64_MAX) {
            FAIL("node %s waits for nothing", word(1));
        }
        c.now = at > c.now ? at : c.now;
        (void)cl_timeout(&c, node(1));
    } else if (strcmp(name, "time") == 0) {
        c.now += number(1) * MS;
    } else if (strcmp(name, "run") == 0) {  // Up to that many deadlines pass, whosever they are.
        for (uint64_t k = number(1); k > 0; k--) {
            settle();
            if (!cl_tick(&c)) {
                break;
            }
        }
        settle();
    } else if (strcmp(name, "settle") == 0) {
        settle();
    } else if (strcmp(name, "send") == 0) {
        (void)running(1);
        cl_send(&c, node(1), words_count > 2 ? (uint32_t)number(2) : 64);
    } else if (strcmp(name, "begin") == 0) {
        begin();
    } else if (strcmp(name, "sent") == 0) {
        sent();
    } else if (strcmp(name, "deliver") == 0) {
        deliver(false);
    } else if (strcmp(name, "repeat") == 0) {
        deliver(true);
    } else if (strcmp(name, "drop") == 0) {
        drop();
    } else if (strcmp(name, "cut") == 0) {
        cut[node(1)][node(2)] = true;
    } else if (strcmp(name, "part") == 0) {
        cut[node(1)][node(2)] = cut[node(2)][node(1)] = true;
    } else if (strcmp(name, "heal") == 0) {
        heal();
    } else if (strcmp(name, "dead") == 0) {
        cmd_liveness(false);
    } else if (strcmp(name, "alive") == 0) {
        cmd_liveness(true);
    } else if (strcmp(name, "reset") == 0) {
        cl_link_reset(&c, node(1), node(2));
    } else if (strcmp(name, "unknown") == 0) {
        request(call_unknown);
    } else if (strcmp(name, "crash") == 0) {
        (void)running(1);
        cl_crash(&c, node(1), words_count > 2 ? (uint32_t)number(2) : 0);
    } else if (strcmp(name, "restart") == 0) {
        cmd_restart();
    } else if (strcmp(name, "propose") == 0) {
        (void)running(1);
        check_rc(cl_propose(&c, node(1), (uint32_t)number(2)));
    } else if (strcmp(name, "add") == 0) {
        member_change(MEMBER_ADD_LEARNER);
    } else if (strcmp(name, "promote") == 0) {
        member_change(MEMBER_PROMOTE);
    } else if (strcmp(name, "remove") == 0) {
        member_change(MEMBER_REMOVE);
    } else if (strcmp(name, "transfer") == 0) {
        request(call_transfer);
    } else if (strcmp(name, "read") == 0) {
        request(call_read);
    } else if (strcmp(name, "step-down") == 0) {
        request(call_step_down);
    } else if (strcmp(name, "lost") == 0) {
        request(call_lost);
    } else if (strcmp(name, "snapshot") == 0) {
        (void)running(1);
        cl_snapshot(&c, node(1));
    } else if (strcmp(name, "receiving") == 0) {
        raft_ops.snapshot_started(running(1)->r, c.now);
    } else if (strcmp(name, "inject") == 0) {
        cmd_inject();
    } else if (strcmp(name, "expect") == 0) {
        expect_node();
    } else if (strcmp(name, "log") == 0) {
        expect_log();
    } else if (strcmp(name, "under-way") == 0) {
        expect_under_way();
    } else {
        FAIL("unknown command '%s'", name);
    }
}

// ---- tests -------------------------------------------------------------------------------------------------------

START_TEST(transcript_holds)
{
    file_name = files.gl_pathv[_i];
    line_number = 0;
    FILE *f = fopen(file_name, "r");
    ck_assert_ptr_nonnull(f);
    char line[512];
    bool has_nodes = false;
    int expectations = 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        line_number++;
        line[strcspn(line, "#\n")] = '\0';
        words_count = 0;
        for (char *w = strtok(line, " \t"); w != NULL && words_count < WORDS; w = strtok(NULL, " \t")) {
            words[words_count++] = w;
        }
        if (words_count == 0) {
            continue;
        }
        if (getenv("RAFT_TRANSCRIPT") != NULL) {
            printf("%s:%d: %s\n", file_name, line_number, words[0]);
        }
        expectations += strcmp(words[0], "expect") == 0 || strcmp(words[0], "log") == 0 ||
                        strcmp(words[0], "under-way") == 0;
        if (strcmp(words[0], "nodes") == 0 && has_nodes) {
            cl_deinit(&c);
        }
        has_nodes |= strcmp(words[0], "nodes") == 0;
        run_words();
        cl_check_matching(&c);
    }
    fclose(f);
    ck_assert_msg(has_nodes && expectations > 0, "%s expects nothing", file_name);
    cl_deinit(&c);
}
END_TEST

int main(void)
{
    if (glob("tests/raft/*.txt", 0, NULL, &files) != 0 || files.gl_pathc < 20) {
        fprintf(stderr, "tests/raft/*.txt not found: run from the top of the repository\n");
        return EXIT_FAILURE;
    }
    Suite *suite = suite_create("raft transcripts");
    TCase *tc = tcase_create("transcripts");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, transcript_holds, 0, (int)files.gl_pathc);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    globfree(&files);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
