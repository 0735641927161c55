// SPDX-License-Identifier: Apache-2.0
// warrenctl: RabbitMQ's administration verbs under one program. Parses options anywhere on the line, sends one request
// over the node's Unix socket, prints the answer as a table or JSON, exits with sysexits codes (operator-plane §1.2).
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_USAGE = 64, EXIT_DATAERR = 65, EXIT_UNAVAILABLE = 69, EXIT_SOFTWARE = 70, EXIT_TEMPFAIL = 75 };
enum { RESTART_S = 75 };  // A node that joins is waited for; it gives up asking after 60 s itself.

struct options {
    const char *node, *socket, *formatter, *verb;
    bool is_quiet, is_silent, no_headers;
    json_t *args, *options;
};

static const char usage_text[] =
    "warrenctl [-n NODE] [--socket PATH] [-p VHOST] [-t SECONDS] [-q] [-s] [--formatter table|json|csv] VERB "
    "[ARGUMENTS]\n\nNodes:   check_if_node_is_quorum_critical, await_online_quorum_plus_one,\n"
    "         status, cluster_status, ping, drain, revive, await_startup, await_online_nodes COUNT, "
    "join_cluster NODE[=HOST:PORT],\n         forget_cluster_node NODE, stop\n"
    "Alarms:  alarms, check_alarms, check_local_alarms, set_disk_free_limit SIZE | mem_relative SHARE,\n"
    "         set_vm_memory_high_watermark SHARE | absolute SIZE\n"
    "Lists:   list_queues, list_exchanges, list_bindings, list_connections, list_channels, list_consumers,\n"
    "         list_users, list_vhosts, list_permissions, list_user_permissions USER   (each takes the names "
    "of the columns wanted)\nQueues:  quorum_status QUEUE, transfer_leadership QUEUE NODE, delete_queue "
    "QUEUE, purge_queue QUEUE\nMembers: add_member QUEUE NODE, delete_member QUEUE NODE, grow NODE all|even, "
    "shrink NODE, rebalance all|quorum\n         [--membership promotable|voter|non_voter] [--queue-pattern "
    "RE] [--vhost-pattern RE] [--errors-only]\nUsers:   add_user NAME PASSWORD, change_password NAME "
    "PASSWORD, authenticate_user NAME PASSWORD, delete_user NAME,\n         set_permissions USER CONFIGURE "
    "WRITE READ\n\nThe node is found through its command socket: --socket, WARREN_CONTROL_SOCKET, or "
    "/var/lib/warren/NODE/control.sock.\n";

static void fail(int code, const char *text)
{
    fprintf(stderr, "%s\n", text);
    exit(code);
}

// True if argv[*i] is the option; its value ("--opt=value" or the next word) is stored.
static bool take_value(int argc, char **argv, int *i, const char *short_name, const char *long_name, const char **value)
{
    size_t n = strlen(long_name);
    if (strncmp(argv[*i], long_name, n) == 0 && argv[*i][n] == '=') {
        *value = argv[*i] + n + 1;
        return true;
    }
    if (strcmp(argv[*i], long_name) == 0 || (short_name && strcmp(argv[*i], short_name) == 0)) {
        if (*i + 1 >= argc) {
            fprintf(stderr, "Error (argument validation): option %s needs a value\n", argv[*i]);
            exit(EXIT_USAGE);
        }
        *value = argv[++*i];
        return true;
    }
    return false;
}

