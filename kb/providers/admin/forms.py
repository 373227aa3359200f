"""The form of a model: what people enter, as a row that can be tested before it is saved."""

import json
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final

from django import forms
from django.core import signing
from django.utils.translation import gettext as _, gettext_lazy
from unfold.widgets import (
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanWidget,
)

from kb.base.messages import restored, stored
from kb.base.net.addresses import FetchError, is_public, parse_url
from kb.providers.endpoints import Endpoint, endpoint_of
from kb.providers.models import ProviderModel
from kb.providers.presets import LOCAL, Preset
from kb.providers.probes import Probe
from kb.providers.recommended import Role
from kb.providers.services import (
    FIELDS_CHARACTERS,
    MOST_DIMENSIONS,
    MOST_TEMPERATURE,
    MOST_TEXTS,
    PROMPT_CHARACTERS,
)
from retrieval.rerankers.forms import FORMS

ROLES: Final = {
    Role.CHAT: gettext_lazy("Chat"),
    Role.EMBEDDING: gettext_lazy("Embedding"),
    Role.RERANK: gettext_lazy("Reranking"),
}
_TESTED: Final = "kb.providers.tested"
_TESTED_SECONDS: Final = 3_600
FORM_NAMES: Final = {
    "jina": gettext_lazy("Jina, SiliconFlow, Zhipu, Xinference, vLLM"),
    "cohere": "Cohere",
    "tei": "Text Embeddings Inference",
    "dashscope": "DashScope",
}


def _whole(label: Any, most: int, help_text: Any = "") -> forms.IntegerField:
    widget = UnfoldAdminTextInputWidget
    return forms.IntegerField(
        label=label, required=False, min_value=1, max_value=most, widget=widget, help_text=help_text
    )


def _prompt(label: Any) -> forms.CharField:
    widget = UnfoldAdminTextInputWidget
    return forms.CharField(label=label, required=False, max_length=PROMPT_CHARACTERS, strip=False, widget=widget)


class ModelForm(forms.Form):
    """Of a preset and a role; a blank key leaves the stored one."""

    base_url = forms.CharField(
        label=gettext_lazy("Address"), max_length=2_000, widget=UnfoldAdminTextInputWidget({"spellcheck": "false"})
    )
    allows_private = forms.BooleanField(
        label=gettext_lazy("The server is in a private network, and this address is right"),
        required=False,
        widget=UnfoldBooleanWidget,
    )
    api_key = forms.CharField(
        label=gettext_lazy("API key"),
        max_length=2_000,
        required=False,
        strip=True,
        widget=UnfoldAdminPasswordWidget({"autocomplete": "off", "spellcheck": "false"}),
    )
    model = forms.CharField(
        label=gettext_lazy("Model"),
        max_length=200,
        widget=UnfoldAdminTextInputWidget({"spellcheck": "false", "list": "model-names", "autocomplete": "off"}),
    )
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=120, required=False, widget=UnfoldAdminTextInputWidget
    )
    is_enabled = forms.BooleanField(
        label=gettext_lazy("Switched on"), required=False, initial=True, widget=UnfoldBooleanWidget
    )
    batch_size = _whole(gettext_lazy("Texts per request"), MOST_TEXTS)
    dimensions = _whole(gettext_lazy("Dimensions to ask for"), MOST_DIMENSIONS, gettext_lazy("Empty: the model’s own."))
    query_prompt = _prompt(gettext_lazy("Instruction before a question"))
    document_prompt = _prompt(gettext_lazy("Instruction before a passage"))
    form = forms.ChoiceField(
        label=gettext_lazy("Form of requests"),
        required=False,
        choices=[(name, FORM_NAMES[name]) for name in FORMS],
        widget=UnfoldAdminSelectWidget,
    )
    temperature = forms.FloatField(
        label=gettext_lazy("Temperature"),
        required=False,
        min_value=0,
        max_value=MOST_TEMPERATURE,
        widget=UnfoldAdminTextInputWidget,
        help_text=gettext_lazy(
            "Empty: the model’s own. 0 answers the same question alike; some models take no other than their own."
        ),
    )
    vision = forms.BooleanField(label=gettext_lazy("Sees pictures"), required=False, widget=UnfoldBooleanWidget)
    fields_json = forms.CharField(
        label=gettext_lazy("Further fields of requests (JSON)"),
        required=False,
        max_length=FIELDS_CHARACTERS,
        widget=UnfoldAdminTextareaWidget({"rows": 2, "spellcheck": "false"}),
        help_text=gettext_lazy("Such as {example}, where a server has settings of its own."),
    )

    def __init__(self, *args: Any, preset: Preset, role: Role, row: ProviderModel | None = None, **kwargs: Any) -> None:
        kwargs["initial"] = {**_initial(preset, role, row), **(kwargs.get("initial") or {})}
        super().__init__(*args, **kwargs)
        self.preset, self.role, self.row = preset, role, row
        self.fields["fields_json"].help_text = str(self.fields["fields_json"].help_text).replace(
            "{example}", '{"enable_thinking": false}'
        )
        for name in set(ADVANCED[Role.CHAT] + ADVANCED[Role.EMBEDDING] + ADVANCED[Role.RERANK]) - set(ADVANCED[role]):
            del self.fields[name]
        if preset.key == LOCAL:
            for name in ("base_url", "allows_private", "api_key", *ADVANCED[role]):
                self.fields.pop(name, None)
        self.fields["name"].widget.attrs["placeholder"] = _("by default provider and model")
        if row is None:
            del self.fields["is_enabled"]
        if "api_key" in self.fields and row is not None and row.secrets:
            self.fields["api_key"].widget.attrs["placeholder"] = _("stored · enter another to replace it")

    def clean_fields_json(self) -> dict[str, Any]:
        text = self.cleaned_data["fields_json"].strip()
        try:
            value = json.loads(text) if text else {}
        except ValueError as error:
            raise forms.ValidationError(_('This is no JSON: write it such as {"enable_thinking": false}.')) from error
        if not isinstance(value, dict):
            raise forms.ValidationError(_('Write an object, such as {"enable_thinking": false}.'))
        return value

    def clean(self) -> dict[str, Any]:
        """A provider that needs a key needs one here, or a stored one."""
        given: dict[str, Any] = super().clean() or {}
        has_key = given.get("api_key") or (self.row is not None and self.row.secrets)
        if (
            self.preset.needs_key
            and "api_key" in self.fields
            and not has_key
            and given.get("base_url") == self.preset.base_url_of(self.role)
        ):
            self.add_error("api_key", _("Enter the key that the provider has made for you."))
        return given

    @property
    def values(self) -> dict[str, Any]:
        """What a row is made of, but for its key; options that are empty are left out."""
        given = self.cleaned_data
        options = dict(self.row.options if self.row else self.preset.roles[self.role].options)
        for name in ADVANCED[self.role]:
            if name not in self.fields:
                continue
            key, value = ("fields" if name == "fields_json" else name), given[name]
            if name == "temperature" and value is None:
                options[key] = None
            elif value in (None, "", {}, False):
                options.pop(key, None)
            else:
                options[key] = value
        values = {
            "name": given["name"] or f"{self.preset.name} · {given['model']}"[:120],
            "model": given["model"],
            "base_url": given.get("base_url", ""),
            "allows_private": given.get("allows_private", False),
            "options": options,
        }
        return values if self.row is None else values | {"is_enabled": given["is_enabled"]}

    @property
    def given_key(self) -> str | None:
        """None: the stored one stays."""
        return self.cleaned_data.get("api_key") or (None if self.row is not None else "")

    @property
    def endpoint(self) -> Endpoint:
        """What the form says, as it would be asked. A stored key goes to the server that it was given for, and no other."""
        draft = ProviderModel(role=self.role, provider=self.preset.key, **self.values)
        key = self.given_key
        if key is None and self.row is not None and draft.base_url == self.row.base_url:
            key = endpoint_of(self.row).api_key
        draft.secrets = {"api_key": key} if key else {}
        draft.is_enabled = True
        return endpoint_of(draft)

    @property
    def shows_confirmation(self) -> bool:
        """Whether the address looks private; a name that turns out to be is refused with an error at the box."""
        if "base_url" not in self.fields:
            return False
        try:
            host = parse_url(self["base_url"].value() or "").host
        except FetchError:
            return True
        try:
            is_private = not is_public(ip_address(host))
        except ValueError:
            is_private = "." not in host or host.endswith((".local", ".lan", ".internal", ".home.arpa"))
        return is_private or bool(self["allows_private"].value()) or "allows_private" in self.errors


