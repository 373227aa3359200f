"""Who asks a chat for something: the assistant of the address, the visit of the header, limits, and errors in one shape."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from http import HTTPStatus
from math import ceil
from typing import Any, TypeVar

import msgspec
from django.conf import settings
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.functional import cached_property
from django.utils.translation import get_supported_language_variant, gettext as _, gettext_lazy, override
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import View

from kb.access.services.rate_limits import GENERAL, Spent, visitor_spend
from kb.assistants.chat.showing import Showing
from kb.assistants.models import Assistant
from kb.assistants.services.entry import Visit, visit_of
from kb.assistants.services.limits import LimitReached
from kb.assistants.services.sending import UnderWay
from kb.base.errors import found_in
from kb.base.net.client_address import client_network
from kb.base.shapes import as_values
from kb.web.api.errors import ApiError, Problem, problem_of
from retrieval.errors import InvalidConfiguration, NoChannelAvailable

Body = TypeVar("Body")

VISIT_HEADER = "X-Visit"
LANGUAGE_HEADER = "X-Language"

_REMEDIES: Mapping[str, Any] = {
    "limit_reached": gettext_lazy("Come back tomorrow, or tell whoever runs this chat that it needs a higher limit."),
    "in_progress": gettext_lazy("Wait a moment: the answer appears by itself."),
    "not_the_last_answer": gettext_lazy("Load the page again, then ask below the last answer."),
    "not_let_in": gettext_lazy("Load the page again."),
    "other_site": gettext_lazy("Open the chat on its own page."),
}
_REMEDIES_BY_STATUS: Mapping[int, Any] = {
    400: gettext_lazy("Put the question in other words, or make it shorter, and send it again."),
    403: gettext_lazy("Tell whoever runs this chat."),
    404: gettext_lazy("Begin a new conversation, or load the page again."),
    413: gettext_lazy("Make the question shorter, and send it again."),
    429: gettext_lazy("Wait a moment, then send it again."),
    500: gettext_lazy("Try again; if it goes on, tell whoever runs this chat when it happened."),
    503: gettext_lazy("Try again in a moment: nothing that was written is lost."),
}
# What is said to visitors is about the chat: the sentences of other errors may name profiles, models or knowledge bases.
_OWN_WORDS = frozenset({"not_the_last_answer", "preview_pending", "page_unreadable"})


class ChatView(View):
    """Answers a chat page's script in JSON.

    No session alone is authority for anything here: a change needs the token of a visit, which stands in a header that no
    other site can send, and entering, which makes such a token, sends it to no page but one of this server. So the
    check of a form's token, which third-party frames have no cookie for, is left out.
    """

    limit_kind = GENERAL
    needs_visit = True

    assistant: Assistant
    visit: Visit

    @method_decorator(csrf_exempt)
    def dispatch(self, request: HttpRequest, *args: Any, slug: str, **kwargs: Any) -> HttpResponseBase:
        with override(language_of(request)):
            try:
                require_this_site(request)
                kind = self.limit_kind if request.method == "POST" else GENERAL
                require_left(visitor_spend(client_network(request), kind, is_known=request.user.is_authenticated))
                self.assistant = assistant_at(slug)
                if self.needs_visit:
                    self.visit = self._visit(request)
                response = super().dispatch(request, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the boundary: every error becomes one shape, and faults are logged
                response = refusal(error, request)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    @cached_property
    def showing(self) -> Showing:
        return Showing(self.assistant)

    def read(self, body: type[Body]) -> Body:
        """What was sent, as its shape declares it; raises ApiError."""
        try:
            return msgspec.json.decode(self.request.body, type=body)
        except msgspec.MsgspecError as error:
            raise ApiError(HTTPStatus.BAD_REQUEST, "invalid", _("The request is not complete or too long.")) from error

    def address(self) -> str:
        return client_network(self.request)

    def _visit(self, request: HttpRequest) -> Visit:
        visit = visit_of(self.assistant, request.user, request.headers.get(VISIT_HEADER, ""))
        if visit is None:
            raise ApiError(HTTPStatus.FORBIDDEN, "not_let_in", _("This chat has to be opened again."))
        return visit


def assistant_at(slug: str) -> Assistant:
    """An assistant with `has_picture`, whose picture itself is read where it is shown; raises NotVisible where there is none."""
    rows = (
        Assistant.objects.select_related("published", "publisher")
        .defer("picture")
        .annotate(has_picture=~Q(picture=b""))
    )
    return found_in(rows.filter(slug=slug), _("There is no such chat."))


def language_of(request: HttpRequest) -> str:
    """That which the page is in, if its script says so; else the browser's."""
    asked = request.headers.get(LANGUAGE_HEADER, "") or request.GET.get("language", "")
    try:
        return get_supported_language_variant(asked)
    except LookupError:
        return str(getattr(request, "LANGUAGE_CODE", settings.LANGUAGE_CODE))