static void parse(int argc, char **argv, struct options *o)
{
    *o = (struct options){.formatter = "table", .args = json_array(), .options = json_object()};
    bool only_args = false;
    for (int i = 1; i < argc; i++) {
        const char *v = NULL;
        if (only_args || argv[i][0] != '-' || strcmp(argv[i], "-") == 0) {
            if (!o->verb) {
                o->verb = argv[i];
            } else {
                json_array_append_new(o->args, json_string(argv[i]));
            }
        } else if (strcmp(argv[i], "--") == 0) {
            only_args = true;
        } else if (strcmp(argv[i], "-q") == 0 || strcmp(argv[i], "--quiet") == 0) {
            o->is_quiet = true;
        } else if (strcmp(argv[i], "-s") == 0 || strcmp(argv[i], "--silent") == 0) {
            o->is_quiet = o->is_silent = true;
        } else if (strcmp(argv[i], "--no-table-headers") == 0) {
            o->no_headers = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-?") == 0) {
            fputs(usage_text, stdout);
            exit(0);
        } else if (strcmp(argv[i], "--version") == 0) {
            puts("4.3.6");
            exit(0);
        } else if (take_value(argc, argv, &i, "-n", "--node", &o->node) ||
                   take_value(argc, argv, &i, NULL, "--socket", &o->socket) ||
                   take_value(argc, argv, &i, NULL, "--formatter", &o->formatter)) {
            continue;
        } else if (take_value(argc, argv, &i, "-p", "--vhost", &v)) {
            json_object_set_new(o->options, "vhost", json_string(v));
        } else if (take_value(argc, argv, &i, "-t", "--timeout", &v)) {
            json_object_set_new(o->options, "timeout", json_string(v));
        } else if (take_value(argc, argv, &i, NULL, "--membership", &v)) {
            json_object_set_new(o->options, "membership", json_string(v));
        } else if (take_value(argc, argv, &i, NULL, "--queue-pattern", &v)) {
            json_object_set_new(o->options, "queue-pattern", json_string(v));
        } else if (take_value(argc, argv, &i, NULL, "--vhost-pattern", &v)) {
            json_object_set_new(o->options, "vhost-pattern", json_string(v));
        } else if (strcmp(argv[i], "--errors-only") == 0) {
            json_object_set_new(o->options, "errors-only", json_string("true"));
        } else if (strcmp(argv[i], "--online") == 0 || strcmp(argv[i], "--offline") == 0 ||
                   strcmp(argv[i], "--local") == 0 || strcmp(argv[i], "-l") == 0 ||
                   strcmp(argv[i], "--longnames") == 0) {
            continue;
        } else {
            fprintf(stderr, "Error (argument validation): unknown option %s\n%s", argv[i], usage_text);
            exit(EXIT_USAGE);
        }
    }
}

// ---- the connection ------------------------------------------------------------------------------------------------

static int try_connect(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(a.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) != 0) {
        int e = errno;
        close(fd);
        errno = e;
        return -1;
    }
    return fd;
}

// The node and its socket as told by options, environment or convention.
struct place {
    const char *node, *socket;
    char name[600], path[4096];
};

static void find(const struct options *o, struct place *p)
{
    char host[256] = "localhost";
    const char *env_node = getenv("WARREN_NODENAME") ? getenv("WARREN_NODENAME") : getenv("RABBITMQ_NODENAME");
    gethostname(host, sizeof(host) - 1);
    snprintf(p->name, sizeof(p->name), "warren@%s", host);
    p->node = o->node ? o->node : env_node ? env_node : p->name;
    snprintf(p->path, sizeof(p->path), "/var/lib/warren/%s/control.sock", p->node);
    p->socket = o->socket ? o->socket : getenv("WARREN_CONTROL_SOCKET");
    p->socket = p->socket ? p->socket : p->path;
}

static int dial(const struct options *o)
{
    struct place p;
    find(o, &p);
    int fd = try_connect(p.socket);
    if (fd < 0) {
        fprintf(stderr,
                "Error: unable to perform an operation on node '%s'. Please see diagnostics information "
                "below.\n\nDIAGNOSTICS\n===========\n\n * command socket: %s\n * reason: %s\n\n"
                "Is the node running on this host, and are you allowed to open its socket? Another node's "
                "socket can be named with --socket, and -n NODE is then asked through it.\n",
                p.node, p.socket, strerror(errno));
        exit(EXIT_UNAVAILABLE);
    }
    return fd;
}

