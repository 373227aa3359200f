"""What the caller of a failed request can do, in one sentence: by the error's code, else by its status."""

from django.utils.translation import gettext_lazy as _

BY_CODE = {
    "already_there": _("Use the document that “document_id” names, or change the content before you send it."),
    "already_member": _("Change the role of this member instead, with PATCH."),
    "already_invited": _("Wait until the user has answered, or withdraw the invitation with DELETE and make another."),
    "already_owner": _("There is nothing to do: name another user to hand it over to."),
    "authentication_failed": _("Send a valid API key as “Authorization: Bearer KEY”; its owner can make another."),
    "batch_out_of_time": _("Send this search again, by itself or with fewer others."),
    "bm25_dependencies_missing": _("Ask the server’s operator to run “manage.py doctor” and to install what it names."),
    "chunk_changed": _("Read the chunk again, and repeat the change on what it holds now."),
    "declined_lately": _("Ask the person whether they want it, and a superuser to add them."),
    "idempotency_key_reused": _(
        "Send a new Idempotency-Key with another request; the same one only with the same request."
    ),
    "idempotency_in_progress": _("Wait as many seconds as Retry-After says, then send the same request again."),
    "internal_error": _("Try again later; if it goes on, tell the server’s operator when it happened."),
    "invalid": _("Correct the fields that “fields” names, and send the request again."),
    "last_owner": _(
        "Hand the knowledge base over, or make another member with an active account an owner, and try again."
    ),
    "length_required": _("Send the body with a Content-Length header."),
    "method_not_allowed": _("Use one of the methods that the Allow header names."),
    "model_changed": _("Send the same request again."),
    "model_unavailable": _(
        "Try again later, or ask the server’s operator to look at the model with “manage.py doctor”."
    ),
    "name_taken": _("Choose another name, or change what has it."),
    "no_channel_available": _(
        "Try again after as many seconds as Retry-After says; “degraded” tells what is out of order."
    ),
    "not_accepted": _("Withdraw the invitation with DELETE, and make one with the role that you want."),
    "not_acceptable": _("Leave the Accept header out, or accept application/json."),
    "not_authenticated": _("Send an API key as “Authorization: Bearer KEY”, or log in."),
    "parse_error": _("Send a body that is valid for its Content-Type."),
    "permission_denied": _(
        "Use an API key with the scope write, or ask an owner of the knowledge base for more rights."
    ),
    "precondition_failed": _("Read it again, repeat the change on what it is now, and send its new ETag in If-Match."),
    "throttled": _("Wait as many seconds as Retry-After says, then go on more slowly."),
    "too_many_invitations": _("Wait until some are answered, or withdraw some with DELETE on members/."),
    "too_large": _("Send less at once: split the file or the text."),
    "rate_limit_too_high": _("Ask for a lower limit, or leave it out; an operator can give a higher one."),
    "unknown_user": _("Ask the person for the exact user name, and whether the account is active."),
    "unknown_model": _("Choose a model that “manage.py doctor” lists, or leave it out for the default."),
    "unsupported_type": _("Upload a file of one of the types that “detail” names."),
    "url_refused": _("Give the address of a public page that can be read, or upload its content as a file."),
}
BY_STATUS = {
    400: _("Change the request as “detail” says, and send it again."),
    401: BY_CODE["not_authenticated"],
    403: BY_CODE["permission_denied"],
    404: _(
        "Check the path and the ids in it, and that your key or your user may see them; every path ends with a slash."
    ),
    405: BY_CODE["method_not_allowed"],
    406: BY_CODE["not_acceptable"],
    408: _("Send the whole request again, without a pause in its body."),
    409: _("Read the object again, and repeat the request if it is still wanted."),
    411: BY_CODE["length_required"],
    412: BY_CODE["precondition_failed"],
    413: BY_CODE["too_large"],
    415: _("Send a Content-Type that the endpoint takes: application/json, or multipart/form-data for files."),
    422: _("Send the request as it was first sent, or as a new one."),
    429: BY_CODE["throttled"],
    500: BY_CODE["internal_error"],
    503: _("Try again after as many seconds as Retry-After says."),
}
OTHERWISE = _("Change the request as “detail” says, or try again later.")


def remedy_of(code: str, status: int) -> str:
    """A sentence in the caller's language."""
    return str(BY_CODE.get(code) or BY_STATUS.get(status) or OTHERWISE)
