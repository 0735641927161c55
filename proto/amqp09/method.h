// SPDX-License-Identifier: Apache-2.0
// Every AMQP 0-9-1 method RabbitMQ knows (data-plane §1.6): one list from which structs, readers and writers
// come.
//
// A method's fields are given in wire order. Kinds: U8 U16 U32 U64 integers; SHORT short string; LONG long
// string; TABLE field table (content without its length); BIT boolean, consecutive ones share an octet. Spans
// are borrowed: on reading from the frame, on writing from the caller.
//
// Thread: any. No allocation except into the caller's struct buf.
#pragma once
#include "node/base/buf.h"
#include "node/base/reader.h"

// clang-format off
#define AMQP_CONNECTION_START(F, S) F(S, U8, version_major) F(S, U8, version_minor) F(S, TABLE, server_properties) \
    F(S, LONG, mechanisms) F(S, LONG, locales)
#define AMQP_CONNECTION_START_OK(F, S) F(S, TABLE, client_properties) F(S, SHORT, mechanism) F(S, LONG, response) F(S, SHORT, locale)
#define AMQP_CONNECTION_SECURE(F, S) F(S, LONG, challenge)
#define AMQP_CONNECTION_SECURE_OK(F, S) F(S, LONG, response)
#define AMQP_CONNECTION_TUNE(F, S) F(S, U16, channel_max) F(S, U32, frame_max) F(S, U16, heartbeat)
#define AMQP_CONNECTION_TUNE_OK(F, S) F(S, U16, channel_max) F(S, U32, frame_max) F(S, U16, heartbeat)
#define AMQP_CONNECTION_OPEN(F, S) F(S, SHORT, virtual_host) F(S, SHORT, capabilities) F(S, BIT, insist)
#define AMQP_CONNECTION_OPEN_OK(F, S) F(S, SHORT, known_hosts)
#define AMQP_CONNECTION_CLOSE(F, S) F(S, U16, reply_code) F(S, SHORT, reply_text) F(S, U16, class_id) F(S, U16, method_id)
#define AMQP_CONNECTION_CLOSE_OK(F, S)
#define AMQP_CONNECTION_BLOCKED(F, S) F(S, SHORT, reason)
#define AMQP_CONNECTION_UNBLOCKED(F, S)
#define AMQP_CONNECTION_UPDATE_SECRET(F, S) F(S, LONG, new_secret) F(S, SHORT, reason)
#define AMQP_CONNECTION_UPDATE_SECRET_OK(F, S)
#define AMQP_CHANNEL_OPEN(F, S) F(S, SHORT, out_of_band)
#define AMQP_CHANNEL_OPEN_OK(F, S) F(S, LONG, channel_id)
#define AMQP_CHANNEL_FLOW(F, S) F(S, BIT, active)
#define AMQP_CHANNEL_FLOW_OK(F, S) F(S, BIT, active)
#define AMQP_CHANNEL_CLOSE(F, S) F(S, U16, reply_code) F(S, SHORT, reply_text) F(S, U16, class_id) F(S, U16, method_id)
#define AMQP_CHANNEL_CLOSE_OK(F, S)
#define AMQP_ACCESS_REQUEST(F, S) F(S, SHORT, realm) F(S, BIT, exclusive) F(S, BIT, passive) F(S, BIT, active) F(S, BIT, write) F(S, BIT, read)
#define AMQP_ACCESS_REQUEST_OK(F, S) F(S, U16, ticket)
#define AMQP_EXCHANGE_DECLARE(F, S) F(S, U16, ticket) F(S, SHORT, exchange) F(S, SHORT, type) F(S, BIT, passive) F(S, BIT, durable) \
    F(S, BIT, auto_delete) F(S, BIT, internal) F(S, BIT, nowait) F(S, TABLE, arguments)
