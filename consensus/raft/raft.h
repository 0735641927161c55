// SPDX-License-Identifier: Apache-2.0
// The raft engine: N replicas, one leader per term, commit on a majority of disks. See raft/README.md.
#pragma once
#include "consensus/consensus.h"

extern const struct consensus_ops raft_ops;
