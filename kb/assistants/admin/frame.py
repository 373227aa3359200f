"""What the pages of an assistant share: who may open them, the head, and the tabs."""

from typing import Any, ClassVar

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext as _, gettext_lazy

from kb.access.models import KnowledgeBase
from kb.assistants.models import Assistant
from kb.assistants.selectors import with_newest
from kb.assistants.services.entry import chat_path
from kb.assistants.settings import SETTINGS, AssistantSettings, differences
from kb.providers.embedding_models import generator
from kb.web.admin import fields
from kb.web.admin.place import Crumb
from kb.web.admin.scoped import principal
from kb.web.admin.site import AdminPage

TABS: dict[str, str | Promise] = {
    "change": gettext_lazy("Settings"),
    "share": gettext_lazy("Share"),
    "use": gettext_lazy("Use and limits"),
    "conversations": gettext_lazy("Conversations"),
    "versions": gettext_lazy("Versions"),
}
"""Titles by the names of pages; features above add theirs."""
_MOST_SHOWN = 80


def page_url(assistant: Assistant, name: str = "change", **more: Any) -> str:
    return reverse(f"admin:kb_assistant_{name}", kwargs={"pk": assistant.pk, **more})


class AssistantPage(AdminPage):
    """A page of an assistant; 404 where the user may not edit it, which is to edit all of its knowledge bases."""

    tab: ClassVar[str] = ""

    @cached_property
    def assistant(self) -> Any:
        rows = with_newest(Assistant.objects.editable_by(principal(self.request)))
        return get_object_or_404(
            rows.select_related("published").prefetch_related("knowledge_bases"), pk=self.kwargs["pk"]
        )

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        assistant = self.assistant
        tabs = [
            {"title": title, "url": page_url(assistant, name), "is_active": name == self.tab}
            for name, title in TABS.items()
        ]
        return super().get_context_data(
            **{
                "title": assistant.name,
                "assistant": assistant,
                "above": [Crumb(assistant.name, page_url(assistant))],
                "tabs": tabs,
                "tab_title": TABS.get(self.tab, ""),
                "is_open": assistant.is_answering,
                "is_changed": assistant.published_number is not None and assistant.newest != assistant.published_number,
                "chat_url": chat_url(self.request, assistant),
                "page_url": page_url(assistant),
                "lacks_model": generator(assistant.published_settings.model or None) is None,
                **kwargs,
            }
        )


def chat_url(request: HttpRequest, assistant: Assistant, *of_link: Any) -> str:
    return request.build_absolute_uri(chat_path(assistant, *of_link))


def editable_bases(request: HttpRequest) -> list[KnowledgeBase]:
    return list(KnowledgeBase.objects.editable_by(principal(request)).order_by("name", "pk"))


def changes_shown(before: AssistantSettings, after: AssistantSettings) -> list[tuple[str, str, str]]:
    """The settings that differ: label, value before, value after."""
    return [
        (_(SETTINGS[name].label), value_text(name, old), value_text(name, new))
        for name, old, new in differences(before, after)
    ]


def value_text(name: str, value: Any) -> str:
    """A setting's value as a page shows it; long texts are cut."""
    text = " ".join(fields.value_text(SETTINGS[name], value).split())
    return f"{text[:_MOST_SHOWN]}…" if len(text) > _MOST_SHOWN else text or _("blank")
