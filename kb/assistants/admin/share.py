"""Giving an assistant to people: links, its address, websites that embed it, and programs."""

import json
from datetime import datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

import segno
from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _, gettext_lazy
from unfold.widgets import INPUT_CLASSES

from kb.assistants.admin.forms import ACCESS_HELP, AccessForm, OriginsForm
from kb.assistants.admin.frame import AssistantPage, chat_url, page_url
from kb.assistants.models import Assistant, ShareLink
from kb.assistants.selectors import links_of
from kb.assistants.services.assistants import assistant_update, link_create, link_revoke
from kb.base.text import storable
from kb.web.admin.fields import select, text_input
from kb.web.admin.scoped import principal, reporting_in
from kb.web.admin.site import admin_page

KEY: Final = "YOUR_KEY"
NEVER, ON_A_DAY = "never", "date"


class LinkForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("For whom"),
        required=False,
        max_length=80,
        widget=text_input(),
        help_text=gettext_lazy("Only you and the other editors see it."),
    )
    expiry = forms.ChoiceField(
        label=gettext_lazy("Ends"),
        choices=[
            (NEVER, gettext_lazy("never")),
            ("1", gettext_lazy("after 1 day")),
            ("7", gettext_lazy("after 7 days")),
            ("30", gettext_lazy("after 30 days")),
            (ON_A_DAY, gettext_lazy("on a day")),
        ],
        widget=select(),
    )
    day = forms.DateField(
        label=gettext_lazy("Last day"),
        required=False,
        widget=forms.DateInput({"class": " ".join(INPUT_CLASSES), "type": "date"}, format="%Y-%m-%d"),
    )

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if values.get("expiry") == ON_A_DAY and "day" not in self.errors:
            if values["day"] is None:
                self.add_error("day", _("Choose the last day."))
            elif values["day"] < timezone.localdate():
                self.add_error("day", _("Choose a day that is not over."))
        return values

    @property
    def expires_at(self) -> datetime | None:
        expiry = self.cleaned_data["expiry"]
        if expiry == NEVER:
            return None
        if expiry == ON_A_DAY:  # to its end
            return timezone.make_aware(datetime.combine(self.cleaned_data["day"] + timedelta(days=1), time.min))
        return timezone.now() + timedelta(days=int(expiry))


@admin_page("assistants/<int:pk>/share/", name="kb_assistant_share")
class ShareView(AssistantPage):
    """A POST does one of `action`: access, origins, link or revoke; ?revoke=LINK asks whether to revoke one."""

    template_name = "assistants/admin/share.html"
    tab = "share"

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        match request.POST.get("action"):
            case "access":
                form: Any = AccessForm(self.assistant, request.POST)
                return self._update("access_form", form, lambda: form.values)
            case "origins":
                form = OriginsForm(request.POST)
                return self._update("origins_form", form, lambda: {"origins": form.cleaned_data["origins"]})
            case "link":
                form = LinkForm(request.POST)
                if not form.is_valid():
                    return self.render_to_response(self.get_context_data(link_form=form), status=400)
                name = storable(form.cleaned_data["name"])
                link_create(principal(request), self.assistant, name=name, expires_at=form.expires_at)
                messages.success(request, _("The link is made: copy it below."))
            case "revoke":
                link_revoke(self._link(request.POST.get("link", "")))
                messages.success(request, _("The link is revoked: it lets nobody in any more."))
            case _:
                raise Http404
        return HttpResponseRedirect(page_url(self.assistant, "share"))

    def _update(self, name: str, form: Any, values: Any) -> HttpResponse:
        if form.is_valid():
            with reporting_in(form):
                assistant_update(principal(self.request), Assistant.objects.get(pk=self.assistant.pk), **values())
                messages.success(self.request, _("Saved: it holds at once."))
                return HttpResponseRedirect(page_url(self.assistant, "share"))
        return self.render_to_response(self.get_context_data(**{name: form}), status=400)

    @cached_property
    def links(self) -> tuple[list[ShareLink], list[ShareLink]]:
        return links_of(self.assistant)

    def _link(self, named: str) -> ShareLink:
        """Raises Http404 for one that is not this assistant's, or is over."""
        try:
            pk = UUID(named)
        except ValueError as error:
            raise Http404 from error
        found = next((link for link in self.links[0] if link.pk == pk), None)
        if found is None:
            raise Http404
        return found

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        assistant, request = self.assistant, self.request
        usable, over = self.links
        named = request.GET.get("revoke", "")
        is_by_link = assistant.access == Assistant.Access.LINK
        links = [{"link": link, "url": chat_url(request, assistant, link)} for link in usable]
        address = "" if is_by_link and not usable else chat_url(request, assistant, *usable[: int(is_by_link)])
        return super().get_context_data(
            **{
                "access_form": AccessForm(assistant),
                "origins_form": OriginsForm(initial={"origins": assistant.origins}),
                "link_form": LinkForm(),
                **kwargs,
            },
            asked=self._link(named) if named else None,
            is_by_link=is_by_link,
            links=links,
            links_over=over,
            address=address,
            qr=qr_code(address) if address else "",
            access_text=ACCESS_HELP[Assistant.Access(assistant.access)],
            embed=embed_line(address or chat_url(request, assistant)),
            base_url=request.build_absolute_uri("/v1"),
            curl=curl(request, assistant),
        )


def qr_code(text: str) -> str:
    """An SVG to stand in a page, dark on white whatever its colours are."""
    svg = segno.make(text, error="m").svg_inline(scale=4, border=3, light="white", dark="black", omitsize=True)
    return mark_safe(svg)  # noqa: S308 - made of modules alone, which the text is drawn as


def embed_line(address: str) -> str:
    """Of the pages of a website; where a link opens the chat, its key is in it."""
    page, *key = address.split("?")
    return f'<script src="{"?".join([f"{page}embed.js", *key])}" async></script>'


def curl(request: HttpRequest, assistant: Assistant) -> str:
    """A question in OpenAI's protocol from a shell."""
    asked = [{"role": "user", "content": _("How long is the warranty?")}]
    body = json.dumps({"model": assistant.slug, "messages": asked}, ensure_ascii=False)
    return " \\\n  ".join(
        [
            f"curl {request.build_absolute_uri('/v1/chat/completions')}",
            f"-H 'Authorization: Bearer {KEY}'",
            "-H 'Content-Type: application/json'",
            f"-d '{body}'",
        ]
    )
