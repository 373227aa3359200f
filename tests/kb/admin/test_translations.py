"""The Chinese catalogue: complete, compiled, and true to the placeholders of its originals."""

import ast
import re
from pathlib import Path

import polib
from django.utils import translation
from django.utils.translation import gettext

from kb.web.admin.theme_strings import BORROWED

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "kb/locale/zh_Hans/LC_MESSAGES"
CATALOGUE = polib.pofile(str(FOLDER / "django.po"))
# A field's conversion and format may differ: Chinese quotes a name by other marks.
FIELDS = re.compile(r"%\(\w+\)[sd]|\{\w*(?=[!:}])")


MARKERS = {"_", "gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy"}
IN_TEMPLATES = re.compile(r'{% translate "([^"]+)"(?: as \w+)? %}')
SOURCES = [path for folder in ("config", "kb", "retrieval") for path in (ROOT / folder).rglob("*.py")]
TEMPLATES = list((ROOT / "templates").rglob("*.html"))


def marked_in(path):
    """The strings of a file that are marked for translation."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        return set(IN_TEMPLATES.findall(text))
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.args)
    first = (call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id in MARKERS)
    return {node.value for node in first if isinstance(node, ast.Constant) and node.value}


def text_of(entry):
    return entry.msgstr_plural[0] if entry.msgid_plural else entry.msgstr


def texts_of(catalogue):
    return {(entry.msgctxt, entry.msgid): text_of(entry) for entry in catalogue}


def test_nothing_is_untranslated_fuzzy_or_obsolete():
    assert [entry.msgid for entry in CATALOGUE if not text_of(entry) or entry.fuzzy or entry.obsolete] == []


def test_the_catalogue_holds_what_is_marked():
    known = {entry.msgid for entry in CATALOGUE}

    missing = {str(path.relative_to(ROOT)): marked_in(path) - known for path in (*SOURCES, *TEMPLATES)}

    assert {path: strings for path, strings in missing.items() if strings} == {}, (
        "run `manage.py makemessages -l zh_Hans`, translate and `manage.py compilemessages`"
    )


def test_a_translation_has_the_fields_of_its_original():
    # Chinese has one form, for any number, which is that of the plural.
    pairs = [(entry.msgid_plural or entry.msgid, text_of(entry)) for entry in CATALOGUE]

    assert [pair for pair in pairs if set(FIELDS.findall(pair[0])) != set(FIELDS.findall(pair[1]))] == []


def test_the_compiled_catalogue_is_that_of_the_source():
    compiled = polib.mofile(str(FOLDER / "django.mo"))

    assert texts_of(compiled) == texts_of(CATALOGUE)


def test_the_strings_of_the_theme_are_translated():
    with translation.override("zh-hans"):
        assert [borrowed for borrowed in BORROWED if gettext(borrowed) == borrowed] == []