ADVANCED: Final[Mapping[Role, tuple[str, ...]]] = {
    Role.CHAT: ("temperature", "vision", "fields_json"),
    Role.EMBEDDING: ("batch_size", "dimensions", "query_prompt", "document_prompt"),
    Role.RERANK: ("form",),
}


def _initial(preset: Preset, role: Role, row: ProviderModel | None) -> dict[str, Any]:
    if row is not None:
        options, fields = row.options, row.options.get("fields")
        plain = {name: getattr(row, name) for name in ("base_url", "allows_private", "model", "name", "is_enabled")}
    else:
        options, fields = dict(preset.roles[role].options), None
        models = preset.roles[role].models
        plain = {"base_url": preset.base_url_of(role), "model": models[0] if models else ""}
    return {
        "temperature": 0.0 if "temperature" not in options else None,
        **options,
        **plain,
        "fields_json": json.dumps(fields) if fields else "",
    }


def signed_result(endpoint: Endpoint, found: Probe) -> str:
    """A test's result for the form that saves what was tested; it holds no key."""
    error = stored(found.error)  # read by who looks at the model later, in another language perhaps
    result = {"ms": found.latency_ms, "dimension": found.dimension, "of": _digest(endpoint), "error": error}
    return signing.dumps(result, salt=_TESTED, compress=True)


def result_of(signed: str, endpoint: Endpoint) -> dict[str, Any] | None:
    """The result that belongs to an endpoint; None where another one was tested, or none."""
    try:
        result: dict[str, Any] = signing.loads(signed, salt=_TESTED, max_age=_TESTED_SECONDS)
    except signing.BadSignature:
        return None
    return result | {"error": restored(result["error"])} if result["of"] == _digest(endpoint) else None


def _digest(endpoint: Endpoint) -> str:
    told = [endpoint.role.value, endpoint.provider, endpoint.model, endpoint.base_url.rstrip("/"), endpoint.api_key]
    asked = [*told, endpoint.allows_private, dict(endpoint.options)]
    return signing.Signer(salt=_TESTED).signature(json.dumps(asked, sort_keys=True))
