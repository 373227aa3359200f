"""The forms of an assistant: how it answers, from the one declaration of its settings, and what holds at once."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from django import forms
from django.core.exceptions import ValidationError
from django.forms.boundfield import BoundWidget
from django.utils.translation import gettext as _, gettext_lazy
from unfold.widgets import CHECKBOX_CLASSES, RADIO_CLASSES, TEXTAREA_CLASSES

from kb.access.models import KnowledgeBase, Principal
from kb.assistants.models import Assistant
from kb.assistants.services.assistants import MOST_PICTURE_MB
from kb.assistants.settings import MOST_QUESTIONS, SETTINGS, AssistantSettings
from kb.profiles.admin.choices import Choices, as_field_choices, profile_choices, select, text_input
from kb.providers.embedding_models import model_choices
from kb.providers.recommended import Role
from kb.web.admin.scoped import LinesField

ACCESS_HELP: Final[Mapping[str, Any]] = {
    Assistant.Access.PRIVATE: gettext_lazy("Whoever may see all of its knowledge bases here, and nobody else."),
    Assistant.Access.SIGNED_IN: gettext_lazy("Every account of this installation."),
    Assistant.Access.LINK: gettext_lazy("No account needed. A link can end by itself, and be revoked."),
    Assistant.Access.PUBLIC: gettext_lazy("Whoever knows the address, without an account."),
}
_DEFAULTS: Final = AssistantSettings()
_KINDS: Final[Mapping[str, Any]] = {each.name: type(each.default) for each in dataclasses.fields(AssistantSettings)}


def checkbox() -> forms.CheckboxInput:
    return forms.CheckboxInput({"class": " ".join(CHECKBOX_CLASSES)})


def _textarea(rows: int) -> forms.Widget:
    return forms.Textarea({"class": " ".join(TEXTAREA_CLASSES), "rows": rows})


class QuestionsField(LinesField):
    def clean(self, value: Any) -> Any:
        lines = super().clean(value)
        if len(lines) > MOST_QUESTIONS:
            raise ValidationError(_("Give at most %(most)d questions.") % {"most": MOST_QUESTIONS})
        most = SETTINGS["suggested_questions"].most
        if any(len(line) > most for line in lines):
            raise ValidationError(_("A question has at most %(most)d characters.") % {"most": most})
        return lines


def setting_field(name: str, choices: Choices | None = None) -> forms.Field:
    """The field of a setting, as it is declared; `choices` are those of a name that is one of several."""
    declared, kind = SETTINGS[name], _KINDS[name]
    options: dict[str, Any] = {"label": _(declared.label), "help_text": _(declared.help), "required": False}
    if choices is not None or declared.choices:
        named = choices or [(value, _(label)) for value, label in declared.choices.items()]
        return forms.ChoiceField(choices=named, widget=select(), **options)
    if kind is bool:
        return forms.BooleanField(widget=checkbox(), **options)
    if kind is tuple:
        field = QuestionsField(**{key: value for key, value in options.items() if key != "required"})
        field.widget.attrs["rows"] = declared.lines
        return field
    if declared.between is not None:
        low, high = declared.between
        number: Any = forms.IntegerField if kind is int else forms.FloatField
        options |= {"required": True, "widget": text_input(inputmode="numeric" if kind is int else "decimal")}
        return cast(forms.Field, number(min_value=low, max_value=high, **options))
    widget: forms.Widget = _textarea(declared.lines) if declared.lines > 1 else text_input()
    return forms.CharField(max_length=declared.most, widget=widget, **options)


class BasesField(forms.TypedMultipleChoiceField):
    """Knowledge bases that the user may edit; those chosen stand first."""

    def __init__(self, bases: Iterable[KnowledgeBase], chosen: Iterable[int]) -> None:
        first = set(chosen)
        ordered = sorted(bases, key=lambda kb: kb.pk not in first)
        super().__init__(
            label=_("Knowledge bases"),
            coerce=int,
            choices=[(str(kb.pk), kb.name) for kb in ordered],
            initial=[str(kb.pk) for kb in ordered if kb.pk in first],
            widget=forms.CheckboxSelectMultiple({"class": " ".join(CHECKBOX_CLASSES)}),
            error_messages={"required": _("Choose at least one knowledge base.")},
        )


def access_field() -> forms.ChoiceField:
    return forms.ChoiceField(
        label=_("Who may use it"),
        choices=Assistant.Access.choices,
        widget=forms.RadioSelect({"class": " ".join(RADIO_CLASSES)}),
    )


class _WithAccess(forms.Form):
    @property
    def access_choices(self) -> list[tuple[BoundWidget, Any]]:
        """The choices of who may use it, each with what it means."""
        return [(radio, ACCESS_HELP[radio.data["value"]]) for radio in self["access"]]


class NewForm(_WithAccess):
    """A new assistant: everything else has a default."""

    name = forms.CharField(
        label=gettext_lazy("Name"),
        required=False,
        max_length=80,
        widget=text_input(),
        help_text=gettext_lazy("What visitors see. Blank: the name of the knowledge base."),
    )

    def __init__(self, bases: Sequence[KnowledgeBase], chosen: Sequence[KnowledgeBase], data: Any = None) -> None:
        super().__init__(data, initial={"name": chosen[0].name[:80] if chosen else "", "access": Assistant.Access.LINK})
        self.names = {kb.pk: kb.name for kb in bases}
        self.fields["knowledge_bases"] = BasesField(bases, [kb.pk for kb in chosen])
        self.fields["access"] = access_field()

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if not values.get("name") and values.get("knowledge_bases"):
            values["name"] = self.names[values["knowledge_bases"][0]][:80]
        return values


class SettingsForm(forms.Form):
    """How an assistant answers, which its next version holds, with its name, picture and knowledge bases."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=80, widget=text_input())
    picture = forms.FileField(
        label=gettext_lazy("Picture"), required=False, help_text=gettext_lazy("PNG, JPEG or WebP; it is made small.")
    )
    no_picture = forms.BooleanField(label=gettext_lazy("Remove the picture"), required=False, widget=checkbox())

    def __init__(
        self,
        caller: Principal,
        assistant: Assistant,
        settings: AssistantSettings,
        bases: Iterable[KnowledgeBase],
        data: Any = None,
        files: Any = None,
    ) -> None:
        values = {name: getattr(settings, name) for name in SETTINGS}
        values |= {
            "suggested_questions": list(settings.suggested_questions),
            "temperature": f"{settings.temperature:g}",
        }
        super().__init__(data, files, initial={"name": assistant.name, **values})
        self.fields["knowledge_bases"] = BasesField(bases, [kb.pk for kb in assistant.knowledge_bases.all()])
        offered = {"profile": _profiles(caller, settings.profile), "model": _models(settings.model)}
        for name in SETTINGS:
            self.fields[name] = setting_field(name, offered.get(name))

    def clean_picture(self) -> Any:
        given = self.cleaned_data["picture"]
        if given and given.size > MOST_PICTURE_MB * 1024**2:
            raise ValidationError(_("Choose a picture of at most %(most)d MB.") % {"most": MOST_PICTURE_MB})
        return given

    @property
    def groups(self) -> list[tuple[str, list[forms.BoundField]]]:
        """The settings under the titles of their groups."""
        titles = dict.fromkeys(declared.group for declared in SETTINGS.values())
        return [(_(title), [self[name] for name, each in SETTINGS.items() if each.group == title]) for title in titles]

    @property
    def settings(self) -> AssistantSettings:
        values = {name: self.cleaned_data[name] for name in SETTINGS}
        values["suggested_questions"] = tuple(values["suggested_questions"])
        values["shows"] = values["shows"] or _DEFAULTS.shows
        return AssistantSettings(**values)


