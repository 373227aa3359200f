"""OpenID Connect as django-allauth speaks it, with what it leaves open: nonce, signature, issuer, and one subject throughout."""

import secrets
from collections.abc import Mapping
from typing import Any, Final

import jwt
import requests
from allauth.socialaccount.models import SocialApp, SocialLogin, SocialToken
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.http import HttpRequest, HttpResponseBase
from django.utils.functional import cached_property

from kb.base.messages import shown
from kb.base.net.addresses import MESSAGES as FETCH_MESSAGES, FetchError
from kb.signin.claims import account_key, identity_of
from kb.signin.errors import SignInRefused
from kb.signin.http import Unreachable, guarded_session
from kb.signin.metadata import METADATA
from kb.signin.provider import Provider, callback_url
from kb.signin.services import account_for
from retrieval.errors import Message

LEEWAY_SECONDS: Final = 60.0  # that clocks may differ
# Of keys that only the provider has: with a shared one, whoever knows it could speak for the provider.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
LONGEST_SUBJECT: Final = 255


class Flow(OpenIDConnectOAuth2Adapter):  # type: ignore[misc] # the package has no types
    """The requests of one sign-in.

    Attributes:
        state: what was stored when it began, once it is known.
        id_token: as it came, once it was verified.
    """

    def __init__(self, request: HttpRequest, provider: Provider) -> None:
        super().__init__(request, provider.issuer)
        self._provider = provider
        self.state: Mapping[str, Any] = {}
        self.id_token = ""

    def get_provider(self) -> "AllauthProvider":
        return AllauthProvider(self.request, self._provider)

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:  # noqa: ARG002 - the library's interface
        return callback_url(request)

    @cached_property
    def openid_config(self) -> dict[str, Any]:
        """What the provider says of itself."""
        config = self._json_of(self._provider.discovery_url, is_kept=True)
        if not all(isinstance(config.get(each), str) for each in ("issuer", *_ENDPOINTS)):
            raise SignInRefused("bad_answer", name=self._provider.name, url=self._provider.discovery_url)
        if config["issuer"].rstrip("/") != self._provider.issuer.rstrip("/"):
            raise SignInRefused(
                "other_issuer",
                name=self._provider.name,
                found=config["issuer"][:200],
                issuer=self._provider.issuer,
            )
        return config

    def complete_login(
        self,
        request: HttpRequest,
        app: SocialApp,  # noqa: ARG002 - the library's interface
        token: SocialToken,
        response: dict[str, Any],
    ) -> SocialLogin:
        """Verifies what the provider says, and brings the account here in step with it."""
        claims = self._verified(str(response.get("id_token") or ""))
        self.id_token = response["id_token"]
        if endpoint := self.openid_config.get("userinfo_endpoint"):
            said = self._json_of(endpoint, headers={"Authorization": f"Bearer {token.token}"})
            if said.get("sub") != claims["sub"]:  # it may be of another user (OpenID Connect Core, 5.3.2)
                raise self._not_believed("sub")
            claims = {**claims, **said}
        account_for(identity_of(claims, self._provider), self._provider)
        login = self.get_provider().sociallogin_from_response(request, {"userinfo": claims})
        login.account.extra_data = {}
        return login

    def _verified(self, id_token: str) -> dict[str, Any]:
        """The claims of an ID token, signed by the provider, for us, now, and for the sign-in that was begun."""
        try:
            kid = jwt.get_unverified_header(id_token).get("kid")
            key = self._key(kid) or self._key(kid, refresh=True)
            if key is None:
                raise self._not_believed("kid")
            claims: dict[str, Any] = jwt.decode(
                id_token,
                key,
                algorithms=ALGORITHMS,
                issuer=self.openid_config["issuer"],
                audience=self._provider.client_id,
                leeway=LEEWAY_SECONDS,
                options={"require": ["sub", "iss", "aud", "exp", "iat"]},
            )
        except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError) as error:
            raise SignInRefused("clock", name=self._provider.name) from error
        except jwt.PyJWTError as error:
            raise self._not_believed(str(error)) from error
        if not secrets.compare_digest(str(claims.get("nonce", "")), str(self.state.get("nonce", "-"))):
            raise self._not_believed("nonce")
        if claims.get("azp", self._provider.client_id) != self._provider.client_id:
            raise self._not_believed("azp")
        if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= LONGEST_SUBJECT:
            raise self._not_believed("sub")
        return claims

    def _key(self, kid: str | None, *, refresh: bool = False) -> jwt.PyJWK | None:
        """A key of the provider by its name; the only one where a token names none."""
        published = self._json_of(self.openid_config["jwks_uri"], is_kept=True, refresh=refresh)
        keys = jwt.PyJWKSet.from_dict(published).keys
        return next((each for each in keys if each.key_id == kid or (kid is None and len(keys) == 1)), None)

    def _json_of(
        self, url: str, headers: Mapping[str, str] | None = None, *, is_kept: bool = False, refresh: bool = False
    ) -> dict[str, Any]:
        def ask() -> Any:
            with guarded_session(self._provider.guard) as session:
                response = session.get(url, headers=headers)
            response.raise_for_status()
            return response.json()

        try:
            key = (url, self._provider.allows_private)
            answer = METADATA.read(key, ask, refresh=refresh) if is_kept else ask()
        except Unreachable as error:
            raise refusal(self.request, self._provider, error) from error
        except (requests.HTTPError, ValueError) as error:
            raise SignInRefused("bad_answer", name=self._provider.name, url=url[:200]) from error
        if not isinstance(answer, dict):
            raise SignInRefused("bad_answer", name=self._provider.name, url=url[:200])
        return answer

    def _not_believed(self, reason: str) -> SignInRefused:
        return SignInRefused("bad_token", name=self._provider.name, reason=reason[:200])