#define AMQP_EXCHANGE_DECLARE_OK(F, S)
#define AMQP_EXCHANGE_DELETE(F, S) F(S, U16, ticket) F(S, SHORT, exchange) F(S, BIT, if_unused) F(S, BIT, nowait)
#define AMQP_EXCHANGE_DELETE_OK(F, S)
#define AMQP_EXCHANGE_BIND(F, S) F(S, U16, ticket) F(S, SHORT, destination) F(S, SHORT, source) F(S, SHORT, routing_key) F(S, BIT, nowait) F(S, TABLE, arguments)
#define AMQP_EXCHANGE_BIND_OK(F, S)
#define AMQP_EXCHANGE_UNBIND(F, S) AMQP_EXCHANGE_BIND(F, S)
#define AMQP_EXCHANGE_UNBIND_OK(F, S)
#define AMQP_QUEUE_DECLARE(F, S) F(S, U16, ticket) F(S, SHORT, queue) F(S, BIT, passive) F(S, BIT, durable) F(S, BIT, exclusive) \
    F(S, BIT, auto_delete) F(S, BIT, nowait) F(S, TABLE, arguments)
#define AMQP_QUEUE_DECLARE_OK(F, S) F(S, SHORT, queue) F(S, U32, message_count) F(S, U32, consumer_count)
#define AMQP_QUEUE_BIND(F, S) F(S, U16, ticket) F(S, SHORT, queue) F(S, SHORT, exchange) F(S, SHORT, routing_key) F(S, BIT, nowait) F(S, TABLE, arguments)
#define AMQP_QUEUE_BIND_OK(F, S)
#define AMQP_QUEUE_PURGE(F, S) F(S, U16, ticket) F(S, SHORT, queue) F(S, BIT, nowait)
#define AMQP_QUEUE_PURGE_OK(F, S) F(S, U32, message_count)
#define AMQP_QUEUE_DELETE(F, S) F(S, U16, ticket) F(S, SHORT, queue) F(S, BIT, if_unused) F(S, BIT, if_empty) F(S, BIT, nowait)
#define AMQP_QUEUE_DELETE_OK(F, S) F(S, U32, message_count)
#define AMQP_QUEUE_UNBIND(F, S) F(S, U16, ticket) F(S, SHORT, queue) F(S, SHORT, exchange) F(S, SHORT, routing_key) F(S, TABLE, arguments)
#define AMQP_QUEUE_UNBIND_OK(F, S)
#define AMQP_BASIC_QOS(F, S) F(S, U32, prefetch_size) F(S, U16, prefetch_count) F(S, BIT, global)
#define AMQP_BASIC_QOS_OK(F, S)
#define AMQP_BASIC_CONSUME(F, S) F(S, U16, ticket) F(S, SHORT, queue) F(S, SHORT, consumer_tag) F(S, BIT, no_local) F(S, BIT, no_ack) \
    F(S, BIT, exclusive) F(S, BIT, nowait) F(S, TABLE, arguments)