def _profiles(caller: Principal, chosen: str) -> Choices:
    return [("", _("each knowledge base’s own")), *as_field_choices(profile_choices(caller, chosen))]


def _models(chosen: str) -> Choices:
    """Enabled chat models, and the one that is chosen though it may be none any more."""
    offered = [(each.slug, each.name) for each in model_choices(Role.CHAT) if each.slug]
    if chosen and chosen not in dict(offered):
        offered.append((chosen, _("%(model)s (not there any more)") % {"model": chosen}))
    return [("", _("the default of this installation")), *offered]


class AccessForm(_WithAccess):
    """Who may use an assistant, and at which address; it holds at once."""

    slug = forms.CharField(
        label=gettext_lazy("Address"),
        max_length=60,
        widget=text_input(spellcheck="false"),
        help_text=gettext_lazy(
            "Letters a to z, digits and hyphens. Links that were given out end with another address."
        ),
    )
    password = forms.CharField(
        label=gettext_lazy("Password"),
        required=False,
        max_length=128,
        strip=False,
        widget=forms.PasswordInput({"class": text_input().attrs["class"], "autocomplete": "new-password"}),
    )
    no_password = forms.BooleanField(label=gettext_lazy("Remove the password"), required=False, widget=checkbox())

    def __init__(self, assistant: Assistant, data: Any = None) -> None:
        super().__init__(data, initial={"slug": assistant.slug, "access": assistant.access})
        self.fields["access"] = access_field()
        self.fields["password"].help_text = (
            _("One is set. Blank: it stays; another one lets out whoever came in with the old one.")
            if assistant.password
            else _("Blank: none is asked for. Members of the knowledge bases never need it.")
        )
        if not assistant.password:
            del self.fields["no_password"]

    @property
    def values(self) -> dict[str, Any]:
        """What `assistant_update` is given."""
        asked = self.cleaned_data
        password = "" if asked.get("no_password") else asked["password"] or None
        return {"slug": asked["slug"], "access": asked["access"], "password": password}


class OriginsForm(forms.Form):
    origins = LinesField(
        label=gettext_lazy("Allowed websites"),
        is_code=True,
        help_text=gettext_lazy("One a line, without a path, such as https://www.example.com."),
    )


LIMITS: Final = (
    ("", gettext_lazy("Everybody together"), "total"),
    ("v", gettext_lazy("One visitor"), "visitor"),
    ("a", gettext_lazy("One network address"), "address"),
)


class LimitsForm(forms.Form):
    """What may be asked in a day, and for how long conversations are kept; it holds at once."""

    def __init__(self, assistant: Assistant, data: Any = None) -> None:
        limits = [f"{whose}_{what}" for _kind, _title, whose in LIMITS for what in ("questions", "tokens")]
        names = [*limits, "retention_days", "keeps_text"]
        super().__init__(data, initial={name: getattr(assistant, name) for name in names})
        for name in names:
            of_model: Any = Assistant._meta.get_field(name)
            self.fields[name] = of_model.formfield(
                widget=checkbox() if name == "keeps_text" else text_input(inputmode="numeric")
            )
        for name in limits:
            self.fields[name].widget.attrs["placeholder"] = _("no limit")
