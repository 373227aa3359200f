import dataclasses

import pytest

from kb.models import RetrievalProfile
from kb.profiles.admin.choices import changes_text, setting_label, value_text
from kb.profiles.services import SettingDifference
from kb.quality.profiles.admin.form import ProfileForm
from kb.web.admin.fields import names_by_group
from retrieval.config import SETTINGS, RetrievalConfig


@pytest.fixture(autouse=True)
def _english(settings):
    settings.LANGUAGE_CODE = "en"


def sent(base=None, **fields):
    form = ProfileForm(fields, base)
    form.is_valid()
    return form


# -- The words -----------------------------------------------------------------------------------------------------------
def test_every_setting_has_words_and_a_place_in_the_form():
    settings = [field.name for field in dataclasses.fields(RetrievalConfig)]

    assert all(SETTINGS[name].label and SETTINGS[name].help for name in settings)
    assert [name for names in names_by_group(SETTINGS).values() for name in names] == settings


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("top_k", 5, "5"),
        ("vector_weight", 0.1, "0.1"),
        ("vector_top_k", None, "auto"),
        ("use_rerank", False, "off"),
        ("fusion", "weighted", "weighted sum"),
        ("rewrite", "conversation", "in conversations"),
        ("rerankers", ["overlap", "cosine"], "word overlap, cosine"),
        ("rerankers", [], "none"),
        ("of a later version", "x", "x"),
    ],
)
def test_a_value_in_words(name, value, words):
    assert value_text(name, value) == words


def test_a_change_in_words():
    assert changes_text([SettingDifference("vector_weight", 0.6, 0.4)]) == ["Vector weight: 0.6 → 0.4"]


def test_a_setting_of_another_version_goes_by_its_name():
    assert setting_label("of_a_later_version") == "of_a_later_version"


# -- The form ------------------------------------------------------------------------------------------------------------
def test_an_empty_form_inherits_everything():
    form = sent()

    assert (form.errors, form.settings) == ({}, {})


def test_what_is_inherited_stands_in_the_empty_fields(settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "rrf_k": 33, "enable_fts": False}
    form = ProfileForm(None, None)

    assert form["rrf_k"].field.widget.attrs["placeholder"] == "33"
    assert form["vector_top_k"].field.widget.attrs["placeholder"] == "auto"
    assert "Default (off)" in str(form["enable_fts"])


GIVEN = {
    "top_k": "7",
    "vector_weight": "0.25",
    "vector_top_k": "auto",
    "score_threshold": "0",
    "use_rerank": "off",
    "enable_fts": "on",
    "fusion": "weighted",
    "rerankers": "overlap， cosine",
}
READ = {
    "top_k": 7,
    "vector_weight": 0.25,
    "vector_top_k": None,
    "score_threshold": 0.0,
    "use_rerank": False,
    "enable_fts": True,
    "fusion": "weighted",
    "rerankers": ["overlap", "cosine"],
}


def test_what_is_given_becomes_settings_of_their_types():
    form = sent(**GIVEN)

    assert form.errors == {}
    assert form.settings == READ
    assert all(type(form.settings[name]) is type(value) for name, value in READ.items())


def test_a_version_is_shown_as_it_would_be_entered():
    form = ProfileForm(None, RetrievalProfile(settings={**READ, "rerankers": []}))

    shown = {name: form[name].value() for name in READ}
    assert shown == {**GIVEN, "score_threshold": "0.0", "rerankers": "none"}
    assert form["rrf_k"].value() is None


def test_no_reranker_at_all_is_a_value():
    assert sent(rerankers="none").settings == {"rerankers": []}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("top_k", "0", "Give a whole number from 1 to 200."),
        ("top_k", "201", "Give a whole number from 1 to 200."),
        ("top_k", "5.5", "Give a whole number from 1 to 200."),
        ("top_k", "auto", "Give a whole number from 1 to 200."),
        ("vector_top_k", "many", "Give a whole number from 1 to 2,000. Or write “auto”."),
        ("vector_weight", "nan", "Give a number from 0 to 1,000."),
        ("vector_weight", "1e999", "Give a number from 0 to 1,000."),
        ("score_threshold", "1.1", "Give a number from 0 to 1. Or write “auto”."),
        (
            "rerankers",
            "overlap, best",
            "There is no reranker “best”: choose from cross_encoder, http, overlap, cosine.",
        ),
        ("rerankers", "overlap, overlap", "A reranker is named twice: name each once."),
        ("fusion", "mean", "Choose one of the values."),
        ("use_rerank", "maybe", "Choose one of the values."),
    ],
)
def test_a_value_out_of_range_is_told_at_its_field(field, value, message):
    assert sent(**{field: value}).errors == {field: [message]}


def test_all_fields_at_fault_are_told_at_once():
    assert sent(top_k="0", rrf_k="x").errors.keys() == {"top_k", "rrf_k"}


def test_weights_of_zero_are_told_at_one_of_them():
    form = sent(vector_weight="0", keyword_weight="0")

    assert form.errors == {"keyword_weight": ["Both weights are 0: give at least one channel a weight."]}


def test_a_version_that_changes_nothing_is_not_saved():
    form = sent(RetrievalProfile(version=3, settings={"vector_weight": 1}), vector_weight="1.0")

    assert form.non_field_errors() == ["These are the settings of version 3 already: change one, or go back."]