#define AMQP_BASIC_CONSUME_OK(F, S) F(S, SHORT, consumer_tag)
#define AMQP_BASIC_CANCEL(F, S) F(S, SHORT, consumer_tag) F(S, BIT, nowait)
#define AMQP_BASIC_CANCEL_OK(F, S) F(S, SHORT, consumer_tag)
#define AMQP_BASIC_PUBLISH(F, S) F(S, U16, ticket) F(S, SHORT, exchange) F(S, SHORT, routing_key) F(S, BIT, mandatory) F(S, BIT, immediate)
#define AMQP_BASIC_RETURN(F, S) F(S, U16, reply_code) F(S, SHORT, reply_text) F(S, SHORT, exchange) F(S, SHORT, routing_key)
#define AMQP_BASIC_DELIVER(F, S) F(S, SHORT, consumer_tag) F(S, U64, delivery_tag) F(S, BIT, redelivered) F(S, SHORT, exchange) F(S, SHORT, routing_key)
#define AMQP_BASIC_GET(F, S) F(S, U16, ticket) F(S, SHORT, queue) F(S, BIT, no_ack)
#define AMQP_BASIC_GET_OK(F, S) F(S, U64, delivery_tag) F(S, BIT, redelivered) F(S, SHORT, exchange) F(S, SHORT, routing_key) F(S, U32, message_count)
#define AMQP_BASIC_GET_EMPTY(F, S) F(S, SHORT, cluster_id)
#define AMQP_BASIC_ACK(F, S) F(S, U64, delivery_tag) F(S, BIT, multiple)
#define AMQP_BASIC_REJECT(F, S) F(S, U64, delivery_tag) F(S, BIT, requeue)
#define AMQP_BASIC_RECOVER_ASYNC(F, S) F(S, BIT, requeue)
#define AMQP_BASIC_RECOVER(F, S) F(S, BIT, requeue)
#define AMQP_BASIC_RECOVER_OK(F, S)
#define AMQP_BASIC_NACK(F, S) F(S, U64, delivery_tag) F(S, BIT, multiple) F(S, BIT, requeue)
#define AMQP_BASIC_CREDIT(F, S) F(S, SHORT, consumer_tag) F(S, U32, credit) F(S, BIT, drain)
#define AMQP_BASIC_CREDIT_OK(F, S) F(S, U32, available)
#define AMQP_BASIC_CREDIT_DRAINED(F, S) F(S, SHORT, consumer_tag) F(S, U32, credit_drained)
#define AMQP_CONFIRM_SELECT(F, S) F(S, BIT, nowait)
#define AMQP_CONFIRM_SELECT_OK(F, S)
#define AMQP_TX_SELECT(F, S)
#define AMQP_TX_SELECT_OK(F, S)
#define AMQP_TX_COMMIT(F, S)
#define AMQP_TX_COMMIT_OK(F, S)
#define AMQP_TX_ROLLBACK(F, S)
#define AMQP_TX_ROLLBACK_OK(F, S)

