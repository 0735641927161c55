// SPDX-License-Identifier: Apache-2.0
// The note "rejoin" (note.h). It goes before what it announces and stays until that is done, so a crash in
// between starts it over.
#include "node/server/note.h"
#include <stdio.h>
#include <stdlib.h>

enum { NOTE_BYTES_MAX = 1024 };

static const char *const kinds[] = {[NOTE_WIPE] = "wipe", [NOTE_JOIN] = "join", [NOTE_LOST] = "lost"};

static bool parse_store_id(const char *hex, uint8_t *out)
{
    for (int i = 0; i < STORE_ID_BYTES; i++) {
        unsigned int byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) {
            return false;
        }
        out[i] = (uint8_t)byte;
    }
    return true;
}

enum rc note_read(struct disk *d, struct note *out)
{
    uint8_t *bytes = NULL;
    size_t len = 0;
    TRY(disk_read_all(d, NOTE_FILE, NOTE_BYTES_MAX, &bytes, &len));
    char text[NOTE_BYTES_MAX + 1];
    memcpy(text, bytes, len);
    text[len] = '\0';
    free(bytes);
    *out = (struct note){.kind = NOTE_WIPE};
    char kind[8], store[2 * STORE_ID_BYTES + 1];
    unsigned long long incarnation = 0;
    const int fields = sscanf(text, "%7s %255s %300s %32s %llu", kind, out->name, out->address, store, &incarnation);
    out->has_store_id = fields == 5;
    out->incarnation = incarnation;
    bool is_known = false;
    for (int i = 0; fields >= 3 && i < (int)(sizeof(kinds) / sizeof(kinds[0])); i++) {
        if (strcmp(kind, kinds[i]) == 0) {
            out->kind = (enum note_kind)i;
            is_known = true;
        }
    }
    const bool is_good =
        is_known && (fields == 3 || fields == 5) &&
        (!out->has_store_id || (strlen(store) == 2 * STORE_ID_BYTES && parse_store_id(store, out->store_id)));
    return is_good ? RC_OK : RC_CORRUPT;
}

enum rc note_write(struct disk *d, const struct note *t)
{
    struct buf b = {0};
    buf_printf(&b, "%s %s %s", kinds[t->kind], t->name[0] ? t->name : "-", t->address[0] ? t->address : "-");
    if (t->has_store_id) {
        buf_printf(&b, " ");
        for (int i = 0; i < STORE_ID_BYTES; i++) {
            buf_printf(&b, "%02x", t->store_id[i]);
        }
        buf_printf(&b, " %llu", (unsigned long long)t->incarnation);
    }
    buf_printf(&b, "\n");
    enum rc rc = disk_replace(d, ".", NOTE_FILE, buf_span(&b));
    buf_deinit(&b);
    return rc;
}

enum rc note_remove(struct disk *d)
{
    TRY(d->unlink(d, NOTE_FILE));
    return d->sync_dir(d, ".");
}

// ---- wiping ------------------------------------------------------------------------------------------------------

struct wipe {
    struct disk *disk;
    const char *dir;
    enum rc rc;
};

static void wipe_file(void *ctx, const char *name)
{
    struct wipe *w = ctx;
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", w->dir, name);
    enum rc rc = w->disk->unlink(w->disk, path);
    if (rc != RC_OK && rc != RC_NO_FILE && w->rc == RC_OK) {
        w->rc = rc;
    }
}

enum rc note_wipe(struct disk *d)
{
    static const char *const dirs[] = {"wal", "seg", "meta"};
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        struct wipe w = {.disk = d, .dir = dirs[i]};
        enum rc rc = d->list(d, dirs[i], wipe_file, &w);
        if (rc == RC_NO_FILE) {
            continue;
        }
        TRY(rc);
        TRY(w.rc);
        TRY(d->sync_dir(d, dirs[i]));
    }
    // The identity last: without it what lies beside it counts as damage.
    static const char *const files[] = {"store.failed", "metadata-members", "identity"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        enum rc rc = d->unlink(d, files[i]);
        if (rc != RC_NO_FILE) {
            TRY(rc);
        }
    }
    return d->sync_dir(d, ".");
}
