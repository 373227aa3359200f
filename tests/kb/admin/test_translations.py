"""The Chinese catalogue: complete, compiled, and true to the placeholders of its originals."""

import ast
import re
from pathlib import Path

import django
import polib
import pytest
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
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
DOCS = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("README*.md")]
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
HAN = "[\u4e00-\u9fff]"
MIXED = re.compile(rf"{HAN}[,;:?!(]|[,;:?!)]{HAN}|{HAN}[A-Za-z0-9]|[A-Za-z0-9]{HAN}")
# Words that had two names or sounded of nobody, with what stands for them now.
REPLACED = {
    "zh": {
        "您": "",
        "你": "",
        "一无所获": "无结果",
        "门槛": "相关度阈值",
        "各用各的": "知识库默认方案",
        "被何阶段": "淘汰阶段",
        "该做的一切": "降级",
        "一半不超过": "P50",
        "未按预期": "降级",
        "不，返回": "取消",
        "图谱读取": "图谱抽取",
        "追踪": "检索记录",
        "书籍": "文档",
        "工作进程": "后台任务",
        "重排器": "重排模型",
        "嵌入器": "嵌入模型",
        "向量模型": "嵌入模型",
        "语言模型": "对话模型",
        "词元": "token",
        "长段落": "父块",
        "数据源": "来源",
        "运维人员": "管理员",
        "搜索日志": "检索日志",
        "收件箱": "待处理问题",
        "检索配置": "检索方案",
        "拥有者": "所有者",
        "接近的结果": "相近结果",
        "量纲": "尺度",
    },
    "en": {
        "cannot be had": "is unavailable",
        "as they should be": "degraded",
        "all that they should": "degraded",
        "anew": "again",
        "so many minutes": "refresh interval",
        "addresses like": "include, exclude",
        "files like": "include, exclude",
        "whoever asks alike": "similar questions",
        "what is returned": "parent chunk",
        "sealed": "signed",
        "least score": "minimum score",
        "nothing chosen": "no file chosen",
        "searches a day": "searches per day",
        "the gate": "the threshold",
        "below the cut": "below the threshold",
        "language model": "chat model",
        "search debug": "retrieval test",
        "inbox": "to do",
    },
}
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


def test_chinese_has_its_own_punctuation_and_a_space_beside_latin_letters():
    texts = (FIELDS.sub("", CODE.sub("", text_of(entry))) for entry in CATALOGUE)

    assert [text for text in texts if MIXED.search(text)] == []


def test_no_word_comes_back_that_was_replaced():
    said = {
        "zh": [text_of(entry) for entry in CATALOGUE],
        "en": [text for entry in CATALOGUE for text in (entry.msgid, entry.msgid_plural)],
    }

    found = {
        (old, text)
        for language, words in REPLACED.items()
        for old in words
        for text in said[language]
        if old in text.lower()
    }
    assert found == set(), "say what REPLACED has for it"


def test_the_docs_use_the_words_of_the_product():
    found = {
        (path.name, old)
        for path in DOCS
        for old in REPLACED["zh" if path.name.endswith(".zh-CN.md") else "en"]
        if old in CODE.sub("", path.read_text(encoding="utf-8")).lower()
    }

    assert found == set(), "say what REPLACED has for it"


def test_what_django_says_of_fields_and_accounts_is_in_chinese():
    """A release of Django changes sentences, and its Chinese follows later."""
    django_folder = Path(django.__file__).parent
    known = {entry.msgid for entry in CATALOGUE if entry.translated()}
    for part in ("conf", "contrib/auth"):
        locale = django_folder / part / "locale"
        said = polib.pofile(str(locale / "zh_Hans/LC_MESSAGES/django.po"))
        known |= {entry.msgid for entry in said if entry.translated()}
        assert {entry.msgid for entry in polib.pofile(str(locale / "en/LC_MESSAGES/django.po"))} <= known


def test_a_short_password_is_refused_in_chinese():
    with translation.override("zh-hans"), pytest.raises(ValidationError) as refused:
        validate_password("x")
    assert not re.search("[A-Za-z]{3}", " ".join(refused.value.messages))
