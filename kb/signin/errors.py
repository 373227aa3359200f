"""Why somebody was not signed in, as the page says it."""

from collections.abc import Mapping
from typing import Final

from kb.base.findings import gettext_noop
from kb.base.messages import shown
from retrieval.errors import Argument, Message

# Templates are translated first and formatted afterwards, so each is a constant.
MESSAGES: Final[dict[str, str]] = {
    "not_begun": gettext_noop(
        "This sign-in was not begun in this browser, or more than ten minutes ago. Begin again, and allow cookies for this site."
    ),
    "denied": gettext_noop(
        "{name} did not sign you in: it was cancelled, or you may not use this application there. Begin again, or ask who runs "
        "{name} to let you use it."
    ),
    "provider_error": gettext_noop(
        "{name} refuses the sign-in ({error}). Begin again; if it stays so, let an administrator compare the client ID, the "
        "redirect address {redirect} and the scopes with what {name} has."
    ),
    "unreachable": gettext_noop("{name} cannot be reached from this server, so nobody can sign in with it now."),
    "private_address": gettext_noop(
        "{host} is at {address}, which is a private address. Let a superuser confirm it where the provider is entered."
    ),
    "reserved_address": gettext_noop(
        "{host} is at {address}, where no provider can be: such addresses are a cloud’s own, or reserved. Correct the issuer’s address."
    ),
    "bad_answer": gettext_noop(
        "What {name} answers at {url} is no OpenID Connect. Let an administrator correct the issuer’s address (OIDC_ISSUER)."
    ),
    "other_issuer": gettext_noop(
        "{name} calls itself “{found}”, and not “{issuer}”. Let an administrator correct the issuer’s address (OIDC_ISSUER)."
    ),
    "token_refused": gettext_noop(
        "{name} did not confirm the sign-in ({error}). Begin again; if it stays so, let an administrator check the client ID and "
        "the client secret (OIDC_CLIENT_ID, OIDC_CLIENT_SECRET)."
    ),
    "clock": gettext_noop(
        "By this server’s clock the sign-in from {name} has ended already, or has not begun. Let an administrator set the clocks of both "
        "by NTP, then begin again."
    ),
    "bad_token": gettext_noop(
        "What {name} says of you cannot be verified ({reason}), so it is not believed. Begin again; if it stays so, tell an "
        "administrator."
    ),
    "no_groups": gettext_noop(
        "{name} does not say which groups you are in (the claim “{claim}”), and only some may sign in. Let an administrator have {name} "
        "send it, or correct OIDC_GROUPS_CLAIM and OIDC_SCOPES."
    ),
    "not_admitted": gettext_noop(
        "None of your groups at {name} may sign in here. Ask an administrator of {name} to add you to one that may."
    ),
    "email_taken": gettext_noop(
        "An account here has your e-mail address already, and {name} did not make it. Log in with its password if you have it; else ask "
        "an administrator to change the address of that account, or to let {name} open it (OIDC_LINK_EMAIL)."
    ),
    "inactive": gettext_noop("Your account here is switched off. Ask an administrator to switch it on again."),
    "link_used": gettext_noop(
        "This link was used already, is older than {minutes} minutes, or is incomplete. Make another: manage.py login_link."
    ),
}


class SignInRefused(Exception):
    """Nobody is signed in: a stable code of MESSAGES, and the values of its template.

    Attributes:
        detail: a sentence more, such as why the provider is unreachable.
    """

    def __init__(self, code: str, *, detail: str = "", **params: Argument) -> None:
        self.code = code
        self.detail = detail
        self.params: Mapping[str, Argument] = params
        super().__init__(MESSAGES[code].format(**params))

    @property
    def text(self) -> str:
        """The sentence in the language in force."""
        return shown(Message(MESSAGES[self.code], **self.params))
