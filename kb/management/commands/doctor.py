from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from kb.base.findings import Finding, State
from kb.management.base import KnowledgeBaseCommand
from kb.operations.services.health.health import findings


class Command(KnowledgeBaseCommand):
    help = "Examines services, models, versions and content, and says what is degraded or broken and what to do."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *_args: Any, **options: Any) -> None:
        found = findings()
        if options["json"]:
            self.print_json([finding.as_dict() for finding in found])
        else:
            for finding in found:
                self._show(finding)
        broken = [finding.name for finding in found if finding.state is State.BROKEN]
        if broken:
            raise CommandError(f"Broken: {', '.join(broken)}.")

    def _show(self, finding: Finding) -> None:
        style = {State.OK: self.style.SUCCESS, State.DEGRADED: self.style.WARNING, State.BROKEN: self.style.ERROR}
        self.stdout.write(f"{style[finding.state](f'{finding.state.value:<8}')}  {finding.name}: {finding.detail}")
        if finding.remedy:
            self.stdout.write(f"{'':<10}-> {finding.remedy}")
