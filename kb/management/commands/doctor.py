from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from kb.base.findings import Finding, State
from kb.management.base import JSON, KnowledgeBaseCommand
from kb.operations.services.health.health import findings


class Command(KnowledgeBaseCommand):
    help = "Examines services, models, versions and content, and says what is degraded or broken and what to do."
    requires_system_checks = ()
    arguments = (JSON,)

    def handle(self, *_args: Any, **options: Any) -> None:
        found = findings()
        self.answer(options, found, self._lines(found))
        if broken := [finding.name for finding in found if finding.state is State.BROKEN]:
            raise CommandError(f"Broken: {', '.join(broken)}.")

    def _lines(self, found: list[Finding]) -> Iterator[str]:
        style = {State.OK: self.style.SUCCESS, State.DEGRADED: self.style.WARNING, State.BROKEN: self.style.ERROR}
        for finding in found:
            yield f"{style[finding.state](f'{finding.state.value:<8}')}  {finding.name}: {finding.detail}"
            if finding.remedy:
                yield f"{'':<10}-> {finding.remedy}"
