from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.utils import timezone

from kb.access.models import ApiKey
from kb.access.services.api_keys import api_key_create
from kb.management.base import KnowledgeBaseCommand


class Command(KnowledgeBaseCommand):
    help = "Makes an API key and prints it, this once: only its SHA-256 is stored."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--user", required=True, metavar="NAME", help="whom the key acts as")
        self.add_kb_argument(parser, required=False, repeatable=True)
        parser.add_argument(
            "--scope", choices=ApiKey.Scope.values, default=ApiKey.Scope.READ, help="default: %(default)s"
        )
        parser.add_argument("--name", default="command line", metavar="TEXT", help="to tell keys apart in the admin")
        parser.add_argument(
            "--expires-in-days",
            type=int,
            metavar="N",
            help="days until it expires; without it: never",
        )
        parser.add_argument(
            "--rate-limit",
            default="",
            metavar="LIMIT",
            help="such as 60/minute; without it: the server's API_RATE_LIMIT",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

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
        if options["json"]:
            self.print_json(
                {
                    "key": secret,
                    "prefix": key.prefix,
                    "name": key.name,
                    "user": key.user.username,
                    "scope": key.scope,
                    "knowledge_bases": [{"id": kb.pk, "name": kb.name} for kb in key.knowledge_bases.all()],
                    "expires": key.expiry_date,
                    "rate_limit": key.rate_limit,
                }
            )
            return
        opens = (
            ", ".join(kb.name for kb in key.knowledge_bases.all()) or f"every knowledge base that {key.user} may see"
        )
        self.stdout.write(secret)
        self.stderr.write(f"It opens {opens}, to {key.get_scope_display()}. Keep it: it is not shown again.")
