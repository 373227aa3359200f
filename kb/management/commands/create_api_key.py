from datetime import timedelta
from typing import Any

from django.utils import timezone

from kb.access.models import ApiKey
from kb.access.services.api_keys import api_key_create
from kb.management.base import JSON, KnowledgeBaseCommand, argument, kb_arguments


class Command(KnowledgeBaseCommand):
    help = "Makes an API key and prints it, this once: only its SHA-256 is stored."

    arguments = (
        argument("--user", required=True, metavar="NAME", help="whom the key acts as"),
        *kb_arguments(required=False, repeatable=True),
        argument("--scope", choices=ApiKey.Scope.values, default=ApiKey.Scope.READ, help="default: %(default)s"),
        argument("--name", default="command line", metavar="TEXT", help="to tell keys apart in the admin"),
        argument("--expires-in-days", type=int, metavar="N", help="days until it expires; without it: never"),
        argument(
            "--rate-limit",
            default="",
            metavar="LIMIT",
            help="such as 60/minute; without it: the server's API_RATE_LIMIT",
        ),
        JSON,
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        days = options["expires_in_days"]
        key, secret = api_key_create(
            user=self.user(options["user"]),
            name=options["name"],
            knowledge_bases=self.knowledge_bases(options),
            scope=options["scope"],
            expires=None if days is None else timezone.now() + timedelta(days=days),
            rate_limit=options["rate_limit"],
            by_operator=True,
        )
        knowledge_bases = key.knowledge_bases.all()
        made = {
            "key": secret,
            "prefix": key.prefix,
            "name": key.name,
            "user": key.user.username,
            "scope": key.scope,
            "knowledge_bases": [{"id": kb.pk, "name": kb.name} for kb in knowledge_bases],
            "expires": key.expiry_date,
            "rate_limit": key.rate_limit,
        }
        self.answer(options, made, [secret])
        if not options["json"]:
            opens = ", ".join(kb.name for kb in knowledge_bases) or f"every knowledge base that {key.user} may see"
            self.stderr.write(f"It opens {opens}, to {key.get_scope_display()}. Keep it: it is not shown again.")