// NULL if the connection ends before there is an answer.
static json_t *ask(int fd, json_t *request)
{
    char *text = json_dumps(request, JSON_COMPACT);
    size_t len = strlen(text), at = 0;
    text[len++] = '\n';  // Over the NUL: the length is kept apart.
    while (at < len) {
        ssize_t n = write(fd, text + at, len - at);
        if (n < 0) {
            free(text);
            return NULL;
        }
        at += (size_t)n;
    }
    free(text);
    char *in = NULL;
    size_t used = 0, cap = 0;
    do {
        if (used == cap) {
            cap = cap ? cap * 2 : 65536;
            in = realloc(in, cap);
            if (!in) {
                fail(EXIT_SOFTWARE, "Error: out of memory");
            }
        }
        ssize_t n = read(fd, in + used, cap - used);
        if (n <= 0) {
            free(in);
            return NULL;
        }
        used += (size_t)n;
    } while (in[used - 1] != '\n');
    json_t *answer = json_loadb(in, used, JSON_DECODE_ANY, NULL);
    free(in);
    return answer;
}

// The node starts itself again to join (join_cluster): it is asked the same until it has joined, or says why not.
static json_t *ask_again(const struct options *o, json_t *request)
{
    struct place p;
    find(o, &p);
    struct timespec pause = {.tv_nsec = 50000000};
    const time_t until = time(NULL) + RESTART_S;
    while (time(NULL) < until) {
        nanosleep(&pause, NULL);
        int fd = try_connect(p.socket);
        json_t *answer = fd >= 0 ? ask(fd, request) : NULL;
        if (fd >= 0) {
            close(fd);
        }
        if (json_is_object(answer) && !json_is_true(json_object_get(answer, "restarting"))) {
            return answer;
        }
        json_decref(answer);
    }
    fail(EXIT_TEMPFAIL, "Error: the node did not come back in time; see its log");
    return NULL;
}

// ---- printing ------------------------------------------------------------------------------------------------------

static void print_cell(json_t *v)
{
    if (json_is_string(v)) {
        fwrite(json_string_value(v), 1, json_string_length(v), stdout);
    } else if (json_is_array(v) && json_array_size(v) > 0 && json_is_string(json_array_get(v, 0))) {
        fputc('[', stdout);
        for (size_t i = 0; i < json_array_size(v); i++) {
            printf("%s%s", i ? ", " : "", json_string_value(json_array_get(v, i)));
        }
        fputc(']', stdout);
    } else {
        char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        fputs(text && strcmp(text, "{}") != 0 ? text : "[]", stdout);
        free(text);
    }
}

static void print_rows_json(json_t *columns, json_t *rows)
{
    puts("[");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *o = json_object();
        for (size_t k = 0; k < json_array_size(columns); k++) {
            json_object_set(o, json_string_value(json_array_get(columns, k)),
                            json_array_get(json_array_get(rows, i), k));
        }
        char *text = json_dumps(o, JSON_COMPACT);
        printf("%s%s\n", i ? "," : "", text);
        free(text);
        json_decref(o);
    }
    puts("]");
}

static void print_csv_cell(json_t *v)
{
    char *text = json_is_string(v) ? strdup(json_string_value(v)) : json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text && strpbrk(text, ",\"\r\n")) {
        fputc('"', stdout);
        for (const char *p = text; *p; p++) {
            if (*p == '"') {
                fputc('"', stdout);
            }
            fputc(*p, stdout);
        }
        fputc('"', stdout);
    } else {
        fputs(text ? text : "", stdout);
    }
    free(text);
}

