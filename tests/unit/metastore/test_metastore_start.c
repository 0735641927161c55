// SPDX-License-Identifier: Apache-2.0
// links: metastore node/base proto consensus consensus/raft consensus/solo gen
// The metadata store over its life: starting with what it has, damage, snapshots.
#include "tests/unit/metastore/metastore_nodes.h"
#include <errno.h>
#include <fcntl.h>

// ---- starting ---------------------------------------------------------------------------------------------

START_TEST(a_new_store_is_told_only_once_a_majority_proves_what_exists)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    node_stop(3);
    w.has_quorum = false;
    const struct store_group recovered = {.group = META_GROUP_ID};
    node_start(3, NULL, &recovered);
    pass_ms(20000);
    ck_assert_str_eq(w.node[3].told[0], "");
    w.has_quorum = true;
    pass_ms(3000);
    ck_assert_str_eq(w.node[3].told[0], "+q loaded ");
}
END_TEST

// Who has a number that was given, and no record, is gone for good; who has a higher one may only not be here yet.
START_TEST(numbers_are_known_to_be_given_with_what_was_seen_of_them_and_after_a_restart)
{
    struct answer a = {.node = &w.node[1]};
    struct meta_command c;
    meta_command_init(&c);
    const struct meta_path p = path_text("n");
    meta_put(&c, &p, span_str("12345678"), META_IF_ABSENT, 0);
    meta_allocate_ids(&c, 0, 3);
    pump();
    ck_assert_uint_eq(metastore_numbers(w.node[2].m, 1), META_NUMBER_FIRST);
    metastore_submit(w.node[1].m, 0, &c, 10000, on_done, &a);
    frames_pump();  // It is in the log and seen by nobody.
    ck_assert_uint_eq(metastore_numbers(w.node[2].m, 1), META_NUMBER_FIRST);
    pump();
    ck_assert_int_eq(a.result.rc, RC_OK);
    for (uint32_t id = 1; id <= NODES; id++) {
        for (uint32_t k = 0; k < WORKERS; k++) {
            ck_assert_uint_eq(metastore_numbers(w.node[id].m, k), META_NUMBER_FIRST + 3);
        }
    }
    node_stop(3);
    const struct store_group recovered = {.group = META_GROUP_ID};
    node_start(3, NULL, &recovered);
    ck_assert_uint_eq(metastore_numbers(w.node[3].m, 1), 0);
    pass_ms(3000);
    ck_assert_str_eq(w.node[3].told[1], "+n loaded ");
    ck_assert_uint_eq(metastore_numbers(w.node[3].m, 1), META_NUMBER_FIRST + 3);
}
END_TEST

static char *dir;

static void restart_on_disk(uint32_t id)
{
    const struct store_group recovered = {.group = META_GROUP_ID};
    node_start(id, dir, &recovered);
}

static void node_3_with_disk(void)
{
    dir = temp_dir();
    node_stop(3);
    node_start(3, dir, NULL);
    pass_ms(500);
    struct answer a;
    put(&a, 3, 0, "q", META_IF_ABSENT);
    pump();
    put(&a, 1, 0, "r", META_IF_ABSENT);
    pump();
    pass_ms(100);  // The open transaction is committed.
    ck_assert_str_eq(w.node[3].told[0], "loaded +q +r ");
}

START_TEST(a_restarted_node_serves_what_it_has_without_a_majority)
{
    node_3_with_disk();
    node_stop(3);
    w.has_quorum = false;
    lead(0);
    restart_on_disk(3);
    ck_assert(!metastore_is_damaged(w.node[3].m));
    pump();
    ck_assert_str_eq(w.node[3].told[1],
                     "+q +r loaded ");  // And the replay of the same entries said nothing more.
    node_stop(3);
    temp_remove(dir);
}
END_TEST

