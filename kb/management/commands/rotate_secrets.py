from typing import Any

from django.core.management import CommandError

from kb.management.base import KnowledgeBaseCommand, argument
from kb.operations.services.secrets import count_secrets, secrets_rotate


class Command(KnowledgeBaseCommand):
    help = (
        "Encrypts the keys and passwords of models and sources again with the present SECRET_KEY. To replace a SECRET_KEY, put "
        "the former one into SECRET_KEY_FALLBACKS, restart, run this, and take it out."
    )

    arguments = (argument("--json", action="store_true", help="print the counts as JSON"),)

    def handle(self, *_: Any, **options: Any) -> None:
        with self.progress_bar(total=count_secrets(), unit="rows") as bar:
            done = secrets_rotate(bar.update)
        lines = [f"Encrypted again: {done.renewed}. With the present key already: {done.current}."]
        lines += [f"Enter the key or password again: {each.kind} “{each.name}”" for each in done.unreadable]
        self.answer(options, done, lines)
        if done.unreadable:
            raise CommandError(
                "None of the keys opens some rows: add their former key to SECRET_KEY_FALLBACKS, or enter them again."
            )