def require_this_site(request: HttpRequest) -> None:
    """Raises ApiError where the script of another site asks, and where a form of one could."""
    is_foreign = request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}
    is_form = request.method in {"POST", "PATCH"} and request.content_type != "application/json"
    if is_foreign or is_form:
        raise ApiError(HTTPStatus.FORBIDDEN, "other_site", _("This request was not made by a page of this server."))


def require_left(spent: Spent | None) -> None:
    """Raises ApiError where a rate limit is used up."""
    if spent is not None and not spent.allowed:
        detail = _("Too many requests from this network: try again in %(seconds)d seconds.")
        error = ApiError(HTTPStatus.TOO_MANY_REQUESTS, "throttled", detail % {"seconds": spent.resets_in_s})
        error.wait = spent.resets_in_s
        raise error


def sent(shape: Any, status: int = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(as_values(shape)), status=status, content_type="application/json")


def refusal(error: Exception, request: HttpRequest) -> HttpResponse:
    problem = visitor_problem(error, request)
    more = {name: value for name, value in problem.more.items() if name in {"requirement", "login"}}
    remedy = problem.more.get("remedy") or remedy_of(problem.code, problem.status)
    body = {"code": problem.code, "detail": problem.detail, "remedy": remedy, **more}
    return HttpResponse(
        msgspec.json.encode(body),
        status=problem.status,
        headers=dict(problem.headers),
        content_type="application/json",
    )


def remedy_of(code: str, status: int) -> str:
    return str(_REMEDIES.get(code) or _REMEDIES_BY_STATUS.get(status) or _REMEDIES_BY_STATUS[500])


def visitor_problem(error: Exception, request: HttpRequest) -> Problem:
    """What a visitor reads of an error, without names of what is behind the chat."""
    if isinstance(error, LimitReached):
        now = timezone.localtime()
        tomorrow = datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), now.tzinfo)
        headers = {"Retry-After": str(ceil((tomorrow - now).total_seconds()))}
        return Problem(HTTPStatus.TOO_MANY_REQUESTS, "limit_reached", str(error), headers=headers)
    if isinstance(error, UnderWay):
        detail = _("This question is being answered already.")
        return Problem(HTTPStatus.CONFLICT, "in_progress", detail, headers={"Retry-After": "1"})
    if isinstance(error, InvalidConfiguration):
        detail = _("This chat is not set up completely, and cannot answer.")
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", detail, headers={"Retry-After": "60"})
    problem = problem_of(error, request)
    if isinstance(error, NoChannelAvailable):
        detail = _("Nothing can be searched at the moment.")
        return Problem(problem.status, "unavailable", detail, headers=problem.headers)
    if problem.status == HTTPStatus.BAD_REQUEST and problem.code not in {*_OWN_WORDS, "invalid"}:
        return Problem(problem.status, "invalid", _("This question cannot be answered as it is."))
    return problem
