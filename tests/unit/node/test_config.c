// SPDX-License-Identifier: Apache-2.0
// rabbitmq.conf: what is taken, what is refused with file and line, what is accepted with a warning.
// links: node/server node/alarm node/base
#include "node/server/config.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct node_config config;
static struct buf warnings, error;

static enum rc load(const char *text)
{
    char path[] = "/tmp/warren-test-conf-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    buf_init(&warnings);
    buf_init(&error);
    enum rc rc = node_config_load(&config, path, &warnings, &error);
    unlink(path);
    buf_u8(&error, 0);
    buf_u8(&warnings, 0);
    error.len--;
    return rc;
}

static void done(void)
{
    node_config_deinit(&config);
    buf_deinit(&warnings);
    buf_deinit(&error);
}

START_TEST(an_unknown_key_is_an_error_that_names_the_line)
{
    ck_assert_int_eq(load("# comment\n\nheartbeat = 30\nno.such.key = 1\n"), RC_INVALID);
    ck_assert_ptr_nonnull(strstr((char *)error.ptr, "line 4: unknown key 'no.such.key'"));
    done();
}
END_TEST

START_TEST(a_key_of_rabbitmq_without_meaning_here_is_a_warning)
{
    ck_assert_int_eq(load("vm_memory_high_watermark_paging_ratio = 0.4\n"), RC_OK);
    ck_assert_ptr_nonnull(strstr((char *)warnings.ptr, "vm_memory_high_watermark_paging_ratio"));
    done();
}
END_TEST

START_TEST(values_are_checked_and_the_error_says_what_fits)
{
    ck_assert_int_eq(load("heartbeat = 70000\n"), RC_INVALID);
    ck_assert_ptr_nonnull(strstr((char *)error.ptr, "from 0 to 65535"));
    done();
    ck_assert_int_eq(load("listeners.tcp.1 = 127.0.0.1:99999\n"), RC_INVALID);
    done();
    ck_assert_int_eq(load("default_queue_type = odd\n"), RC_INVALID);
    done();
    ck_assert_int_eq(load("heartbeat\n"), RC_INVALID);
    ck_assert_ptr_nonnull(strstr((char *)error.ptr, "expected 'key = value'"));
    done();
}
END_TEST

START_TEST(placement_of_quorum_queues_has_rabbitmqs_keys_and_defaults)
{
    ck_assert_int_eq(load(""), RC_OK);
    ck_assert(!config.is_leader_balanced && !config.is_reconciling);
    ck_assert_uint_eq(config.reconcile_interval_ms, 3600000);
    ck_assert_uint_eq(config.reconcile_trigger_ms, 10000);
    done();
    ck_assert_int_eq(load("queue_leader_locator = balanced\n"
                          "quorum_queue.continuous_membership_reconciliation.enabled = true\n"
                          "quorum_queue.continuous_membership_reconciliation.auto_remove = false\n"
                          "quorum_queue.continuous_membership_reconciliation.interval = 5000\n"
                          "quorum_queue.continuous_membership_reconciliation.trigger_interval = 700\n"
                          "quorum_queue.continuous_membership_reconciliation.target_group_size = 5\n"),
                     RC_OK);
    ck_assert(config.is_leader_balanced && config.is_reconciling);
    ck_assert_uint_eq(config.reconcile_interval_ms, 5000);
    ck_assert_uint_eq(config.reconcile_trigger_ms, 700);
    ck_assert_uint_eq(config.reconcile_target, 5);
    ck_assert_str_eq((char *)warnings.ptr, "");
    done();
    ck_assert_int_eq(load("queue_leader_locator = nearest\n"), RC_INVALID);
    done();
    ck_assert_int_eq(load("quorum_queue.continuous_membership_reconciliation.enabled = maybe\n"), RC_INVALID);
    done();
}
END_TEST
START_TEST(sizes_take_binary_and_decimal_units)
{
    ck_assert_int_eq(load("max_message_size = 1MiB\nwarren.memtable_bytes = 64MB\n"), RC_OK);
    ck_assert_uint_eq(config.max_message_size, 1u << 20);
    ck_assert_uint_eq(config.memtable_bytes, 64000000u);
    done();
}
END_TEST

