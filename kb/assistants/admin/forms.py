"""The forms of an assistant: how it answers, from the one declaration of its settings, and what holds at once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django import forms
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.forms.boundfield import BoundWidget
from django.utils.translation import gettext as _, gettext_lazy

from kb.access.models import KnowledgeBase, Principal
from kb.assistants.models import Assistant
from kb.assistants.services.assistants import MOST_PICTURE_MB
from kb.assistants.settings import MOST_QUESTIONS, SETTINGS, AssistantSettings
from kb.profiles.admin.choices import as_field_choices, profile_choices
from kb.providers.embedding_models import model_choices
from kb.providers.recommended import Role
from kb.web.admin.fields import Choices, checkbox, checkboxes, names_by_group, radios, setting_field, text_input
from kb.web.admin.scoped import LinesField
from retrieval.settings import Setting

ACCESS_HELP: Final[Mapping[str, Any]] = {
    Assistant.Access.PRIVATE: gettext_lazy("Whoever may see all of its knowledge bases here, and nobody else."),
    Assistant.Access.SIGNED_IN: gettext_lazy("Every account of this installation."),
    Assistant.Access.LINK: gettext_lazy("No account needed. A link can end by itself, and be revoked."),
    Assistant.Access.PUBLIC: gettext_lazy("Whoever knows the address, without an account."),
}
_DEFAULTS: Final = AssistantSettings()


class QuestionsField(LinesField):
    def __init__(self, declared: Setting) -> None:
        super().__init__(label=_(declared.label), help_text=_(declared.help))
        self.widget.attrs["rows"] = declared.lines
        self.most_characters = declared.most

    def clean(self, value: Any) -> Any:
        lines = super().clean(value)
        if len(lines) > MOST_QUESTIONS:
            raise ValidationError(_("Give at most %(most)d questions.") % {"most": MOST_QUESTIONS})
        if any(len(line) > self.most_characters for line in lines):
            raise ValidationError(_("A question has at most %(most)d characters.") % {"most": self.most_characters})
        return lines


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
            widget=checkboxes(),
            error_messages={"required": _("Choose at least one knowledge base.")},
        )


def access_field() -> forms.ChoiceField:
    return forms.ChoiceField(
        label=_("Who may use it"),
        choices=Assistant.Access.choices,
        widget=radios(),
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
        for name, declared in SETTINGS.items():
            self.fields[name] = (
                QuestionsField(declared)
                if name == "suggested_questions"
                else setting_field(declared, choices=offered.get(name))
            )

    def clean_picture(self) -> Any:
        given = self.cleaned_data["picture"]
        if given and given.size > MOST_PICTURE_MB * 1024**2:
            raise ValidationError(_("Choose a picture of at most %(most)d MB.") % {"most": MOST_PICTURE_MB})
        return given

    @property
    def groups(self) -> list[tuple[str, list[forms.BoundField]]]:
        """The settings under the titles of their groups."""
        return [(title, [self[name] for name in names]) for title, names in names_by_group(SETTINGS).items()]

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
        validators=[validate_password],
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
