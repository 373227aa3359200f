from typing import Any

from django.core.management.base import BaseCommand, CommandError

from config import embedded


class Command(BaseCommand):
    help = "Stops the embedded PostgreSQL and Redis of the data directory."
    requires_system_checks = ()

    def handle(self, *_args: Any, **_options: Any) -> None:
        try:
            stopped = embedded.stop()
        except embedded.EmbeddedError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"Stopped the servers in {embedded.data_dir()}."
            if stopped
            else f"No server was running in {embedded.data_dir()}."
        )
