"""Entering a chat: a visit, or what is lacking for one."""

from dataclasses import replace
from functools import partial
from http import HTTPStatus

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.translation import gettext as _, gettext_lazy

from kb.access.services.rate_limits import LOGIN, LOGIN_NAME, attempt_spend
from kb.assistants.chat.requests import ChatView, require_left, sent
from kb.assistants.chat.shapes import EnterBody, Entered
from kb.assistants.services.entry import Requirement, Visit, chat_path, earlier_visitor, enter, visit_of
from kb.assistants.services.visitors import suggestions
from kb.web.api.errors import ApiError

_DETAILS = {
    Requirement.SIGN_IN: gettext_lazy("Sign in to use this chat."),
    Requirement.LINK: gettext_lazy("This chat opens with a link that somebody shares."),
    Requirement.PASSWORD: gettext_lazy("This chat asks for a password."),
    Requirement.CLOSED: gettext_lazy("This chat is not open at the moment."),
}
_REMEDIES = {
    Requirement.SIGN_IN: gettext_lazy("Sign in, then this page opens by itself."),
    Requirement.LINK: gettext_lazy("Ask whoever told you of it for the whole link."),
    Requirement.PASSWORD: gettext_lazy("Ask whoever told you of it for the password."),
    Requirement.CLOSED: gettext_lazy("Try again later, or ask whoever runs it."),
}


class EnterView(ChatView):
    needs_visit = False

    def post(self, request: HttpRequest) -> HttpResponse:
        body = self.read(EnterBody)
        visit = self._let_in(request, body)
        chosen = self.showing.settings
        return sent(
            Entered(
                visit=visit.token(),
                name=self.assistant.name,
                opening=chosen.opening,
                suggested_questions=suggestions(self.showing.reader, chosen),
                remembers=chosen.remembers,
                keeps=self.assistant.keeps_text,
            )
        )

    def _let_in(self, request: HttpRequest, body: EnterBody) -> Visit:
        """A visit that still holds, of who is signed in now; else a new one of the same browser."""
        earlier = visit_of(self.assistant, request.user, body.visit) if body.visit else None
        if earlier is not None and (earlier.user is not None or not request.user.is_active):
            return earlier
        known_as = earlier_visitor(self.assistant, body.visit) if body.visit else None
        # A browser that has been let in before has a window of its own, so that strangers lock nobody out who knows the
        # password already; those of chats are none of logins.
        guesses = partial(attempt_spend, LOGIN_NAME, f"chat:{self.assistant.pk}:{known_as or ''}")
        if body.password:
            require_left(attempt_spend(LOGIN, f"chat:{self.address()}"))
            wrong = guesses(cost=0)
            require_left(wrong and replace(wrong, allowed=wrong.remaining > 0))
        result = enter(self.assistant, request.user, link=body.key, password=body.password, known_as=known_as)
        if isinstance(result, Visit):
            return result
        if earlier is not None:
            return earlier
        detail = str(_DETAILS[result])
        if result is Requirement.LINK and body.key:
            detail = _("This link is not valid any more.")
        elif result is Requirement.PASSWORD and body.password:
            guesses(cost=1)
            detail = _("This is not the password of this chat.")
        elif result is Requirement.CLOSED and request.user.is_active:
            detail = _("This chat is not open, or not for this account.")
        next_page = urlencode({"next": chat_path(self.assistant)})
        more = {
            "requirement": result.value,
            "login": f"{settings.LOGIN_URL}?{next_page}" if result is Requirement.SIGN_IN else "",
            "remedy": str(_REMEDIES[result]),
        }
        raise ApiError(HTTPStatus.FORBIDDEN, "access_required", detail, **more)
