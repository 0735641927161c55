// SPDX-License-Identifier: Apache-2.0
// The sockets of AMQP 0-9-1 on one worker: accepts, reads and writes for connections (connection.h).
//
// With several workers each opens its own listening socket on the same address (SO_REUSEPORT) and the kernel
// spreads the connections. Thread: the worker's loop.
#pragma once
#include "node/amqp09/amqp09.h"
#include "node/base/rc.h"
#include <uv.h>

struct amqp09_listener;

struct amqp09_listener_config {
    struct amqp09 *service;
    uv_loop_t *loop;
    const char
        *address;    // "host:port"; host may be [IPv6] or empty (all addresses). Read during the call only.
    bool is_shared;  // Other workers listen on the same address.
};
// RC_INVALID: not an address; RC_SYSTEM: the operating system refused (logged).
MUST_USE enum rc amqp09_listener_open(const struct amqp09_listener_config *config,
                                      struct amqp09_listener **out);
// Takes no new connections any more (the socket is closed); those there are go on. Then close.
void amqp09_listener_stop(struct amqp09_listener *l);
// Closes the socket and drops its connections at once; memory goes when the loop has closed the handles.
void amqp09_listener_close(struct amqp09_listener *l);
// Last in a loop turn: writes each connection's output once, applies what connections asked for. Returns the
// monotonic ns at which the worker should take a turn at the latest.
uint64_t amqp09_listener_flush(struct amqp09_listener *l);
uint16_t amqp09_listener_port(
    const struct amqp09_listener *l);  // The port listened on (given as 0: chosen by the system).