static void damage(void)
{
    char path[512];
    for (int generation = 1; generation < 10; generation++) {
        snprintf(path, sizeof(path), "%s/gen-%d/data.mdb", dir, generation);
        const int fd = open(path, O_RDWR);
        if (fd >= 0) {
            uint8_t block[4096];
            for (off_t at = 2 * 4096; pread(fd, block, sizeof(block), at) > 0; at += 4096) {
                for (size_t i = 0; i < sizeof(block); i++) {
                    block[i] ^= 0x55;
                }
                ck_assert_int_eq(pwrite(fd, block, sizeof(block), at), (ssize_t)sizeof(block));
            }
            close(fd);
        }
    }
}

// CR-05.
START_TEST(a_damaged_store_serves_nothing_until_it_is_rebuilt_and_proven)
{
    node_3_with_disk();
    node_stop(3);
    damage();
    w.has_quorum = false;
    restart_on_disk(3);
    ck_assert(metastore_is_damaged(w.node[3].m));
    struct answer a;
    fence(&a, 3, 0, 1000);
    pass_ms(5000);
    ck_assert_int_eq(a.result.rc, RC_CORRUPT);
    ck_assert_str_eq(w.node[3].told[0], "");  // Not "loaded" with nothing in it.
    ck_assert(metastore_is_damaged(w.node[3].m));
    // Once more, in the middle of it: still not taken for whole.
    node_stop(3);
    restart_on_disk(3);
    pass_ms(1000);
    ck_assert_str_eq(w.node[3].told[0], "");
    w.has_quorum = true;
    pass_ms(11000);
    ck_assert(!metastore_is_damaged(w.node[3].m));
    ck_assert_str_eq(w.node[3].told[0], "+q +r loaded ");
    node_stop(3);
    restart_on_disk(3);
    ck_assert(!metastore_is_damaged(w.node[3].m));
    pump();
    ck_assert_str_eq(w.node[3].told[0], "+q +r loaded ");
    node_stop(3);
    temp_remove(dir);
}
END_TEST

START_TEST(a_store_of_a_former_life_is_not_taken_over_by_a_new_replica)
{
    node_3_with_disk();
    node_stop(3);
    // The log is gone, the store is not: in the new log, index 2 means something else.
    for (uint32_t i = 1; i < NODES; i++) {
        node_stop(i);
    }
    for (uint64_t i = 1; i <= w.last; i++) {
        w.log[i].len = 0;
    }
    w.last = 0;
    w.frames_count = 0;
    node_start(1, NULL, NULL);
    node_start(2, NULL, NULL);
    node_start(3, dir, NULL);
    lead(1);
    pass_ms(500);
    struct answer a;
    put(&a, 3, 0, "fresh", META_IF_ABSENT);
    pump();
    ck_assert_int_eq(a.result.rc, RC_OK);
    ck_assert_str_eq(w.node[3].told[0], "loaded +fresh ");
    node_stop(3);
    temp_remove(dir);
}
END_TEST

// ---- snapshots --------------------------------------------------------------------------------------------

struct image {
    struct buf chunks[64];
    uint32_t count;
    uint64_t index;
};

// As the host: asks until there is one, with entries coming in between.
static struct image take(uint32_t id, bool is_busy)
{
    struct group *g = &w.node[id].host.group;
    struct image image = {0};
    for (int ask = 0; ask < 5; ask++) {
        struct fsm_snapshot *s = g->fsm->snapshot_begin(g->ctx);
        if (s) {
            image.index = g->applied;
            for (bool is_more = true; is_more; image.count++) {
                ck_assert_uint_lt(image.count, 64);
                is_more = g->fsm->snapshot_chunk(s, &image.chunks[image.count]);
            }
            g->fsm->snapshot_end(s);
            return image;
        }
        if (is_busy) {
            struct answer a;
            char path[16];
            snprintf(path, sizeof(path), "busy%d", ask);
            put(&a, id, 0, path, META_IF_ANY);
            pump();
            ck_assert(a.is_there);
        } else {
            pump();
        }
    }
    ck_abort_msg("no snapshot");
}

