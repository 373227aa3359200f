"""The reference pages, made from the code: `python -m tests.reference` writes them, with `--check` it says whether they are right."""

import argparse
import os
import re
import sys
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"en": ROOT / "docs" / "reference.md", "zh-hans": ROOT / "docs" / "reference.zh-CN.md"}
WORDS = {
    "en": {
        "title": "Reference",
        "other": "[中文](reference.zh-CN.md)",
        "intro": "Made from the code by `python -m tests.reference`; `make check` holds it against the code.",
        "settings": "Retrieval settings",
        "settings_intro": "A variable sets the default of the installation, a profile that of a knowledge base, `overrides` "
        "that of a request.",
        "settings_columns": ("setting", "variable", "default", "values", "meaning"),
        "auto": "auto",
        "assistants": "Settings of assistants",
        "assistants_intro": "Versions of an [assistant](share-a-chat.md#how-it-answers) hold them.",
        "assistants_columns": ("setting", "default", "values", "meaning"),
        "models": "Recommended models",
        "models_intro": "The best of a language and size first, as `download_model --list` has them. Sizes are those of single "
        "precision with the tokenizer's files, in MB; “many” are about a hundred languages. Published figures (0 to "
        "100) are those of the linked sources, and were not measured here. Where this code was built no weights could be fetched: "
        "it was run with the real weights only where the last column says so, and otherwise with small models of the same kinds "
        "made in tests.",
        "models_columns": (
            "model",
            "for",
            "languages",
            "size",
            "dimensions",
            "parameters",
            "download",
            "licence",
            "published",
            "run here",
        ),
        "roles": {"embedding": "embedding", "rerank": "reranking"},
        "languages": {"zh": "Chinese", "en": "English", "many": "many"},
        "sizes": {"small": "small", "base": "base", "large": "large"},
        "run_here": {True: "yes", False: "no"},
        "commands": "Commands",
        "operations": "API",
        "operations_columns": ("operation", "what it does"),
        "codes": "Degradations",
        "codes_intro": "Stages and remedies: [what `degraded` can say](degradations.md).",
        "codes_columns": ("code", "meaning"),
    },
    "zh-hans": {
        "title": "参考",
        "other": "[English](reference.md)",
        "intro": "由 `python -m tests.reference` 根据代码生成；`make check` 会核对它与代码是否一致。命令与接口的说明为英文。",
        "settings": "检索设置",
        "settings_intro": "环境变量决定整个安装的默认值，检索方案决定知识库的取值，`overrides` 决定单次请求的取值。",
        "settings_columns": ("设置", "变量", "默认值", "取值", "含义"),
        "auto": "自动",
        "assistants": "助手的设置",
        "assistants_intro": "保存在[助手](share-a-chat.zh-CN.md#如何回答)的版本里。",
        "assistants_columns": ("设置", "默认值", "取值", "含义"),
        "models": "推荐的模型",
        "models_intro": "同一语言、同一大小，最好的在前，与 `download_model --list` 相同。下载大小按单精度加分词器文件计，单位 MB；“多语言”约一百种。"
        "“公布的数字”（0 到 100）出自链接所指的文章，不是在此测得的。编写这些代码的地方下载不到权重：只有最后一列写“是”的模型用真实权重运行过，其余只用测试中制作的同类小模型运行过。",
        "models_columns": (
            "模型",
            "用途",
            "语言",
            "大小",
            "维数",
            "参数",
            "下载",
            "许可证",
            "公布的数字",
            "在此运行过",
        ),
        "roles": {"embedding": "嵌入", "rerank": "重排"},
        "languages": {"zh": "中文", "en": "英文", "many": "多语言"},
        "sizes": {"small": "小", "base": "中", "large": "大"},
        "run_here": {True: "是", False: "否"},
        "commands": "命令",
        "operations": "接口",
        "operations_columns": ("操作", "作用"),
        "codes": "降级",
        "codes_intro": "阶段与补救办法见[`degraded` 会说什么](degradations.zh-CN.md)。",
        "codes_columns": ("代码", "含义"),
    },
}


