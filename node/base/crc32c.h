// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli, iSCSI polynomial, RFC 3720 §B.4), in hardware where the processor has it.
// Every checksum of Warren is this one. A stored zero is a value like any other, never "no checksum" (P18).
// Thread: any.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Continues `crc` (0 to start) over `n` bytes.
uint32_t crc32c(uint32_t crc, const void *ptr, size_t n);
// Copies and sums in one pass. `to` and `from` must not overlap.
uint32_t crc32c_copy(uint32_t crc, void *to, const void *from, size_t n);
// The sum of two ranges one behind the other, from the sum of each; O(log len2). And back: given the sums of
// the first and of both together it returns that of the second.
uint32_t crc32c_combine(uint32_t crc1, uint32_t crc2, uint64_t len2);