static enum rc give(uint32_t id, struct image *image)
{
    struct group *g = &w.node[id].host.group;
    g->handed = g->applied = image->index;
    g->fsm->restore_begin(g->ctx);
    enum rc rc = RC_OK;
    for (uint32_t i = 0; i < image->count && rc == RC_OK; i++) {
        rc = g->fsm->restore_chunk(g->ctx, buf_span(&image->chunks[i]));
    }
    return rc == RC_OK ? g->fsm->restore_end(g->ctx, image->index) : rc;
}

static void image_free(struct image *image)
{
    for (uint32_t i = 0; i < image->count; i++) {
        buf_deinit(&image->chunks[i]);
    }
}

START_TEST(a_snapshot_can_be_taken_at_the_second_ask_also_while_entries_come_in)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    for (int busy = 0; busy < 2; busy++) {
        struct image image = take(1, busy);
        ck_assert_uint_eq(image.index, w.last);
        struct tree_snapshot_check check;
        tree_snapshot_check_init(&check);
        for (uint32_t i = 0; i < image.count; i++) {
            ck_assert_int_eq(tree_snapshot_check_chunk(&check, buf_span(&image.chunks[i])), RC_OK);
        }
        ck_assert_int_eq(tree_snapshot_check_end(&check), RC_OK);
        ck_assert_uint_ge(check.meta.applied_index, image.index);
        tree_snapshot_check_deinit(&check);
        image_free(&image);
    }
}
END_TEST

START_TEST(an_installed_snapshot_resets_the_projections_and_answers_waiting_commands)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    dir = temp_dir();
    node_stop(3);
    node_start(3, dir, NULL);
    pass_ms(500);
    ck_assert_str_eq(w.node[3].told[0], "+q loaded ");
    // Node 3's command and others are applied elsewhere, while node 3's host hands over nothing.
    put(&a, 3, 1, "mine", META_IF_ABSENT);
    for (uint32_t k = 0; k < w.node[3].posted_count; k++) {
        w.node[3].posted[k].fn(w.node[3].posted[k].arg);
    }
    w.node[3].posted_count = 0;
    w.node[3].is_up = false;
    w.node[1].is_up = true;
    frames_pump();
    struct answer b;
    put(&b, 1, 0, "r", META_IF_ABSENT);
    pump();
    ck_assert(b.is_there);
    struct image image = take(1, false);
    w.node[3].is_up = true;
    ck_assert_int_eq(give(3, &image), RC_OK);
    pump();
    ck_assert_str_eq(w.node[3].told[0], "+q loaded reset +mine +q +r loaded ");
    ck_assert(a.is_there);  // Asked again, and answered out of the dedup table.
    ck_assert_int_eq(a.result.rc, RC_OK);
    // The installed generation is the one that is found again.
    node_stop(3);
    restart_on_disk(3);
    pump();
    ck_assert_str_eq(w.node[3].told[0], "+mine +q +r loaded ");
    node_stop(3);
    image_free(&image);
    temp_remove(dir);
}
END_TEST

static uint32_t asked, refused_at, refused_until;

// The disk is full from one ask until another.
static int allocate_in_time(int fd, uint64_t bytes)
{
    const uint32_t n = asked++;
    if (n >= refused_at && n < refused_until) {
        return ENOSPC;
    }
    return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0 ? 0 : errno;
}

START_TEST(an_installed_snapshot_waits_for_room_wherever_it_wants_for_it)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    dir = temp_dir();
    node_stop(3);
    node_start(3, dir, NULL);
    pass_ms(500);
    w.node[3].is_up = false;
    put(&a, 1, 0, "r", META_IF_ABSENT);
    pump();
    struct image image = take(1, false);
    w.node[3].is_up = true;
    kv_lmdb_set_allocate(allocate_in_time);
    asked = 0;
    refused_at = (uint32_t)_i;
    refused_until = refused_at + 2;
    ck_assert_int_eq(give(3, &image), RC_OK);
    pump();
    kv_lmdb_set_allocate(NULL);
    ck_assert_uint_ge(asked, 4);  // Both files of a generation, a commit, the name of the published one.
    ck_assert_uint_ge(asked, refused_until);
    ck_assert(!kv_lmdb_is_short());
    ck_assert_str_eq(w.node[3].told[0], "+q loaded reset +q +r loaded ");
    node_stop(3);
    restart_on_disk(3);
    pump();
    ck_assert_str_eq(w.node[3].told[0], "+q +r loaded ");
    node_stop(3);
    image_free(&image);
    temp_remove(dir);
}
END_TEST