def table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def values_of(said):
    return "–".join(f"{value:,}" for value in said.between) if said.between else ", ".join(said.choices)


def settings_table(words):
    from django.utils.translation import gettext

    from retrieval.config import SETTINGS

    def row(name):
        said = SETTINGS[name]
        variables = " / ".join(f"`{name}`" for name in (said.env, said.alias) if name)
        value = ",".join(said.default) if isinstance(said.default, tuple) else said.default
        default = words["auto"] if value is None else f"`{str(value).lower()}`"
        return f"`{name}`", variables, default, values_of(said), gettext(said.help)

    return table(words["settings_columns"], map(row, SETTINGS))


def assistants_table(words):
    from django.utils.translation import gettext

    from kb.assistants.settings import SETTINGS

    def row(said):
        default = "" if said.default in ("", ()) else f"`{str(said.default).lower()}`"
        return gettext(said.label), default, values_of(said), gettext(said.help)

    return table(words["assistants_columns"], map(row, SETTINGS.values()))


def models_table(words):
    from kb.providers.recommended import MODELS

    def row(model):
        figures = [f"{each.benchmark}: {each.metric} [{each.value:g}]({each.source})" for each in model.figures]
        notes = [str(model.note)] if model.note else []
        return (
            f"[`{model.model_id}`](https://huggingface.co/{model.model_id})",
            words["roles"][model.role],
            ", ".join(words["languages"][each] for each in model.languages),
            words["sizes"][model.size],
            model.dimension or "",
            f"{model.parameters:g} M",
            f"{model.download_mb:,}",
            model.licence,
            "<br>".join([*figures, *notes]),
            words["run_here"][model.run_here],
        )

    return table(words["models_columns"], map(row, MODELS))


def command_helps():
    from django.core.management import get_commands, load_command_class

    os.environ["COLUMNS"] = "110"  # of the terminal that argparse writes for
    for name in sorted(name for name, app in get_commands().items() if app == "kb"):
        text = load_command_class("kb", name).create_parser("manage.py", name).format_help()
        own = re.sub(r"\s*\[--version\].*?\[--skip-checks\]", "", text.partition("  --version ")[0], flags=re.DOTALL)
        yield f"### {name}\n\n```text\n{own.strip()}\n```"


def operations_table(words):
    from drf_spectacular.generators import SchemaGenerator

    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]
    rows = [
        (f"`{method.upper()} {path}`", operation.get("summary", ""))
        for path, operations in paths.items()
        for method, operation in operations.items()
    ]
    return table(words["operations_columns"], rows)


def codes_table(words):
    from kb.search.admin.labels import degradation_heading
    from retrieval.errors import DegradationCode

    return table(words["codes_columns"], [(f"`{code}`", degradation_heading(code)) for code in DegradationCode])


def page(language):
    """A page, in Markdown; needs Django."""
    from django.utils import translation

    words = WORDS[language]
    with translation.override(language):
        settings, models, codes = settings_table(words), models_table(words), codes_table(words)
        assistants = assistants_table(words)
    with translation.override("en"):
        commands, operations = list(command_helps()), operations_table(words)
    chapters = [
        f"# {words['title']}",
        words["other"],
        words["intro"],
        f"## {words['settings']}",
        words["settings_intro"],
        settings,
        f"## {words['assistants']}",
        words["assistants_intro"],
        assistants,
        f"## {words['models']}",
        words["models_intro"],
        models,
        f"## {words['commands']}",
        *commands,
        f"## {words['operations']}",
        operations,
        f"## {words['codes']}",
        words["codes_intro"],
        codes,
    ]
    return "\n\n".join(chapters) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    for language, path in PAGES.items():
        text = page(language)
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.relative_to(ROOT)} is not what the code says: run python -m tests.reference")


if __name__ == "__main__":
    main()
