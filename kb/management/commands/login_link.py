from typing import Any
from urllib.parse import urlencode

from django.core.management.base import CommandError
from django.urls import reverse

from kb.management.base import KnowledgeBaseCommand, argument
from kb.signin.services import LINK_MINUTES, link_token


class Command(KnowledgeBaseCommand):
    help = (
        f"Prints a link that signs a user in once, within {LINK_MINUTES} minutes: for when the provider of OpenID Connect is out of "
        "order, or the only way in is to be repaired."
    )

    arguments = (
        argument("username", metavar="USER", help="whom it signs in"),
        argument(
            "--url", default="", metavar="URL", help="how browsers reach this server, such as https://zhiku.example.org"
        ),
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        user = self.user(options["username"])
        if not (user.is_active and user.is_staff):
            raise CommandError(f"{user.username} is inactive or no staff: the admin would not let this user in.")
        path = f"{reverse('signin_link')}?{urlencode({'token': link_token(user)})}"
        self.stdout.write(f"{options['url'].rstrip('/')}{path}")
        self.stderr.write(
            f"Open it within {LINK_MINUTES} minutes at this server's address. It signs {user.username} in, once."
        )