static void print_list(struct options *o, json_t *answer)
{
    json_t *columns = json_object_get(answer, "columns"), *rows = json_object_get(answer, "rows");
    if (strcmp(o->formatter, "json") == 0) {
        print_rows_json(columns, rows);
        return;
    }
    bool is_csv = strcmp(o->formatter, "csv") == 0;
    if (!o->is_quiet && !is_csv) {
        puts(json_string_value(json_object_get(answer, "banner")));
    }
    const char *between = is_csv ? "," : "\t";
    for (size_t k = 0; !o->is_silent && !o->no_headers && k < json_array_size(columns) &&
                       (json_array_size(rows) > 0 || is_csv);
         k++) {
        printf("%s%s%s", k ? between : "", json_string_value(json_array_get(columns, k)),
               k + 1 == json_array_size(columns) ? "\n" : "");
    }
    // Sentences instead of a table: a script that asks for silence goes by the exit code.
    const bool is_hidden = o->is_silent && json_array_size(columns) == 0;
    for (size_t i = 0; !is_hidden && i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        for (size_t k = 0; k < json_array_size(row); k++) {
            fputs(k ? between : "", stdout);
            if (is_csv) {
                print_csv_cell(json_array_get(row, k));
            } else {
                print_cell(json_array_get(row, k));
            }
        }
        fputc('\n', stdout);
    }
}

static void print_names(const char *title, json_t *names)
{
    printf("%s\n\n", title);
    for (size_t i = 0; i < json_array_size(names); i++) {
        printf("%s\n", json_string_value(json_array_get(names, i)));
    }
    printf("%s\n", json_array_size(names) ? "" : "(none)\n");
}

static void print_alarms(json_t *alarms)
{
    for (size_t i = 0; i < json_array_size(alarms); i++) {
        json_t *a = json_array_get(alarms, i);
        printf("%s alarm on node %s\n",
               strcmp(json_string_value(json_object_get(a, "resource")), "memory") == 0 ? "Memory"
                                                                                        : "Free disk space",
               json_string_value(json_object_get(a, "node")));
    }
    if (json_array_size(alarms) == 0) {
        puts("(none)");
    }
}

static void print_cluster_status(json_t *o, struct options *options)
{
    if (!options->is_quiet) {
        // Listeners are told by the node that was asked, under its name.
        const char *asked = json_object_iter_key(json_object_iter(json_object_get(o, "listeners")));
        printf("Cluster status of node %s ...\n", asked ? asked : "?");
    }
    printf("Basics\n\nCluster name: %s\nMetadata leader: %s\n\n", json_string_value(json_object_get(o, "cluster_name")),
           json_string_value(json_object_get(o, "metadata_leader")));
    print_names("Disk Nodes", json_object_get(o, "disk_nodes"));
    print_names("Running Nodes", json_object_get(o, "running_nodes"));
    printf("Versions\n\n");
    const char *name;
    json_t *v;
    json_object_foreach(json_object_get(o, "versions"), name, v)
    {
        printf("%s: RabbitMQ %s\n", name, json_string_value(json_object_get(v, "rabbitmq_version")));
    }
    printf("\nMaintenance status\n\n");
    json_object_foreach(json_object_get(o, "maintenance_status"), name, v)
    {
        printf("Node: %s, status: %s\n", name, json_string_value(v));
    }
    printf("\nAlarms\n\n");
    print_alarms(json_object_get(o, "alarms"));
    printf("\nNetwork Partitions\n\n(none)\n\nListeners\n\n");
    json_object_foreach(json_object_get(o, "listeners"), name, v)
    {
        for (size_t i = 0; i < json_array_size(v); i++) {
            json_t *l = json_array_get(v, i);
            printf("Node: %s, interface: %s, port: %lld, protocol: %s, purpose: %s\n", name,
                   json_string_value(json_object_get(l, "interface")),
                   (long long)json_integer_value(json_object_get(l, "port")),
                   json_string_value(json_object_get(l, "protocol")),
                   json_string_value(json_object_get(l, "purpose")));
        }
    }
}

static void print_object(json_t *o, int depth)
{
    const char *name;
    json_t *v;
    json_object_foreach(o, name, v)
    {
        printf("%*s%s: ", depth * 2, "", name);
        if (depth == 0 && strcmp(name, "alarms") == 0) {
            print_alarms(v);
        } else if (json_is_object(v) && json_object_size(v) > 0) {
            puts("");
            print_object(v, depth + 1);
        } else {
            print_cell(v);
            puts("");
        }
    }
}

