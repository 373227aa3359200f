"""The chat page, the same in a frame of another website, the script that puts it there, and pictures.

Whoever opens them learns the assistant's name, its picture and a language; all else is for who is let in (`enter`).
"""

import hashlib
import json
import mimetypes
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Final

from csp.constants import NONCE, NONE, SELF
from django.conf import settings
from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import staticfiles_storage
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.shortcuts import render
from django.utils.decorators import method_decorator
from django.utils.translation import get_language, gettext as _, override
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.generic import View

from kb.answers.services.conversations import FEEDBACK_CHARACTERS, MESSAGE_CHARACTERS, TITLE_CHARACTERS
from kb.assistants.chat.colours import DARK, LIGHT, ink_on, readable
from kb.assistants.chat.labels import labels
from kb.assistants.chat.requests import LANGUAGE_HEADER, VISIT_HEADER, assistant_at, language_of
from kb.assistants.chat.shapes import CREDENTIAL_CHARACTERS
from kb.assistants.models import Assistant
from kb.assistants.services.entry import chat_path
from kb.base.errors import NotVisible
from kb.providers.embedding_models import generator
from kb.search.services.search import MAX_QUERY_CHARS, MAX_TURNS

PICTURE_SECONDS: Final = 300
# Nobody is signed in there: a browser sends no cookies of ours into a frame of another website.
NOT_IN_FRAMES: Final = frozenset({Assistant.Access.PRIVATE, Assistant.Access.SIGNED_IN})


class ChatPageView(View):
    is_frame: ClassVar[bool] = False

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        with override(language_of(request)):
            try:
                assistant = assistant_at(slug)
            except NotVisible as error:
                context = {"problem": str(error), "is_frame": self.is_frame, **_look()}
                return self._bounded(render(request, "chat/missing.html", context, status=HTTPStatus.NOT_FOUND))
            return self._bounded(render(request, "chat/page.html", self._context(assistant)), assistant)

    def _context(self, assistant: Assistant) -> dict[str, Any]:
        other = "en" if (get_language() or "").startswith("zh") else "zh-hans"
        return {
            "assistant": assistant,
            "is_frame": self.is_frame,
            "has_model": generator(assistant.published_settings.model or None) is not None,
            "has_picture": assistant.has_picture,  # type: ignore[attr-defined] # an annotation
            "other_language": other,
            "other_name": dict(settings.LANGUAGES)[other],
            **_look(),
            "setup": {
                "address": chat_path(assistant),
                "slug": assistant.slug,
                "language": get_language(),
                "visit_header": VISIT_HEADER,
                "language_header": LANGUAGE_HEADER,
                "turns": MAX_TURNS,
                "turn_characters": MESSAGE_CHARACTERS,
                "credential_characters": CREDENTIAL_CHARACTERS,
                "question_characters": MAX_QUERY_CHARS,
                "feedback_characters": FEEDBACK_CHARACTERS,
                "title_characters": TITLE_CHARACTERS,
                "is_frame": self.is_frame,
                "is_embeddable": not self.is_frame or assistant.access not in NOT_IN_FRAMES,
                "origins": assistant.origins if self.is_frame else [],
                "words": labels(),
            },
        }

    def _bounded(self, response: HttpResponse, assistant: Assistant | None = None) -> HttpResponse:
        """With a policy that lets the page load nothing but from this server, and only the websites named frame it."""
        origins = [each for each in assistant.origins if each.isascii()] if assistant and self.is_frame else []
        response._csp_replace = {  # type: ignore[attr-defined]
            "img-src": [SELF, "data:", "blob:"],
            "style-src": [SELF, NONCE],
            "frame-ancestors": origins or [NONE],
        }
        # The older header can name no website.
        response.xframe_options_exempt = bool(origins)
        response.headers["Cache-Control"] = "no-store"
        return response


class FrameView(ChatPageView):
    is_frame = True

    def _bounded(self, response: HttpResponse, assistant: Assistant | None = None) -> HttpResponse:
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        return super()._bounded(response, assistant)


@method_decorator(xframe_options_exempt, name="dispatch")
class EmbedScriptView(View):
    """The script that a website names in one line; it begins with what this assistant's button says."""

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        try:
            assistant = assistant_at(slug)
        except NotVisible:
            return HttpResponse(status=HTTPStatus.NOT_FOUND, content_type="text/plain; charset=utf-8")
        languages = {code: _button_labels(code, assistant) for code, _name in settings.LANGUAGES}
        setup = {"words": languages, "colour": settings.SITE_COLOR, "ink": ink_on(settings.SITE_COLOR)}
        setup_json = json.dumps(setup).replace("<", "\\u003c")  # also a literal of a script, whatever its texts hold
        body = f"({static_text('kb/chat/embed.js').strip().removesuffix(';')})({setup_json});\n".encode()
        headers = {"Cache-Control": "public, max-age=300", "Cross-Origin-Resource-Policy": "cross-origin"}
        return _tagged(request, body, "text/javascript; charset=utf-8", headers)


class PictureView(View):
    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        try:
            picture = bytes(assistant_at(slug).picture)
        except NotVisible:
            picture = b""
        if not picture:
            return HttpResponse(status=HTTPStatus.NOT_FOUND, content_type="text/plain; charset=utf-8")
        return _tagged(request, picture, "image/png", {"Cache-Control": f"private, max-age={PICTURE_SECONDS}"})


class LogoView(View):
    """The installation's logo, a file that its operator names."""

    def get(self, request: HttpRequest) -> HttpResponse:
        path = Path(settings.SITE_LOGO)
        if not settings.SITE_LOGO or not path.is_file():
            return HttpResponse(status=HTTPStatus.NOT_FOUND, content_type="text/plain; charset=utf-8")
        mime = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return _tagged(request, path.read_bytes(), mime, {"Cache-Control": f"private, max-age={PICTURE_SECONDS}"})


def static_text(name: str) -> str:
    """A static file, from where it is collected or lies."""
    found = finders.find(name) if settings.STATIC_ROOT is None else None
    if found:
        return Path(str(found)).read_text(encoding="utf-8")
    with staticfiles_storage.open(name) as file:
        return str(file.read().decode())


def _button_labels(language: str, assistant: Assistant) -> Mapping[str, str]:
    with override(language):
        return {
            "open": _("Open the chat: %(name)s") % {"name": assistant.name},
            "close": _("Close the chat"),
            "title": assistant.name,
        }


def _look() -> dict[str, Any]:
    return {
        "site_name": settings.SITE_NAME or _("Zhiku"),
        "site_colour": settings.SITE_COLOR,
        "colour_on_light": readable(settings.SITE_COLOR, on=LIGHT),
        "colour_on_dark": readable(settings.SITE_COLOR, on=DARK),
        "ink": ink_on(settings.SITE_COLOR),
        "has_logo": bool(settings.SITE_LOGO),
    }


def _tagged(request: HttpRequest, body: bytes, mime: str, headers: Mapping[str, str]) -> HttpResponse:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    if request.headers.get("If-None-Match", "").removeprefix("W/") == tag:
        return HttpResponseNotModified(headers={**headers, "ETag": tag})
    return HttpResponse(body, content_type=mime, headers={**headers, "ETag": tag})
