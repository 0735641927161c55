// SPDX-License-Identifier: Apache-2.0
// What led to a violation, in short: the seed is run again in a process of its own that tells everything, and
// of what it tells the last lines are kept that concern the group in question, or no group at all (nodes,
// links, disks).
#include "tests/sim/sim_story.h"
#include "node/base/buf.h"
#include "node/base/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINES = 60, RECENT = 6, LINE_MAX_BYTES = 400 };

static char kept[LINES][LINE_MAX_BYTES];

// The number behind the first "group " or "queue " in the text; 0 none.
static uint64_t group_in(const char *text)
{
    const char *names[] = {"group ", "queue "};
    for (size_t i = 0; i < 2; i++) {
        const char *at = strstr(text, names[i]);
        if (at && at[6] >= '0' && at[6] <= '9') {
            return strtoull(at + 6, NULL, 10);
        }
    }
    return 0;
}

// What is said over and over is said once: the text behind the time is that of one of the last lines.
static bool is_repeated(const char *line, uint64_t count)
{
    const size_t time = strspn(line, " 0123456789.");
    for (uint64_t i = count > RECENT ? count - RECENT : 0; i < count; i++) {
        const char *before = kept[i % LINES];
        if (strcmp(before + strspn(before, " 0123456789."), line + time) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_telling(const char *line, uint64_t group)
{
    const uint64_t about = group_in(line);
    const bool is_file = strstr(line, ":   ") != NULL;  // Names of a starting node's files.
    return !is_file && !strstr(line, "(committed ") && (group == 0 || about == 0 || about == group);
}

void sim_story_print(uint64_t seed, const char *violation, void (*run)(uint64_t seed, uint64_t watched))
{
    const uint64_t group = group_in(violation);
    int fds[2];
    if (pipe(fds) != 0) {
        return;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDERR_FILENO);
        close(fds[0]);
        close(fds[1]);
        if (!freopen("/dev/null", "w", stdout)) {
            _exit(2);
        }
        run(seed, group);
        _exit(0);
    }
    close(fds[1]);
    uint64_t count = 0;
    FILE *f = pid < 0 ? NULL : fdopen(fds[0], "r");
    char line[LINE_MAX_BYTES];
    bool is_whole = true;
    while (f && fgets(line, sizeof(line), f)) {
        const bool is_start = is_whole;
        is_whole = strchr(line, '\n') != NULL;
        if (is_start && is_telling(line, group)) {
            line[strcspn(line, "\n")] = 0;
            if (!is_repeated(line, count)) {
                memcpy(kept[count++ % LINES], line, sizeof(line));
            }
        }
    }
    if (f) {
        fclose(f);
    }
    if (pid > 0) {
        waitpid(pid, NULL, 0);
    }
    struct buf out;
    buf_init(&out);
    for (uint64_t i = count > LINES ? count - LINES : 0; i < count; i++) {
        buf_printf(&out, "    %s\n", kept[i % LINES]);
    }
    buf_printf(&out, "  run it again: make sim SEED=%llu V=1\n", (unsigned long long)seed);
    // One write, so that stories told at the same time stay apart.
    fwrite(out.ptr, 1, out.len, stdout);
    fflush(stdout);
    buf_deinit(&out);
}
