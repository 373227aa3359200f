import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from kb.base.telemetry import otel
from kb.management.addresses import Address


class Command(BaseCommand):
    help = (
        "Serves search and answers to agents by the Model Context Protocol: over standard input and output, for a program "
        "that starts it with ZHIKU_API_KEY in its environment, or with --http behind a port."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--http", action="store_true", help="serve streamable HTTP at /mcp, keys in the header")
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument("--port", type=int, default=8001, help="port to listen on (default: %(default)s)")

    def handle(self, *_args: Any, **options: Any) -> None:
        otel.start("mcp")
        if options["http"]:
            address = Address(options["host"], options["port"])
            address.require_allowed()
            address.require_free()
            from kb.agents.mcp.http import serve_http  # noqa: PLC0415 - it loads the libraries of models

            serve_http(address.host, address.port)
            return
        from kb.access.services.api_keys import api_key_use  # noqa: PLC0415
        from kb.agents.mcp import KEY_VARIABLE  # noqa: PLC0415
        from kb.agents.mcp.http import serve_stdio  # noqa: PLC0415
        from kb.agents.mcp.server import key_in  # noqa: PLC0415

        # Said at once, and not at the first call
        make_one = "`manage.py create_api_key --user NAME` makes one"
        if not os.environ.get(KEY_VARIABLE):
            raise CommandError(f"Set {KEY_VARIABLE} to an API key in the environment of this command; {make_one}.")
        try:
            if api_key_use(key_in(None)) is None:
                raise CommandError(f"The API key in {KEY_VARIABLE} is unknown, revoked or expired: {make_one}.")
        finally:
            connections.close_all()
        serve_stdio()
