// SPDX-License-Identifier: Apache-2.0
// Every bound of the node in one place: the number, why it, and what happens when it is reached (decision 10).
// Settles, cancels, deletes and membership keep a reserved fifth of each bound: LIMIT_RESERVED.
#pragma once

// The share of a bound that publishes may fill; the rest is kept for work that frees memory.
#define LIMIT_FOR_PUBLISH(bound) ((bound) / 5 * 4)

enum {
    // A session's commands not yet applied: at either the channel stops being read (decision 1).
    LIMIT_SESSION_COMMANDS = 1024,
    LIMIT_SESSION_BYTES = 4 << 20,
    // Bytes proposed and not committed in one group: proposals answer RC_FULL.
    LIMIT_GROUP_UNCOMMITTED_BYTES = 16 << 20,
    // Bytes in flight to one peer on one lane, unacknowledged: the peer's groups wait for acknowledgements.
    LIMIT_PEER_IN_FLIGHT_BYTES = 8 << 20,
    // Output not yet taken by a peer's socket: net_send answers RC_FULL.
    LIMIT_LANE_OUTPUT_BYTES = 8 << 20,
    // Bytes handed to the WAL thread and not durable: groups stop taking proposals.
    LIMIT_WAL_PENDING_BYTES = 16 << 20,
    // One WAL batch unless it is one record (decision 4).
    LIMIT_WAL_BATCH_BYTES = 4 << 20,
    // A larger record is written to the WAL in pieces of this size, between which batches of others go
    // (decision 4): the longest that a small message waits for a large one's bytes is about two of these on each node.
    LIMIT_WAL_SLICE_BYTES = 1 << 20,
    // Size of a WAL file (decision 3). A larger record gets a file of its own size.
    LIMIT_WAL_FILE_BYTES = 64 << 20,
    // Memory for entry bodies of one node, warren.memtable_bytes (decision 3).
    LIMIT_MEMTABLE_BYTES = 32 << 20,
    // Arena chunk: the unit of eviction. A larger record gets a chunk of its own.
    LIMIT_CHUNK_BYTES = 1 << 20,
    // Output not yet taken by a client's socket: deliveries to that connection stop.
    LIMIT_CONNECTION_OUTPUT_BYTES = 1 << 20,
    // One read of a client's socket.
    LIMIT_CONNECTION_READ_BYTES = 256 << 10,
    // Bytes of deliveries to a remote consumer, not yet taken by its client's socket (decision 9), beside one message.
    LIMIT_REMOTE_CONSUMER_WINDOW = 1 << 20,
    // Messages one checkout moves in one apply (decision 9).
    LIMIT_CHECKOUT_MESSAGES = 512,
    // Prefetch 0 in the state machine (decision 9).
    LIMIT_PREFETCH_UNLIMITED = 2000,
    // max_message_size: default and ceiling (decision 4).
    LIMIT_MESSAGE_BYTES_DEFAULT = 16 << 20,
    LIMIT_MESSAGE_BYTES_MAX = 512 << 20,
    // A body that is still arriving, per connection and per node: the connection's socket is not read meanwhile.
    LIMIT_PARTIAL_NODE_BYTES = 512 << 20,
    // A frame between nodes; an entry above this travels in fragments (decision 4).
    LIMIT_FRAME_BYTES = 256 << 10,
    // Replicas of one group.
    LIMIT_MEMBERS = 16,
    LIMIT_VOTERS = 7,
    // A snapshot chunk's payload.
    LIMIT_SNAPSHOT_CHUNK_BYTES = 1 << 20,
};