// M(FIELDS, name, class id, method id, who may send it: CLIENT, SERVER, BOTH, or NEITHER (internal to
// RabbitMQ), has content)
#define AMQP_METHODS(M) \
    M(CONNECTION_START, connection_start, 10, 10, SERVER, 0) \
    M(CONNECTION_START_OK, connection_start_ok, 10, 11, CLIENT, 0) \
    M(CONNECTION_SECURE, connection_secure, 10, 20, SERVER, 0) \
    M(CONNECTION_SECURE_OK, connection_secure_ok, 10, 21, CLIENT, 0) \
    M(CONNECTION_TUNE, connection_tune, 10, 30, SERVER, 0) \
    M(CONNECTION_TUNE_OK, connection_tune_ok, 10, 31, CLIENT, 0) \
    M(CONNECTION_OPEN, connection_open, 10, 40, CLIENT, 0) \
    M(CONNECTION_OPEN_OK, connection_open_ok, 10, 41, SERVER, 0) \
    M(CONNECTION_CLOSE, connection_close, 10, 50, BOTH, 0) \
    M(CONNECTION_CLOSE_OK, connection_close_ok, 10, 51, BOTH, 0) \
    M(CONNECTION_BLOCKED, connection_blocked, 10, 60, SERVER, 0) \
    M(CONNECTION_UNBLOCKED, connection_unblocked, 10, 61, SERVER, 0) \
    M(CONNECTION_UPDATE_SECRET, connection_update_secret, 10, 70, CLIENT, 0) \
    M(CONNECTION_UPDATE_SECRET_OK, connection_update_secret_ok, 10, 71, SERVER, 0) \
    M(CHANNEL_OPEN, channel_open, 20, 10, CLIENT, 0) \
    M(CHANNEL_OPEN_OK, channel_open_ok, 20, 11, SERVER, 0) \
    M(CHANNEL_FLOW, channel_flow, 20, 20, BOTH, 0) \
    M(CHANNEL_FLOW_OK, channel_flow_ok, 20, 21, BOTH, 0) \
    M(CHANNEL_CLOSE, channel_close, 20, 40, BOTH, 0) \
    M(CHANNEL_CLOSE_OK, channel_close_ok, 20, 41, BOTH, 0) \
    M(ACCESS_REQUEST, access_request, 30, 10, CLIENT, 0) \
    M(ACCESS_REQUEST_OK, access_request_ok, 30, 11, SERVER, 0) \
    M(EXCHANGE_DECLARE, exchange_declare, 40, 10, CLIENT, 0) \
    M(EXCHANGE_DECLARE_OK, exchange_declare_ok, 40, 11, SERVER, 0) \
    M(EXCHANGE_DELETE, exchange_delete, 40, 20, CLIENT, 0) \
    M(EXCHANGE_DELETE_OK, exchange_delete_ok, 40, 21, SERVER, 0) \
    M(EXCHANGE_BIND, exchange_bind, 40, 30, CLIENT, 0) \
    M(EXCHANGE_BIND_OK, exchange_bind_ok, 40, 31, SERVER, 0) \
    M(EXCHANGE_UNBIND, exchange_unbind, 40, 40, CLIENT, 0) \
    M(EXCHANGE_UNBIND_OK, exchange_unbind_ok, 40, 51, SERVER, 0) \
    M(QUEUE_DECLARE, queue_declare, 50, 10, CLIENT, 0) \
    M(QUEUE_DECLARE_OK, queue_declare_ok, 50, 11, SERVER, 0) \
    M(QUEUE_BIND, queue_bind, 50, 20, CLIENT, 0) \
    M(QUEUE_BIND_OK, queue_bind_ok, 50, 21, SERVER, 0) \
    M(QUEUE_PURGE, queue_purge, 50, 30, CLIENT, 0) \
    M(QUEUE_PURGE_OK, queue_purge_ok, 50, 31, SERVER, 0) \
    M(QUEUE_DELETE, queue_delete, 50, 40, CLIENT, 0) \
    M(QUEUE_DELETE_OK, queue_delete_ok, 50, 41, SERVER, 0) \
    M(QUEUE_UNBIND, queue_unbind, 50, 50, CLIENT, 0) \
    M(QUEUE_UNBIND_OK, queue_unbind_ok, 50, 51, SERVER, 0) \
    M(BASIC_QOS, basic_qos, 60, 10, CLIENT, 0) \
    M(BASIC_QOS_OK, basic_qos_ok, 60, 11, SERVER, 0) \
    M(BASIC_CONSUME, basic_consume, 60, 20, CLIENT, 0) \
    M(BASIC_CONSUME_OK, basic_consume_ok, 60, 21, SERVER, 0) \
    M(BASIC_CANCEL, basic_cancel, 60, 30, BOTH, 0) \
    M(BASIC_CANCEL_OK, basic_cancel_ok, 60, 31, BOTH, 0) \
    M(BASIC_PUBLISH, basic_publish, 60, 40, CLIENT, 1) \
    M(BASIC_RETURN, basic_return, 60, 50, SERVER, 1) \
    M(BASIC_DELIVER, basic_deliver, 60, 60, SERVER, 1) \
    M(BASIC_GET, basic_get, 60, 70, CLIENT, 0) \
    M(BASIC_GET_OK, basic_get_ok, 60, 71, SERVER, 1) \
    M(BASIC_GET_EMPTY, basic_get_empty, 60, 72, SERVER, 0) \
    M(BASIC_ACK, basic_ack, 60, 80, BOTH, 0) \
    M(BASIC_REJECT, basic_reject, 60, 90, CLIENT, 0) \
    M(BASIC_RECOVER_ASYNC, basic_recover_async, 60, 100, CLIENT, 0) \
    M(BASIC_RECOVER, basic_recover, 60, 110, CLIENT, 0) \
    M(BASIC_RECOVER_OK, basic_recover_ok, 60, 111, SERVER, 0) \
    M(BASIC_NACK, basic_nack, 60, 120, BOTH, 0) \
    M(BASIC_CREDIT, basic_credit, 60, 200, NEITHER, 0) \
    M(BASIC_CREDIT_OK, basic_credit_ok, 60, 201, NEITHER, 0) \
    M(BASIC_CREDIT_DRAINED, basic_credit_drained, 60, 202, NEITHER, 0) \
    M(CONFIRM_SELECT, confirm_select, 85, 10, CLIENT, 0) \
    M(CONFIRM_SELECT_OK, confirm_select_ok, 85, 11, SERVER, 0) \
    M(TX_SELECT, tx_select, 90, 10, CLIENT, 0) \
    M(TX_SELECT_OK, tx_select_ok, 90, 11, SERVER, 0) \
    M(TX_COMMIT, tx_commit, 90, 20, CLIENT, 0) \
    M(TX_COMMIT_OK, tx_commit_ok, 90, 21, SERVER, 0) \
    M(TX_ROLLBACK, tx_rollback, 90, 30, CLIENT, 0) \
    M(TX_ROLLBACK_OK, tx_rollback_ok, 90, 31, SERVER, 0)
