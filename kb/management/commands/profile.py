import json
import shlex
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from kb.access.models import Principal
from kb.management.base import KnowledgeBaseCommand, setting
from kb.profiles.services import create_version, find_version, name_and_version, place_of, publish, reference
from kb.quality.profiles.services import (
    ProfileVersion,
    PublishedProfile,
    profile_difference,
    profile_names,
    profile_overviews,
    resolved,
    state_of,
)

ENVIRONMENT = "environment"


class Command(KnowledgeBaseCommand):
    help = "Lists, shows, compares, saves and publishes retrieval profiles: named, versioned settings of searches."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

        def action(name: str, words: str) -> ArgumentParser:
            added = actions.add_parser(name, help=words, description=words)
            added.add_argument("--json", action="store_true", help="print JSON")
            added.add_argument(
                "--user", metavar="NAME", help="whose permissions apply (default: the first superuser's)"
            )
            return added

        action("list", "one line a profile: its versions, and which knowledge bases search by it")
        show = action("show", "the settings of a version")
        show.add_argument("profile", metavar="NAME[@V]", help="without a version: the one that is live")
        diff = action("diff", "the settings in which two versions differ")
        diff.add_argument("before", metavar="NAME[@V]", help=f"or {ENVIRONMENT!r}, for its defaults")
        diff.add_argument("after", metavar="NAME[@V]")
        self._add_create(action("create", "save settings as the next version of a profile: a draft"))
        publishing = action("publish", "make a version the one that its name stands for, also an earlier one")
        publishing.add_argument("profile", metavar="NAME@V")
        publishing.add_argument(
            "--adopt",
            action="store_true",
            help="the knowledge base whose own profile it is searches by it from now on",
        )

    def _add_create(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="of the profile; one that is not there is made")
        parser.add_argument(
            "--set",
            dest="given",
            type=setting,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a setting by its name in the configuration; the value is JSON, or a text (may be given several times)",
        )
        parser.add_argument("--from", dest="base", metavar="NAME[@V]", help="begin with the settings of this version")
        parser.add_argument("--description", default="", metavar="TEXT", help="what is different")
        self.add_kb_argument(parser, required=False)

    def handle(self, *_args: Any, **options: Any) -> None:
        actions = {
            "list": self._list,
            "show": self._show,
            "diff": self._diff,
            "create": self._create,
            "publish": self._publish,
        }
        actions[options["action"]](Principal(self.user(options["user"])), options)

    def _list(self, principal: Principal, options: Mapping[str, Any]) -> None:
        overviews = profile_overviews(principal, list(profile_names(principal)))
        if options["json"]:
            self.print_json([overview.as_dict() for overview in overviews])
            return
        for each in overviews:
            place = f" (of {each.knowledge_base.name})" if each.knowledge_base else ""
            versions = f"v{each.published.version} published" if each.published else "none published"
            if each.draft:
                versions += f", draft v{each.draft.version}"
            used = ", ".join(kb.name for kb in each.used_by) or "no knowledge base"
            self.stdout.write(f"{each.name}{place}: {versions}; used by {used}")

    def _show(self, principal: Principal, options: Mapping[str, Any]) -> None:
        profile = find_version(principal, *name_and_version(options["profile"]))
        shown = resolved(profile)
        if options["json"]:
            self.print_json(shown)
            return
        place = f" of {profile.knowledge_base.name}" if profile.knowledge_base else ""
        self.stdout.write(f"{profile.name}@{profile.version}{place}: {state_of(profile).value}")
        if profile.description:
            self.stdout.write(f"  {profile.description}")
        for name, value in shown.configuration.items():
            inherited = "" if name in profile.settings else "  (inherited)"
            self.stdout.write(f"  {name:<22}{_shown(value)}{inherited}")

    def _diff(self, principal: Principal, options: Mapping[str, Any]) -> None:
        before = None
        if options["before"] != ENVIRONMENT:
            before = find_version(principal, *name_and_version(options["before"]))
        found = profile_difference(before, find_version(principal, *name_and_version(options["after"])))
        if options["json"]:
            self.print_json(found)
            return
        for each in found.differences:
            self.stdout.write(f"{each.name:<22}{_shown(each.before)} -> {_shown(each.after)}")
        if not found.differences:
            self.stdout.write("Both come to the same settings.")

    def _create(self, principal: Principal, options: Mapping[str, Any]) -> None:
        start = find_version(principal, *name_and_version(options["base"])).settings if options["base"] else {}
        draft = create_version(
            principal,
            options["name"],
            {**start, **dict(options["given"])},
            description=options["description"],
            knowledge_base=self.knowledge_base(dict(options))
            if options["kb"]
            else place_of(principal, options["name"].strip()),
        )
        if options["json"]:
            self.print_json(ProfileVersion.of(draft))
            return
        name = f"{draft.name}@{draft.version}"
        command = f"manage.py profile publish {shlex.quote(f'{reference(draft)}@{draft.version}')}"
        self.stdout.write(f"{name} is saved, a draft: `{command}` makes it the live one.")

    def _publish(self, principal: Principal, options: Mapping[str, Any]) -> None:
        profile = find_version(principal, *name_and_version(options["profile"]))
        moved = publish(principal, profile, adopt=options["adopt"])
        if options["json"]:
            self.print_json(PublishedProfile.of(profile, moved=moved))
            return
        self.stdout.write(f"{profile.name}@{profile.version} is published; knowledge bases that have moved: {moved}.")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
