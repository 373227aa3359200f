from typing import Any

from django.core.management import CommandError

from kb.access.models import ApiKey
from kb.access.services.api_keys import api_key_revoke
from kb.management.base import KnowledgeBaseCommand, argument


class Command(KnowledgeBaseCommand):
    help = (
        "Revokes API keys for good, and those that were made with them: from their next request on they are refused, in all "
        "processes."
    )

    arguments = (
        argument("prefix", nargs="*", metavar="PREFIX", help="the eight characters before the dot of a key"),
        argument("--user", metavar="NAME", help="revoke all keys of this user"),
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        prefixes, keys = options["prefix"], ApiKey.objects.filter(revoked=False)
        if not prefixes and not options["user"]:
            raise CommandError("Name keys by their prefix, or a user with --user.")
        if options["user"]:
            keys = keys.filter(user=self.user(options["user"]))
        if prefixes:
            keys = keys.filter(prefix__in=prefixes)
        found = list(keys)
        if missing := set(prefixes) - {key.prefix for key in found}:
            raise CommandError(f"No key in use has the prefix {', '.join(sorted(missing))}: nothing was revoked.")
        named = {key.prefix for key in found}
        others = {other.prefix for key in found for other in api_key_revoke(key)} - named
        self.stdout.write(f"Revoked: {', '.join(key.prefix for key in found) or 'none, the user has no key in use'}")
        if others:
            self.stdout.write(f"Revoked with them, which they were made with: {', '.join(sorted(others))}")
