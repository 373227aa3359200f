import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.management.base import CommandError

from kb.access.models import Principal
from kb.management.base import JSON, KnowledgeBaseCommand, actions, argument, kb_arguments, setting, table
from kb.profiles.services import create_version, find_version, name_and_version, place_of, publish, reference
from kb.quality.eval_sets.services.sets import eval_set_by_name
from kb.quality.fitting.services import FOLDS, Fit, draft_of, fit_of, measurement, require_folds
from kb.quality.models import EvalRun
from kb.quality.profiles.services import (
    ProfileOverview,
    ProfileVersion,
    PublishedProfile,
    profile_difference,
    profile_names,
    profile_overviews,
    resolved,
    state_of,
)
from kb.quality.runs.services.run import query_count
from kb.quality.runs.services.runs import evaluate_as_run

ENVIRONMENT = "environment"
SHARED = (JSON, argument("--user", metavar="NAME", help="whose permissions apply (default: the first superuser's)"))


class Command(KnowledgeBaseCommand):
    help = (
        "Lists, shows, compares, saves, fits and publishes retrieval profiles: named, versioned settings of searches."
    )

    arguments = (
        actions(
            {
                "list": ("one line a profile: its versions, and which knowledge bases search by it", SHARED),
                "show": (
                    "the settings of a version",
                    (*SHARED, argument("profile", metavar="NAME[@V]", help="without a version: the one that is live")),
                ),
                "diff": (
                    "the settings in which two versions differ",
                    (
                        *SHARED,
                        argument("before", metavar="NAME[@V]", help=f"or {ENVIRONMENT!r}, for its defaults"),
                        argument("after", metavar="NAME[@V]"),
                    ),
                ),
                "create": (
                    "save settings as the next version of a profile: a draft",
                    (
                        *SHARED,
                        argument("name", metavar="NAME", help="of the profile; one that is not there is made"),
                        argument(
                            "--set",
                            dest="given",
                            type=setting,
                            action="append",
                            default=[],
                            metavar="NAME=VALUE",
                            help="a setting by its name in the configuration; the value is JSON, or a text (may be given "
                            "several times)",
                        ),
                        argument(
                            "--from", dest="base", metavar="NAME[@V]", help="begin with the settings of this version"
                        ),
                        argument("--description", default="", metavar="TEXT", help="what is different"),
                        *kb_arguments(required=False),
                    ),
                ),
                "fit": (
                    "fit weights, fusion, use of the overlap reranker and cut to the judgments of an evaluation set: a draft of the "
                    "knowledge base's own, where they gain by more than chance",
                    (
                        *SHARED,
                        *kb_arguments(),
                        argument("--eval-set", required=True, metavar="NAME"),
                        argument(
                            "--profile",
                            default="",
                            metavar="NAME[@V]",
                            help="the present settings, towards which the fit leans (default: the knowledge base's own)",
                        ),
                        argument(
                            "--folds",
                            type=int,
                            default=FOLDS,
                            metavar="N",
                            help="of the cross-validation over queries (default: %(default)s)",
                        ),
                        argument(
                            "--publish",
                            action="store_true",
                            help="publish the draft, if there is one: the knowledge base searches by it from now on",
                        ),
                    ),
                ),
                "publish": (
                    "make a version the one that its name stands for, also an earlier one",
                    (
                        *SHARED,
                        argument("profile", metavar="NAME@V"),
                        argument(
                            "--adopt",
                            action="store_true",
                            help="the knowledge base whose own profile it is searches by it from now on",
                        ),
                    ),
                ),
            }
        ),
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        getattr(self, f"_{options['action']}")(Principal(self.user(options["user"])), options)

    def _list(self, principal: Principal, options: Mapping[str, Any]) -> None:
        overviews = profile_overviews(principal, list(profile_names(principal)))
        self.answer(options, [overview.as_dict() for overview in overviews], map(_overview, overviews))

    def _show(self, principal: Principal, options: Mapping[str, Any]) -> None:
        profile = find_version(principal, *name_and_version(options["profile"]))
        shown = resolved(profile)
        place = f" of {profile.knowledge_base.name}" if profile.knowledge_base else ""
        lines = [f"{profile.name}@{profile.version}{place}: {state_of(profile).value}"]
        if profile.description:
            lines.append(f"  {profile.description}")
        for name, value in shown.configuration.items():
            inherited = "" if name in profile.settings else "  (inherited)"
            lines.append(f"  {name:<22}{_shown(value)}{inherited}")
        self.answer(options, shown, lines)

    def _diff(self, principal: Principal, options: Mapping[str, Any]) -> None:
        before = None
        if options["before"] != ENVIRONMENT:
            before = find_version(principal, *name_and_version(options["before"]))
        found = profile_difference(before, find_version(principal, *name_and_version(options["after"])))
        lines = [f"{each.name:<22}{_shown(each.before)} -> {_shown(each.after)}" for each in found.differences]
        self.answer(options, found, lines or ["Both come to the same settings."])

    def _create(self, principal: Principal, options: Mapping[str, Any]) -> None:
        start = find_version(principal, *name_and_version(options["base"])) if options["base"] else None
        draft = create_version(
            principal,
            options["name"],
            {**(start.settings if start else {}), **dict(options["given"])},
            description=options["description"],
            knowledge_base=self.knowledge_base(dict(options))
            if options["kb"]
            else place_of(principal, options["name"].strip()),
            begun_with=start,
        )
        command = f"manage.py profile publish {shlex.quote(f'{reference(draft)}@{draft.version}')}"
        said = f"{draft.name}@{draft.version} is saved, a draft: `{command}` makes it the live one."
        self.answer(options, ProfileVersion.of(draft), [said])

    def _fit(self, principal: Principal, options: Mapping[str, Any]) -> None:
        require_folds(options["folds"])
        kb = self.knowledge_base(dict(options))
        eval_set = eval_set_by_name(kb, options["eval_set"])
        name, version = name_and_version(options["profile"])
        profile = find_version(principal, name, version, scope=[kb.pk]) if name else None
        with self.progress_bar(total=query_count(eval_set), unit="queries") as bar:
            run = evaluate_as_run(
                principal,
                eval_set,
                profile=profile,
                folds=options["folds"],
                measure=measurement,
                on_progress=bar.update,
            )
        if run.status != EvalRun.Status.DONE:
            raise CommandError(f"Run {run.pk} was cancelled; what it measured until then is in the admin.")
        fit, draft = fit_of(run), draft_of(run)
        lines = [*_fitted(fit), fit.text]
        if draft and options["publish"]:
            publish(principal, draft, adopt=True)
            lines.append(f"{draft.name}@{draft.version} is published: {kb.name} searches by it.")
        elif draft:
            command = f"manage.py profile publish --adopt {shlex.quote(f'{reference(draft)}@{draft.version}')}"
            lines.append(
                f"{draft.name}@{draft.version} is saved, a draft: `{command}` makes the searches of {kb.name} use it."
            )
        self.answer(options, fit, lines)

    def _publish(self, principal: Principal, options: Mapping[str, Any]) -> None:
        profile = find_version(principal, *name_and_version(options["profile"]))
        moved = publish(principal, profile, adopt=options["adopt"])
        said = f"{profile.name}@{profile.version} is published; knowledge bases that have moved: {moved}."
        self.answer(options, PublishedProfile.of(profile, moved=moved), [said])


def _fitted(fit: Fit) -> Iterator[str]:
    yield (
        f"{fit.eval_set}: {fit.queries} queries in {fit.folds} folds, from {fit.profile.name}@{fit.profile.version}, "
        f"stage {fit.stage}, run {fit.run_id}"
    )
    if fit.metrics:
        rows = [
            (
                name,
                *(f"{each:.4f}" for each in (gain.before, gain.after)),
                f"{gain.difference:+.4f}",
                f"{gain.low:+.4f} to {gain.high:+.4f}",
                f"{gain.p_value:.4f}",
            )
            for name, gain in fit.metrics.items()
        ]
        yield from table([("out of fold", "present", "fitted", "difference", "95 % interval", "p"), *rows])
        yield f"NDCG@10 of {fit.won_count} queries is higher, of {fit.lost_count} lower"
    for each in fit.settings:
        yield f"{each.name:<22}{_shown(each.before)} -> {_shown(each.after)}"
    if cut := fit.cut:
        yield f"cut of overlap at {cut.cut:g}: keeps {cut.kept:.1%} of {cut.answerable} answerable queries out of fold"
        if cut.passed is not None:
            yield f"and lets {cut.passed:.1%} of {cut.unanswerable} unanswerable ones pass"


def _overview(of: ProfileOverview) -> str:
    place = f" (of {of.newest.knowledge_base.name})" if of.newest.knowledge_base else ""
    versions = f"v{of.published.version} published" if of.published else "none published"
    if of.draft:
        versions += f", draft v{of.draft.version}"
    used = ", ".join(kb.name for kb in of.used_by) or "no knowledge base"
    return f"{of.newest.name}{place}: {versions}; used by {used}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
