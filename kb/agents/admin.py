"""How other programs use the knowledge bases of this installation: its addresses and what to enter where."""

import json
import sys
from typing import Any
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _, gettext_lazy

from kb.access.models import KnowledgeBase
from kb.agents.mcp import KEY_VARIABLE
from kb.web.admin.current import current_knowledge_base
from kb.web.admin.navigation import Section, add_tab, to_superusers
from kb.web.admin.scoped import principal
from kb.web.admin.site import AdminPage, admin_page

KEY = "YOUR_KEY"
PLACEHOLDER_FOLDER = "/path/to/zhiku"


@admin_page("integrations/", name="integrations")
class IntegrationsView(AdminPage):
    """Snippets for the current knowledge base, else the first that the user sees."""

    template_name = "agents/integrations.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        request = self.request
        visible = KnowledgeBase.objects.visible_to(principal(request))
        kb = current_knowledge_base(request) or visible.order_by("name", "pk").first()
        api, mcp = request.build_absolute_uri("/api/"), mcp_url(request)
        parts = {"name": "dify", **({"knowledge_bases": kb.pk} if kb else {})}
        return super().get_context_data(
            **kwargs,
            title=_("Dify and MCP"),
            base=kb,
            key_url=f"{reverse('admin:kb_apikey_add')}?{urlencode(parts)}",
            addresses=[
                (_("REST API"), f"{api}v1/"),
                (_("Dify: API Endpoint"), f"{api}dify"),
                (_("MCP over HTTP"), mcp),
            ],
            dify={"endpoint": f"{api}dify", "id": str(kb.pk) if kb else "1"},
            is_local=settings.LOCAL,
            snippets=_snippets(request, kb, mcp),
        )


def mcp_url(request: HttpRequest) -> str:
    """Where `serve` puts the MCP server on a local installation, else where a proxy leads to it as the docs set it up."""
    if not settings.LOCAL:
        return request.build_absolute_uri("/mcp")
    host = urlsplit(request.build_absolute_uri("/"))
    return f"http://{host.hostname}:{(host.port or 80) + 1}/mcp"


def _snippets(request: HttpRequest, kb: KnowledgeBase | None, mcp: str) -> dict[str, str]:
    """By name; the folder of the installation is for whoever runs it."""
    folder, python = PLACEHOLDER_FOLDER, f"{PLACEHOLDER_FOLDER}/.venv/bin/python"
    if to_superusers(request):
        folder, python = str(settings.BASE_DIR), sys.executable
    kb_id, query = kb.pk if kb else 1, _("How long is the warranty?")
    over_http = {"url": mcp, "headers": {"Authorization": f"Bearer {KEY}"}}
    over_stdio = {"command": python, "args": [f"{folder}/manage.py", "mcp"], "env": {KEY_VARIABLE: KEY}}
    return {
        "cursor": _as_json({"mcpServers": {"zhiku": over_http}}),
        "claude_code": f'claude mcp add --transport http zhiku {mcp} --header "Authorization: Bearer {KEY}"',
        "claude_desktop": _as_json({"mcpServers": {"zhiku": over_stdio}}),
        "curl": curl(request, KEY, [kb_id]),
        "langchain": (
            "from kb.rag import RAGService\n\n"
            f"retriever = RAGService().get_retriever(user_id={request.user.pk}, knowledge_base_id={kb_id}, k=5)\n"
            f"documents = retriever.invoke({json.dumps(query, ensure_ascii=False)})"
        ),
    }


def curl(request: HttpRequest, key: str, kb_ids: list[int]) -> str:
    """A search of knowledge bases from a shell."""
    body = json.dumps({"query": _("How long is the warranty?"), "knowledge_base_ids": kb_ids}, ensure_ascii=False)
    return " \\\n  ".join(
        [
            f"curl {request.build_absolute_uri('/api/v1/search/')}",
            f"-H 'Authorization: Bearer {key}'",
            "-H 'Content-Type: application/json'",
            f"-d '{body}'",
        ]
    )


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


add_tab(Section.PUBLISH, gettext_lazy("Dify and MCP"), "integrations", order=30)
