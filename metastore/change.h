// SPDX-License-Identifier: Apache-2.0
// Changes as bytes, between the meta thread that makes them and the workers that tell their subscribers:
// u8 flags, u64 index, u64 version, path, u32 length, payload. Never stored, never sent to another node.
#pragma once
#include "metastore/command.h"

void change_encode(struct buf *to, const struct meta_change *c);
// `path` is where out->path will point. RC_MORE at the end. The bytes are our own: anything else is a bug
// (asserted).
MUST_USE enum rc change_next(struct reader *r, struct meta_change *out, struct meta_path *path);
