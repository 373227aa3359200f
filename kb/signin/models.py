from typing import ClassVar, Final

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.base.db.audit_triggers import SIGN_IN_PROVIDER
from kb.base.encryption import SecretsField
from kb.base.net.addresses import URL_CHARACTERS

ONLY: Final = 1
"""The key of the row: there is one provider."""


class SignInProvider(models.Model):
    """The provider that superusers have entered; where the environment names one, that is in force.

    Attributes:
        secrets: "client_secret", encrypted, never shown.
        allowed_groups: names separated by commas, as those of the other groups.
        allows_private: whether a superuser confirmed that it may be at a private address.
    """

    issuer = models.CharField(_("address of the issuer"), max_length=200)
    client_id = models.CharField(_("client ID"), max_length=191)
    secrets = SecretsField(_("client secret"))
    name = models.CharField(_("name on the button"), max_length=40, blank=True)
    scopes = models.CharField(_("scopes"), max_length=URL_CHARACTERS, default="openid profile email")
    groups_claim = models.CharField(_("claim of groups"), max_length=200, default="groups")
    allowed_groups = models.CharField(_("groups that may sign in"), max_length=URL_CHARACTERS, blank=True)
    staff_groups = models.CharField(_("groups that may use the admin"), max_length=URL_CHARACTERS, blank=True)
    admin_groups = models.CharField(_("groups of superusers"), max_length=URL_CHARACTERS, blank=True)
    links_email = models.BooleanField(_("open accounts by a verified e-mail address"), default=False)
    hours = models.FloatField(
        _("hours of a session"), default=12.0, validators=[MinValueValidator(0.25), MaxValueValidator(744)]
    )
    allows_private = models.BooleanField(_("private address confirmed"), default=False)

    class Meta:
        verbose_name = _("provider of sign-ins")
        verbose_name_plural = _("providers of sign-ins")
        triggers: ClassVar = SIGN_IN_PROVIDER.triggers()

    def __str__(self) -> str:
        return self.name or self.issuer
