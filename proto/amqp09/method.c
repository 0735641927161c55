// SPDX-License-Identifier: Apache-2.0
// Readers and writers of all methods, generated from the list in method.h.
//
// Per field kind there is one macro for reading and one for writing; bits are gathered in a small state that
// is closed by the next field of another kind, so that consecutive bits share octets, lowest first.
#include "proto/amqp09/method.h"
#include "proto/amqp09/frame.h"
#include "proto/amqp09/table.h"

// ---- reading ------------------------------------------------------------------------------------

struct field_reader {
    struct reader r;
    uint8_t octet;  // Bits not yet handed out, lowest next.
    uint8_t bits_left;
    bool is_bad_utf8;
};

static bool read_bit(struct field_reader *f)
{
    if (f->bits_left == 0) {
        f->octet = reader_u8(&f->r);
        f->bits_left = 8;
    }
    bool bit = f->octet & 1;
    f->octet >>= 1;
    f->bits_left--;
    return bit;
}

static struct span read_short(struct field_reader *f)
{
    struct span s = reader_str8(&f->r);
    if (!utf8_is_valid(s)) {
        f->is_bad_utf8 = true;
    }
    return s;
}

static struct span read_table(struct field_reader *f)
{
    struct span s = reader_str32be(&f->r);
    if (table_check(s) != RC_OK) {
        f->r.is_bad = true;
    }
    return s;
}

#define READ_U8(f) ((f)->bits_left = 0, reader_u8(&(f)->r))
#define READ_U16(f) ((f)->bits_left = 0, reader_u16be(&(f)->r))
#define READ_U32(f) ((f)->bits_left = 0, reader_u32be(&(f)->r))
#define READ_U64(f) ((f)->bits_left = 0, reader_u64be(&(f)->r))
#define READ_SHORT(f) ((f)->bits_left = 0, read_short(f))
#define READ_LONG(f) ((f)->bits_left = 0, reader_str32be(&(f)->r))
#define READ_TABLE(f) ((f)->bits_left = 0, read_table(f))
#define READ_BIT(f) read_bit(f)

#define FIELD_READ(S, kind, field) m->field = READ_##kind(f);
#define METHOD_READER(FIELDS, name, class_id, method_id, sender, content)                                    \
    static void read_##name(struct field_reader *f, struct amqp_##name *m)                                   \
    {                                                                                                        \
        (void)f;                                                                                             \
        (void)m;                                                                                             \
        AMQP_##FIELDS(FIELD_READ, _)                                                                         \
    }
AMQP_METHODS(METHOD_READER)

enum rc amqp_method_read(struct span payload, struct amqp_method *out)
{
    struct field_reader f = {.r = reader_of(payload)};
    uint16_t class_id = reader_u16be(&f.r);
    uint16_t method_id = reader_u16be(&f.r);
    out->id = AMQP_METHOD_ID(class_id, method_id);
    if (f.r.is_bad) {
        out->id = 0;
        return RC_NOT_FOUND;
    }
    switch (out->id) {
#define METHOD_CASE(FIELDS, name, class_id, method_id, sender, content)                                      \
    case AMQP_##FIELDS##_ID:                                                                                 \
        read_##name(&f, &out->name);                                                                         \
        break;
        AMQP_METHODS(METHOD_CASE)
#undef METHOD_CASE
    default:
        return RC_NOT_FOUND;
    }
    TRY(reader_end(&f.r));
    return f.is_bad_utf8 ? RC_INVALID : RC_OK;
}

// ---- writing ------------------------------------------------------------------------------------

struct field_writer {
    struct buf *b;
    uint8_t bits_used;  // Of the last octet written; 0: none is open.
};

static void write_bit(struct field_writer *f, bool bit)
{
    if (f->bits_used == 0 || f->bits_used == 8) {
        buf_u8(f->b, 0);
        f->bits_used = 0;
    }
    f->b->ptr[f->b->len - 1] |= (uint8_t)((unsigned)bit << f->bits_used);
    f->bits_used++;
}