// clang-format on

#define AMQP_METHOD_ID(class_id, method_id) (((uint32_t)(class_id) << 16) | (uint32_t)(method_id))

// AMQP_BASIC_PUBLISH_ID and so on.
enum {
#define METHOD_ENUM(FIELDS, name, class_id, method_id, sender, content)                                      \
    AMQP_##FIELDS##_ID = AMQP_METHOD_ID(class_id, method_id),
    AMQP_METHODS(METHOD_ENUM)
#undef METHOD_ENUM
};

#define AMQP_C_U8 uint8_t
#define AMQP_C_U16 uint16_t
#define AMQP_C_U32 uint32_t
#define AMQP_C_U64 uint64_t
#define AMQP_C_SHORT struct span
#define AMQP_C_LONG struct span
#define AMQP_C_TABLE struct span
#define AMQP_C_BIT bool

// struct amqp_basic_publish { uint16_t ticket; struct span exchange; ... } and so on.
#define METHOD_FIELD(S, kind, name) AMQP_C_##kind name;
#define METHOD_STRUCT(FIELDS, name, class_id, method_id, sender, content)                                    \
    struct amqp_##name {                                                                                     \
        AMQP_##FIELDS(METHOD_FIELD, _)                                                                       \
    };
AMQP_METHODS(METHOD_STRUCT)
#undef METHOD_STRUCT
#undef METHOD_FIELD

struct amqp_method {
    uint32_t id;  // AMQP_METHOD_ID of the union's member.
    union {
#define METHOD_MEMBER(FIELDS, name, class_id, method_id, sender, content) struct amqp_##name name;
        AMQP_METHODS(METHOD_MEMBER)
#undef METHOD_MEMBER
    };
};

// Reads a method frame's payload. RC_NOT_FOUND: no such method (out->id is set if the payload had one);
// RC_MALFORMED: arguments that do not decode (tables are checked completely); RC_INVALID: a short string that
// is not UTF-8.
MUST_USE enum rc amqp_method_read(struct span payload, struct amqp_method *out);
// Appends class and method id and the arguments (the payload of a method frame).
void amqp_method_put(struct buf *b, const struct amqp_method *m);

// Appends a whole method frame: amqp_send_basic_ack(&out, channel, &(struct amqp_basic_ack){...}).
#define METHOD_SEND(FIELDS, name, class_id, method_id, sender, content)                                      \
    void amqp_send_##name(struct buf *b, uint16_t channel, const struct amqp_##name *m);
AMQP_METHODS(METHOD_SEND)
#undef METHOD_SEND

// "basic.publish"; NULL if there is no such method.
const char *amqp_method_name(uint32_t id);
bool amqp_method_is_from_client(uint32_t id);  // A client may send it.
bool amqp_method_has_content(uint32_t id);
bool utf8_is_valid(struct span text);  // RFC 3629.