class AllauthProvider(OpenIDConnectProvider):  # type: ignore[misc]
    """Our provider as the library has it; accounts are those of its issuer, whose subjects mean nothing to another one."""

    def __init__(self, request: HttpRequest, provider: Provider) -> None:
        app = SocialApp(
            provider=self.id,
            provider_id=provider.issuer,
            name=provider.name,
            client_id=provider.client_id,
            secret=provider.secret,
            settings={
                "server_url": provider.discovery_url,
                "oauth_pkce_enabled": True,
                "scope": provider.scopes.split(),
            },
        )
        super().__init__(request, app=app)
        self.ours = provider

    def extract_uid(self, data: dict[str, Any]) -> str:
        return account_key(data["userinfo"]["sub"])

    def get_oauth2_adapter(self, request: HttpRequest) -> Flow:
        return Flow(request, self.ours)

    def begin(self, request: HttpRequest, next_url: str) -> HttpResponseBase:
        """Leads to the provider, and stores what its answer is compared with."""
        nonce = secrets.token_urlsafe(32)
        response: HttpResponseBase = self.redirect(
            request, "login", next_url=next_url, auth_params={"nonce": nonce}, nonce=nonce
        )
        return response


class Callback(OAuth2CallbackView):  # type: ignore[misc]
    """The answer of the provider."""

    adapter: Flow

    def __init__(self, request: HttpRequest, flow: Flow) -> None:
        self.request, self.adapter = request, flow

    def _get_state(self, request: HttpRequest, provider: AllauthProvider) -> tuple[Any, Any]:
        state, response = super()._get_state(request, provider)
        self.adapter.state = state or {}
        return state, response


def refusal(request: HttpRequest, provider: Provider, error: Exception | None) -> SignInRefused:
    """Why a sign-in ended that the library broke off; `error` None: the provider sent one, or its answer is to none of ours."""
    if isinstance(error, Unreachable) and isinstance(cause := error.__cause__, FetchError):
        if cause.code == "forbidden_address":
            code = "reserved_address" if provider.allows_private else "private_address"
            return SignInRefused(code, host=cause.params["host"], address=cause.params["address"])
        detail = shown(Message(FETCH_MESSAGES[cause.code], **cause.params))
        return SignInRefused("unreachable", name=provider.name, detail=detail)
    if isinstance(error, OAuth2Error):
        said = next((each for each in _TOKEN_ERRORS if each in str(error)), "token")
        return SignInRefused("token_refused", name=provider.name, error=said)
    said = request.GET.get("error", "")[:100]
    if said == Flow.login_cancelled_error:
        return SignInRefused("denied", name=provider.name)
    if said:
        return SignInRefused("provider_error", name=provider.name, error=said, redirect=callback_url(request))
    return SignInRefused("not_begun")


# RFC 6749, 5.2
_TOKEN_ERRORS: Final = ("invalid_client", "invalid_grant", "unauthorized_client", "invalid_request", "invalid_scope")
