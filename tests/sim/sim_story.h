// SPDX-License-Identifier: Apache-2.0
// The events that led to a violation, shortened (sim_story.c).
#pragma once
#include <stdint.h>

// Prints them, and how to run the seed again. `violation` says which group it is about ("" if it ended in an
// assertion); `run` runs the seed telling everything on stderr, with more of the group `watched`.
void sim_story_print(uint64_t seed, const char *violation, void (*run)(uint64_t seed, uint64_t watched));
