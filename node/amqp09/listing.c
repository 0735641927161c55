// SPDX-License-Identifier: Apache-2.0
// What there is, for list_connections, list_channels and list_consumers.
#include "node/amqp09/service.h"

static void connection_describe(const struct connection *c, struct amqp09_connection_info *i)
{
    *i = (struct amqp09_connection_info){
        .id = c->id,
        .name = span_str(c->name),
        .user = c->user_name,
        .vhost = c->vhost_name,
        .peer_host = span_str(c->peer.peer_host),
        .host = span_str(c->peer.host),
        .peer_port = c->peer.peer_port,
        .port = c->peer.port,
        .state = connection_state_name(c),
        .protocol = "AMQP 0-9-1",
        .auth_mechanism = span_str(c->mechanism),
        .channels = map_count(&c->channels),
        .channel_max = c->channel_max,
        .frame_max = c->frame_max,
        .timeout = c->heartbeat_s,
        .recv_oct = c->recv_oct,
        .recv_cnt = c->recv_cnt,
        .send_oct = c->send_oct,
        .send_cnt = c->send_cnt,
        .send_pend = connection_output_waiting(c),
        .connected_at = c->connected_at_ms,
        .client_properties = buf_span(&c->client_properties),
        .connection_name = c->client_name,
    };
}

void amqp09_connections_each(struct amqp09 *s, amqp09_connection_fn *each, void *ctx)
{
    list_each(item, &s->connections)
    {
        struct amqp09_connection_info info;
        connection_describe(list_entry(item, struct connection, link), &info);
        each(ctx, &info);
    }
}

static void channel_describe(const struct channel *ch, struct amqp09_channel_info *i)
{
    const struct connection *c = ch->connection;
    *i = (struct amqp09_channel_info){
        .connection_id = c->id,
        .connection_name = span_str(c->name),
        .user = c->user_name,
        .vhost = c->vhost_name,
        .number = ch->number,
        .is_transactional = ch->tx != NULL,
        .is_confirm = ch->confirms.is_on,
        .consumer_count = map_count(&ch->consumers),
        .prefetch_count = ch->prefetch,
        .messages_unacknowledged = ch->unacked.count,
        .messages_unconfirmed = ch->confirms.is_on ? confirms_open(&ch->confirms) : 0,
        .state = ch->state == CHANNEL_CLOSING ? "closing"
                 : c->pauses || c->throttles  ? "flow"
                                              : "running",
    };
    channel_tx_counts(ch, &i->messages_uncommitted, &i->acks_uncommitted);
}

void amqp09_channels_each(struct amqp09 *s, amqp09_channel_fn *each, void *ctx)
{
    list_each(item, &s->connections)
    {
        struct connection *c = list_entry(item, struct connection, link);
        list_each(child, &c->channel_list)
        {
            struct amqp09_channel_info info;
            channel_describe(list_entry(child, struct channel, link), &info);
            each(ctx, &info);
        }
    }
}

static void consumers_of(const struct channel *ch, amqp09_consumer_fn *each, void *ctx)
{
    struct amqp09_channel_info channel;
    channel_describe(ch, &channel);
    uint32_t pos = 0;
    const struct consumer *k;
    while ((k = map_next(&ch->consumers, &pos, NULL, NULL))) {
        struct amqp09_consumer_info info = {
            .channel = &channel,
            .queue_name = k->queue->name,
            .consumer_tag = k->tag,
            .is_ack_required = !k->is_no_ack,
            .is_exclusive = k->is_exclusive,
            .prefetch_count = k->prefetch,
            .arguments = k->arguments,
        };
        each(ctx, &info);
    }
}

void amqp09_consumers_each(struct amqp09 *s, amqp09_consumer_fn *each, void *ctx)
{
    list_each(item, &s->connections)
    {
        struct connection *c = list_entry(item, struct connection, link);
        list_each(child, &c->channel_list)
        {
            consumers_of(list_entry(child, struct channel, link), each, ctx);
        }
    }
}
