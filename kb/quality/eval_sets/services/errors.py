"""What is wrong with the files of an evaluation set, said to people."""

from collections.abc import Mapping

from django.utils.translation import gettext as _

from kb.base.validators import storable
from retrieval.eval.set_errors import SetFormatError, SetProblem


def format_problem_in_words(error: SetFormatError, root: str = "") -> str:
    """The sentence in the reader's language; the place is named from `root` on."""
    sentences: Mapping[SetProblem, str] = {
        SetProblem.MISSING_FILE: _("“%(place)s” does not exist: add it."),
        SetProblem.MISSING_SPLIT: _("“%(place)s” does not exist: choose one of the splits %(splits)s."),
        SetProblem.NO_SET: _("There is neither queries.jsonl (BEIR) nor a topics file (TREC): add one."),
        SetProblem.SEVERAL_FILES: _("These files could all be the one: %(names)s. Keep one of them."),
        SetProblem.NOT_UTF8: _("%(place)s: not UTF-8: save the file as UTF-8."),
        SetProblem.NOT_JSON: _("%(place)s: not valid JSON (%(reason)s): correct the line."),
        SetProblem.BAD_META: _("%(place)s: not valid JSON (%(reason)s): correct the file, or take it out."),
        SetProblem.NOT_OBJECT: _("%(place)s: not a JSON object: each line must be one."),
        SetProblem.NO_FIELD: _("%(place)s: the field “%(field)s” is missing or no string: add it."),
        SetProblem.BAD_ID: _(
            "%(place)s: the id “%(id)s” is empty or was used before: give each line an id of its own."
        ),
        SetProblem.TOO_LONG: _("%(place)s: the field “%(field)s” is longer than %(length)s characters: shorten it."),
        SetProblem.BAD_ANSWERABLE: _("%(place)s: metadata.answerable must be true, false or absent: correct it."),
        SetProblem.BAD_TOPIC: _("%(place)s: this is no topic: write the query’s id, a tab and the query."),
        SetProblem.BAD_JUDGMENT: _(
            "%(place)s: there are %(count)s fields: a line is query-id, corpus-id and score with tabs between."
        ),
        SetProblem.BAD_TREC_JUDGMENT: _(
            "%(place)s: this is no judgment: a line is a query’s id, 0, a document’s id and a whole number."
        ),
        SetProblem.UNKNOWN_QUERY: _("%(place)s: unknown query “%(id)s”: add it to %(queries)s, or delete the line."),
        SetProblem.UNKNOWN_PASSAGE: _("%(place)s: unknown document “%(id)s”: import it first, or delete the line."),
        SetProblem.NOT_A_GRADE: _("%(place)s: the score “%(grade)s” is no whole number from 0: correct the line."),
        SetProblem.GRADE_TOO_HIGH: _(
            "%(place)s: the grade %(grade)s is above %(most)s: scale the grades down to 0 to %(most)s."
        ),
        SetProblem.JUDGED_TWICE: _("%(place)s: the query “%(query)s” judges “%(id)s” twice: keep one line."),
    }
    place = error.place.removeprefix(root).removeprefix("/")
    return storable(sentences[error.problem] % {**error.params, "place": place})