static int print_answer(struct options *o, json_t *answer)
{
    int code = (int)json_integer_value(json_object_get(answer, "exit"));
    const char *error = json_string_value(json_object_get(answer, "error"));
    bool is_json = strcmp(o->formatter, "json") == 0;
    json_t *banner = json_object_get(answer, "banner"), *rows = json_object_get(answer, "rows");
    if (banner && !rows && !o->is_quiet && strcmp(o->formatter, "table") == 0) {
        puts(json_string_value(banner));
    }
    if (error) {
        if (is_json) {
            char *text = json_dumps(json_object_get(answer, "error"), JSON_ENCODE_ANY);
            printf("{\"result\":\"error\",\"message\":%s}\n", text);
            free(text);
        }
        fprintf(stderr, "%s%s\n", strncmp(error, "Error", 5) == 0 ? "" : "Error: ", error);
        return code;
    }
    json_t *object = json_object_get(answer, "object");
    if (object && is_json) {
        char *text = json_dumps(object, JSON_COMPACT);
        puts(text);
        free(text);
    } else if (json_object_get(answer, "rows")) {
        print_list(o, answer);
    } else if (object && strcmp(o->verb, "cluster_status") == 0) {
        print_cluster_status(object, o);
    } else if (object) {
        print_object(object, 0);
    } else if (is_json) {
        json_object_del(answer, "exit");
        json_object_del(answer, "banner");
        char *text = json_dumps(answer, JSON_COMPACT);
        puts(text);
        free(text);
    } else if (json_object_get(answer, "message") && !o->is_quiet) {
        puts(json_string_value(json_object_get(answer, "message")));
    }
    return code;
}

static void read_password(struct options *o)
{
    bool wants = (strcmp(o->verb, "add_user") == 0 || strcmp(o->verb, "change_password") == 0 ||
                  strcmp(o->verb, "authenticate_user") == 0) &&
                 json_array_size(o->args) == 1;
    char line[1024];
    if (wants) {
        if (!fgets(line, sizeof(line), stdin)) {
            fail(EXIT_DATAERR, "Error: a password is needed, as an argument or on standard input");
        }
        line[strcspn(line, "\r\n")] = '\0';
        json_array_append_new(o->args, json_string(line));
    }
}

int main(int argc, char **argv)
{
    struct options o;
    parse(argc, argv, &o);
    if (!o.verb) {
        fputs(usage_text, stderr);
        return EXIT_USAGE;
    }
    if (strcmp(o.verb, "help") == 0 || strcmp(o.verb, "version") == 0) {
        fputs(strcmp(o.verb, "help") == 0 ? usage_text : "4.3.6\n", stdout);
        return 0;
    }
    if (strcmp(o.formatter, "table") != 0 && strcmp(o.formatter, "json") != 0 && strcmp(o.formatter, "csv") != 0) {
        fail(EXIT_USAGE, "Error (argument validation): the formatters are table, json and csv");
    }
    read_password(&o);
    json_t *request = json_pack("{s:s, s:O, s:O}", "verb", o.verb, "args", o.args, "options", o.options);
    if (o.node && strchr(o.node, '@')) {
        json_object_set_new(request, "node", json_string(o.node));
    }
    if (strcmp(o.verb, "join_cluster") == 0 && !o.is_quiet && strcmp(o.formatter, "table") == 0 &&
        json_array_size(o.args) == 1) {
        struct place p;
        find(&o, &p);
        printf("Clustering node %s with %s\n", p.node, json_string_value(json_array_get(o.args, 0)));
        fflush(stdout);
    }
    signal(SIGPIPE, SIG_IGN);
    json_t *answer = ask(dial(&o), request);
    if (!answer) {
        fail(EXIT_UNAVAILABLE, "Error: the node closed the connection before it answered");
    }
    if (json_is_true(json_object_get(answer, "restarting"))) {
        json_decref(answer);
        answer = ask_again(&o, request);
    }
    if (!json_is_object(answer)) {
        fail(EXIT_SOFTWARE, "Error: the node's answer does not parse");
    }
    int code = print_answer(&o, answer);
    json_decref(answer);
    json_decref(request);
    json_decref(o.args);
    json_decref(o.options);
    return code;
}
