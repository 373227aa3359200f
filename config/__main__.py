"""The commands: `manage.py` in a checkout, `zhiku` or `python -m config` where the wheel is installed."""

import os
import sys

from config import embedded

NEED_NO_SERVICES = {
    "check",
    "collectstatic",
    "compilemessages",
    "diffsettings",
    "download_model",
    "help",
    "makemessages",
    "startapp",
    "stop",
    "version",
}


def needs_services(arguments: list[str]) -> bool:
    """Whether the command has to reach PostgreSQL or Redis."""
    if not arguments or not {"-h", "--help", "--version"}.isdisjoint(arguments):
        return False
    if arguments[0] == "check":
        return any(argument.startswith("--database") for argument in arguments)
    return arguments[0] not in NEED_NO_SERVICES


def main() -> None:
    """Runs a command. The embedded servers end with the `serve` that started them, and outlive any other command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    arguments = sys.argv[1:]
    if arguments[:1] == ["mcp"]:
        os.environ.setdefault("DB_STATEMENT_TIMEOUT_MS", "15000")  # as in the web server, which it is one of
    try:
        started = needs_services(arguments) and embedded.ensure(role=arguments[0])
    except embedded.EmbeddedError as error:
        sys.exit(str(error))

    from django.core.management import execute_from_command_line  # noqa: PLC0415 after the URLs are set

    try:
        execute_from_command_line(sys.argv)
        sys.stdout.flush()
    except BrokenPipeError:  # its reader, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if started and arguments[0] == "serve":
            if left := embedded.stop_unused():
                sys.stderr.write(
                    f"PostgreSQL and Redis keep running for {', '.join(left)}: `manage.py stop` ends them.\n"
                )
        elif started:
            sys.stderr.write("PostgreSQL and Redis were started and keep running; `manage.py stop` ends them.\n")


if __name__ == "__main__":
    main()
