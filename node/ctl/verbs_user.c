// SPDX-License-Identifier: Apache-2.0
// Verbs about users and permissions (operator-plane §1.3).
#include "node/ctl/internal.h"

static void on_result(void *ctx, const struct broker_result *result)
{
    struct ctl_request *r = ctx;
    if (result->rc == RC_OK) {
        ctl_ok(r, NULL);
        return;
    }
    int code = result->rc == RC_EXISTS       ? EXIT_SOFTWARE
               : result->rc == RC_NOT_FOUND  ? EXIT_NOUSER
               : result->rc == RC_INVALID    ? EXIT_DATAERR
               : result->code == 541         ? EXIT_TEMPFAIL
                                             : EXIT_UNAVAILABLE;
    ctl_error(r, code, "Error: %s", result->text);
}

void verb_add_user(struct ctl_request *r)
{
    broker_user_put(r->ctl->broker, span_str(request_arg(r, 0)), span_str(request_arg(r, 1)), false, true,
                    on_result, r);
}

void verb_change_password(struct ctl_request *r)
{
    broker_user_put(r->ctl->broker, span_str(request_arg(r, 0)), span_str(request_arg(r, 1)), true, false,
                    on_result, r);
}

void verb_delete_user(struct ctl_request *r)
{
    broker_user_delete(r->ctl->broker, span_str(request_arg(r, 0)), on_result, r);
}

void verb_set_permissions(struct ctl_request *r)
{
    broker_permissions_put(r->ctl->broker, span_str(request_arg(r, 0)),
                           span_str(request_option(r, "vhost", "/")), span_str(request_arg(r, 1)),
                           span_str(request_arg(r, 2)), span_str(request_arg(r, 3)), on_result, r);
}

void verb_authenticate_user(struct ctl_request *r)
{
    struct broker_user user;
    if (broker_authenticate(r->ctl->broker, span_str(request_arg(r, 0)), span_str(request_arg(r, 1)), &user)) {
        ctl_ok(r, "Success");
    } else {
        ctl_error(r, EXIT_DATAERR, "Error: failed to authenticate user \"%s\"", request_arg(r, 0));
    }
}