START_TEST(who_stops_does_not_wait_for_the_room_of_a_snapshot_and_publishes_no_part_of_it)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    dir = temp_dir();
    node_stop(3);
    node_start(3, dir, NULL);
    pass_ms(500);
    w.node[3].is_up = false;
    put(&a, 1, 0, "r", META_IF_ABSENT);
    pump();
    struct image image = take(1, false);
    w.node[3].is_up = true;
    kv_lmdb_set_allocate(allocate_in_time);
    asked = 0;
    refused_at = (uint32_t)_i;
    refused_until = refused_at + 1;
    kv_lmdb_stop_waiting();
    ck_assert_int_eq(give(3, &image), RC_OK);
    pump();
    kv_lmdb_set_allocate(NULL);
    node_stop(3);
    restart_on_disk(3);
    pump();
    ck_assert_str_eq(w.node[3].told[0], "+q loaded +r ");  // As published before, and what came since.
    node_stop(3);
    image_free(&image);
    temp_remove(dir);
}
END_TEST

START_TEST(a_snapshot_that_says_nothing_new_changes_nothing)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    struct image image = take(1, false);
    put(&a, 1, 0, "r", META_IF_ABSENT);
    pump();
    struct group *g = &w.node[1].host.group;
    const uint64_t handed = g->handed;
    ck_assert_int_eq(give(1, &image), RC_OK);
    pump();
    ck_assert_uint_ge(g->applied, handed);
    ck_assert_str_eq(w.node[1].told[0], "loaded +q +r ");
    image_free(&image);
}
END_TEST

START_TEST(a_damaged_snapshot_is_refused_and_the_old_state_stays)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    struct image image = take(1, false);
    node_stop(3);
    node_start(3, NULL, NULL);
    image.chunks[0].ptr[image.chunks[0].len / 2] ^= 1;
    const uint64_t handed = w.node[3].host.group.handed;
    ck_assert_int_ne(give(3, &image), RC_OK);
    w.node[3].host.group.handed = w.node[3].host.group.applied = handed;
    pass_ms(500);
    ck_assert_str_eq(w.node[3].told[0], "+q loaded ");  // By replay.
    image_free(&image);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("metastore, start and snapshots");
    TCase *t = tcase_create("metastore");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_new_store_is_told_only_once_a_majority_proves_what_exists);
    tcase_add_test(t, numbers_are_known_to_be_given_with_what_was_seen_of_them_and_after_a_restart);
    tcase_add_test(t, a_restarted_node_serves_what_it_has_without_a_majority);
    tcase_add_test(t, a_damaged_store_serves_nothing_until_it_is_rebuilt_and_proven);
    tcase_add_test(t, a_store_of_a_former_life_is_not_taken_over_by_a_new_replica);
    tcase_add_test(t, a_snapshot_can_be_taken_at_the_second_ask_also_while_entries_come_in);
    tcase_add_test(t, an_installed_snapshot_resets_the_projections_and_answers_waiting_commands);
    tcase_add_loop_test(t, an_installed_snapshot_waits_for_room_wherever_it_wants_for_it, 0, 4);
    tcase_add_loop_test(t, who_stops_does_not_wait_for_the_room_of_a_snapshot_and_publishes_no_part_of_it, 0, 4);
    tcase_add_test(t, a_snapshot_that_says_nothing_new_changes_nothing);
    tcase_add_test(t, a_damaged_snapshot_is_refused_and_the_old_state_stays);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
