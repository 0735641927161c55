// SPDX-License-Identifier: Apache-2.0
// The solo engine: one replica, the same log, no votes. See solo/README.md.
#pragma once
#include "consensus/consensus.h"

extern const struct consensus_ops solo_ops;
