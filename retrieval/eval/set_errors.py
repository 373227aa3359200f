"""What can be wrong with the files of an evaluation set: each with the place and the remedy."""

from enum import StrEnum
from typing import Final

from retrieval.errors import RetrievalError


class SetProblem(StrEnum):
    MISSING_FILE = "missing_file"
    MISSING_SPLIT = "missing_split"
    NO_SET = "no_set"
    SEVERAL_FILES = "several_files"
    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    BAD_META = "bad_meta"
    NOT_OBJECT = "not_object"
    NO_FIELD = "no_field"
    BAD_ID = "bad_id"
    TOO_LONG = "too_long"
    BAD_ANSWERABLE = "bad_answerable"
    BAD_TOPIC = "bad_topic"
    BAD_JUDGMENT = "bad_judgment"
    BAD_TREC_JUDGMENT = "bad_trec_judgment"
    UNKNOWN_QUERY = "unknown_query"
    UNKNOWN_PASSAGE = "unknown_passage"
    NOT_A_GRADE = "not_a_grade"
    GRADE_TOO_HIGH = "grade_too_high"
    JUDGED_TWICE = "judged_twice"


MESSAGES: Final[dict[SetProblem, str]] = {
    SetProblem.MISSING_FILE: "{place} does not exist: {layout}",
    SetProblem.MISSING_SPLIT: "{place} does not exist: choose one of the splits {splits}",
    SetProblem.NO_SET: "{place}: there is neither queries.jsonl (BEIR) nor a topics file (TREC): add one",
    SetProblem.SEVERAL_FILES: "{place}: these files could all be the one: {names}: keep one of them",
    SetProblem.NOT_UTF8: "{place}: not UTF-8 ({reason}): save the file as UTF-8",
    SetProblem.NOT_JSON: "{place}: not valid JSON ({reason}): correct the line",
    SetProblem.BAD_META: "{place}: not valid JSON ({reason}): correct it, or delete it to use the folder's name",
    SetProblem.NOT_OBJECT: "{place}: not a JSON object: each line must be one",
    SetProblem.NO_FIELD: "{place}: field '{field}' is missing or no string: add it",
    SetProblem.BAD_ID: "{place}: _id '{id}' is empty or was used before: give each line an id of its own",
    SetProblem.TOO_LONG: "{place}: the {field} is longer than {length} characters: shorten it",
    SetProblem.BAD_ANSWERABLE: "{place}: metadata.answerable must be true, false or absent",
    SetProblem.BAD_TOPIC: "{place}: not a topic: write the query's id, a tab and the query",
    SetProblem.BAD_JUDGMENT: "{place}: {count} fields: a line is query-id, corpus-id and score with tabs between",
    SetProblem.BAD_TREC_JUDGMENT: "{place}: not a judgment: a line is a query's id, 0, a document's id and a whole number",
    SetProblem.UNKNOWN_QUERY: "{place}: unknown query '{id}': add it to {queries} or delete the line",
    SetProblem.UNKNOWN_PASSAGE: "{place}: unknown passage '{id}': add it to corpus.jsonl or delete the line",
    SetProblem.NOT_A_GRADE: "{place}: score '{grade}' is no whole number: correct the line",
    SetProblem.GRADE_TOO_HIGH: "{place}: grade {grade} is above {most}: scale the grades down to 0 to {most}",
    SetProblem.JUDGED_TWICE: "{place}: query '{query}' judges passage '{id}' twice: keep one line",
}


class SetFormatError(RetrievalError):
    """A file of an evaluation set is missing or malformed.

    Attributes:
        problem: the key of MESSAGES.
        place: the file and, where there is one, the line's number, as in "queries.jsonl:3".
        params: the values of the template's other fields, for a translated template.
    """

    def __init__(self, problem: SetProblem, place: object, **params: str | int) -> None:
        super().__init__(MESSAGES[problem].format(place=place, **params))
        self.problem = problem
        self.place = str(place)
        self.params = params