#define WRITE_U8(f, v) ((f)->bits_used = 0, buf_u8((f)->b, v))
#define WRITE_U16(f, v) ((f)->bits_used = 0, buf_u16be((f)->b, v))
#define WRITE_U32(f, v) ((f)->bits_used = 0, buf_u32be((f)->b, v))
#define WRITE_U64(f, v) ((f)->bits_used = 0, buf_u64be((f)->b, v))
#define WRITE_SHORT(f, v) ((f)->bits_used = 0, buf_str8((f)->b, v))
#define WRITE_LONG(f, v) ((f)->bits_used = 0, buf_str32be((f)->b, v))
#define WRITE_TABLE(f, v) ((f)->bits_used = 0, buf_str32be((f)->b, v))
#define WRITE_BIT(f, v) write_bit(f, v)

#define FIELD_WRITE(S, kind, field) WRITE_##kind(f, m->field);
#define METHOD_WRITER(FIELDS, name, class_id, method_id, sender, content)                                    \
    static void write_##name(struct field_writer *f, const struct amqp_##name *m)                            \
    {                                                                                                        \
        (void)m;                                                                                             \
        buf_u32be(f->b, AMQP_##FIELDS##_ID);                                                                 \
        AMQP_##FIELDS(FIELD_WRITE, _)                                                                        \
    }                                                                                                        \
    void amqp_send_##name(struct buf *b, uint16_t channel, const struct amqp_##name *m)                      \
    {                                                                                                        \
        size_t at = amqp_frame_begin(b, AMQP_FRAME_METHOD, channel);                                         \
        write_##name(&(struct field_writer){.b = b}, m);                                                     \
        amqp_frame_end(b, at);                                                                               \
    }
AMQP_METHODS(METHOD_WRITER)

void amqp_method_put(struct buf *b, const struct amqp_method *m)
{
    struct field_writer f = {.b = b};
    switch (m->id) {
#define METHOD_CASE(FIELDS, name, class_id, method_id, sender, content)                                      \
    case AMQP_##FIELDS##_ID:                                                                                 \
        write_##name(&f, &m->name);                                                                          \
        break;
        AMQP_METHODS(METHOD_CASE)
#undef METHOD_CASE
    default:
        assert(!"a method of the list");
    }
}

// ---- facts --------------------------------------------------------------------------------------

enum sender { CLIENT = 1, SERVER = 2, BOTH = 3, NEITHER = 0 };
struct method_facts {
    uint32_t id;
    enum sender sender;
    bool has_content;
    const char *name;
};

static const struct method_facts *facts(uint32_t id)
{
    static const struct method_facts all[] = {
#define METHOD_FACTS(FIELDS, name, class_id, method_id, sender, content)                                     \
    {AMQP_##FIELDS##_ID, sender, content, #name},
        AMQP_METHODS(METHOD_FACTS)
#undef METHOD_FACTS
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i].id == id) {
            return &all[i];
        }
    }
    return NULL;
}

const char *amqp_method_name(uint32_t id)
{
    // Names as people know them: the class before a dot, words joined by dashes.
    static _Thread_local char name[40];
    const struct method_facts *m = facts(id);
    if (!m) {
        return NULL;
    }
    bool has_dot = false;
    size_t i = 0;
    for (; m->name[i] != 0 && i + 1 < sizeof(name); i++) {
        bool is_underscore = m->name[i] == '_';
        name[i] = !is_underscore ? m->name[i] : has_dot ? '-' : '.';
        has_dot |= is_underscore;
    }
    name[i] = 0;
    return name;
}

bool amqp_method_is_from_client(uint32_t id)
{
    const struct method_facts *m = facts(id);
    return m && (m->sender & CLIENT);
}

bool amqp_method_has_content(uint32_t id)
{
    const struct method_facts *m = facts(id);
    return m && m->has_content;
}

bool utf8_is_valid(struct span text)
{
    size_t i = 0;
    while (i < text.len) {
        uint8_t c = text.ptr[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        uint32_t more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
        if (c < 0xC2 || c > 0xF4 || text.len - i <= more) {
            return false;
        }
        uint32_t code = c & (0x3Fu >> more);
        for (uint32_t k = 1; k <= more; k++) {
            uint8_t d = text.ptr[i + k];
            if ((d & 0xC0) != 0x80) {
                return false;
            }
            code = (code << 6) | (d & 0x3Fu);
        }
        bool is_overlong = (more == 2 && code < 0x800) || (more == 3 && code < 0x10000);
        if (is_overlong || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
            return false;
        }
        i += more + 1;
    }
    return true;
}
