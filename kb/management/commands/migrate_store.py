import shlex
from typing import Any

from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase
from kb.index.models import StoreState
from kb.index.services.stores.applying import changes_apply
from kb.index.services.stores.migration import STORE_MOVE, copy_check, migration_cancel, migration_start, store_rebuild
from kb.jobs.moves import AlreadyRunning
from kb.management.base import KnowledgeBaseCommand, argument, kb_arguments, one_of

Store = KnowledgeBase.Store


class Command(KnowledgeBaseCommand):
    help = (
        "Moves the search of a knowledge base's vectors, and with Milvus of its keywords, to another store. Searches go on "
        "meanwhile; an interrupted move goes on where it stood."
    )

    arguments = (
        *kb_arguments(),
        one_of(
            argument("--to", choices=Store.values, metavar="STORE", help=f"one of {', '.join(Store.values)}"),
            argument("--verify", action="store_true", help="count and measure the copy in use, and change nothing"),
            argument("--rebuild", action="store_true", help="fill the copy in use again"),
            argument("--cancel", action="store_true", help="give up a move that is under way"),
            required=True,
        ),
        argument("--no-wait", action="store_true", help="with --to: leave the work to a worker"),
    )

    def handle(self, *_: Any, **options: Any) -> None:
        kb = self.knowledge_base(options)
        if options["verify"]:
            self._verify(kb)
        elif options["cancel"]:
            migration_cancel(kb)
            self.stdout.write(f"{kb.name}: searches use {kb.get_store_display()}; nothing is on its way")
        elif options["rebuild"]:
            self._rebuild(kb)
        else:
            self._move(kb, options)

    def _move(self, kb: KnowledgeBase, options: dict[str, Any]) -> None:
        target = options["to"]
        if kb.store == target and not kb.target_store:
            self.stdout.write(f"{kb.name}: searches use {kb.get_store_display()} already")
            return
        migration_start(kb, target)
        if options["no_wait"]:
            self.stdout.write(f"{kb.name}: a worker moves it to {Store(target).label}")
            return
        state = StoreState.objects.get(knowledge_base=kb, store=target)
        begun = STORE_MOVE.done(kb, target)
        with self.progress_bar(total=state.total, unit="changes") as bar:
            bar.update(begun)
            STORE_MOVE.follow(kb, on_progress=lambda count: bar.update(count) if bar.n + count <= state.total else None)
        self.stdout.write(f"{kb.name}: searches use {kb.get_store_display()}{self._measured(kb)}")

    def _measured(self, kb: KnowledgeBase) -> str:
        checked = StoreState.objects.filter(knowledge_base=kb, store=kb.store).values_list("checked", flat=True).first()
        if not checked:
            return " (few vectors, compared one by one without an index)" if kb.store == Store.POSTGRES else ""
        recall = (
            "" if checked["recall"] is None else f", recall@25 {checked['recall']:.3f} of {checked['sampled']} searches"
        )
        what = "vectors in an index" if kb.store == Store.POSTGRES else "vectors and texts"
        return f" ({checked['found']:,} {what}{recall})"

    def _rebuild(self, kb: KnowledgeBase) -> None:
        total = store_rebuild(kb)
        with self.progress_bar(total=total, unit="changes") as bar:
            told, is_done = 0, False
            while not is_done:
                try:
                    is_done = changes_apply(kb.pk, kb.store, batches=iter(range(1)))
                except AlreadyRunning:
                    raise CommandError("a worker is at it already: `--verify` shows when it is done") from None
                done = STORE_MOVE.done(kb, kb.store)
                bar.update(done - told)
                told = done
        self._verify(kb)

    def _verify(self, kb: KnowledgeBase) -> None:
        if kb.store == Store.POSTGRES:
            self.stdout.write(f"{kb.name}: PostgreSQL holds everything itself, there is no copy to compare")
            return
        check = copy_check(kb, kb.store)
        for name in sorted(check.expected.keys() | check.found.keys()):
            there, wanted = check.found.get(name, 0), check.expected.get(name, 0)
            self.stdout.write(f"  {name}: {there:,} of {wanted:,}")
        if check.recall is not None:
            self.stdout.write(f"  recall@25 against exact search: {check.recall:.3f} ({check.sampled} searches)")
        if not check.is_good:
            name = shlex.quote(kb.name)
            raise CommandError(
                f"the copy is not what it should be; where changes wait, a worker applies them, else run "
                f"`manage.py migrate_store --kb {name} --rebuild`"
            )
        self.stdout.write(f"{kb.name}: the copy in {kb.get_store_display()} is complete")