START_TEST(limits_of_memory_and_disk_are_sizes_or_shares)
{
    ck_assert_int_eq(load(""), RC_OK);
    ck_assert_uint_eq(alarm_limit_bytes(&config.alarm_limits.disk_free, 1000), 50000000);
    ck_assert_uint_eq(alarm_limit_bytes(&config.alarm_limits.memory, 1000), 600);
    done();
    ck_assert_int_eq(load("disk_free_limit.absolute = 2GB\nvm_memory_high_watermark.relative = "
                          "0.4\ntotal_memory_available_override_value = 4GiB\n"),
                     RC_OK);
    ck_assert_uint_eq(alarm_limit_bytes(&config.alarm_limits.disk_free, 1000), 2000000000);
    ck_assert_uint_eq(alarm_limit_bytes(&config.alarm_limits.memory, 1000), 400);
    ck_assert_uint_eq(config.total_memory, 4ull << 30);
    done();
    ck_assert_int_eq(load("disk_free_limit.relative = 1.5\nvm_memory_high_watermark.absolute = "
                          "1GiB\nvm_memory_high_watermark.relative = 0.5\n"),
                     RC_OK);
    ck_assert_uint_eq(alarm_limit_bytes(&config.alarm_limits.disk_free, 1000), 1500);
    // The absolute one counts, in any order.
    ck_assert_uint_eq(alarm_limit_bytes(&config.alarm_limits.memory, 1000), 1u << 30);
    done();
    ck_assert_int_eq(load("vm_memory_high_watermark.relative = 1.1\n"), RC_INVALID);
    done();
    ck_assert_int_eq(load("disk_free_limit.absolute = 2XB\n"), RC_INVALID);
    done();
    ck_assert_int_eq(load("disk_free_limit.other = 2GB\n"), RC_INVALID);
    done();
}
END_TEST

START_TEST(peers_are_listed_with_addresses_and_our_own_is_found)
{
    ck_assert_int_eq(load("nodename = a@h1\ncluster_formation.classic_config.nodes.1 = "
                          "a@h1\ncluster_formation.classic_config.nodes.2 = b@h2\n"
                          "warren.peer_address.b@h2 = 127.0.0.1:4000\nwarren.cluster_secret = s\n"),
                     RC_OK);
    ck_assert_int_eq(node_config_finish(&config, &error), RC_OK);
    ck_assert_uint_eq(config.peers_count, 2);
    ck_assert_str_eq(config.peers[0].address, "h1:25672");
    ck_assert_str_eq(config.peers[1].address, "127.0.0.1:4000");
    ck_assert_str_eq(config.advertised_address, "h1:25672");
    ck_assert_str_eq(config.amqp[0], "0.0.0.0:5672");
    done();
}
END_TEST

START_TEST(a_cluster_without_a_secret_is_refused)
{
    unsetenv("RABBITMQ_ERLANG_COOKIE");
    unsetenv("WARREN_CLUSTER_SECRET");
    ck_assert_int_eq(load("cluster_formation.classic_config.nodes.1 = "
                          "a@h1\ncluster_formation.classic_config.nodes.2 = b@h2\n"),
                     RC_OK);
    ck_assert_int_eq(node_config_finish(&config, &error), RC_INVALID);
    done();
}
END_TEST

START_TEST(rabbitmqs_defaults_hold)
{
    ck_assert_int_eq(load(""), RC_OK);
    ck_assert_uint_eq(config.heartbeat_s, 60);
    ck_assert_uint_eq(config.channel_max, 2047);
    ck_assert_uint_eq(config.frame_max, 131072);
    ck_assert_uint_eq(config.max_message_size, 16777216);
    ck_assert_str_eq(config.default_queue_type, "classic");
    done();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config");
    TCase *t = tcase_create("config");
    tcase_add_test(t, an_unknown_key_is_an_error_that_names_the_line);
    tcase_add_test(t, a_key_of_rabbitmq_without_meaning_here_is_a_warning);
    tcase_add_test(t, values_are_checked_and_the_error_says_what_fits);
    tcase_add_test(t, sizes_take_binary_and_decimal_units);
    tcase_add_test(t, limits_of_memory_and_disk_are_sizes_or_shares);
    tcase_add_test(t, peers_are_listed_with_addresses_and_our_own_is_found);
    tcase_add_test(t, a_cluster_without_a_secret_is_refused);
    tcase_add_test(t, rabbitmqs_defaults_hold);
    tcase_add_test(t, placement_of_quorum_queues_has_rabbitmqs_keys_and_defaults);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
