"""Strings of the theme and of the API key library, which bring no Chinese, and of Django whose Chinese reads badly.

Listed here, makemessages collects them.
"""

from django.utils.translation import gettext_noop as _, ngettext_lazy

BORROWED = (
    _("Run the selected action"),
    _("Toggle sorting"),
    _("Remove from sorting"),
    _(" By %(filter_title)s "),
    _("Select record"),
    _("Select action"),
    _("Select action to run"),
    _("Select value"),
    _("Select all rows"),
    _("Run"),
    _("More actions"),
    _("Filters"),
    _("Apply Filters"),
    _("Reset filters"),
    _("Expand row"),
    _("Type to search"),
    _("Welcome back to"),
    _("You have been successfully logged out from the administration"),
    _("After you've created a user, you’ll be able to edit more user options."),
    _(
        "Raw passwords are not stored, so there is no way to see this user’s password, but you can change the password "
        'using <a href="{}" class="text-primary-600 dark:text-primary-500">this form</a>.'
    ),
    _("No data"),
    _("True"),
    _("False"),
    _("Cancel"),
    _("Value"),
    _("From"),
    _("To"),
    _("Date"),
    _("This item will be deleted."),
    _("Click to cancel"),
    _("No results found"),
    _("Click to download"),
    _("Go back"),
    _("General"),
    _("Light"),
    _("Dark"),
    _("System"),
    _("Choose file to upload"),
    _("Toggle password visibility"),
    _("Add row"),
    _("A free-form name for the API key. Need not be unique. 50 characters max."),
    _("If the API key is revoked, clients cannot use it anymore. (This cannot be undone.)"),
    _("Expires"),
    _("Once API key expires, clients cannot use it anymore."),
    _("The API key has been revoked, which cannot be undone."),
    # Of Django, in whose Chinese they are missing,
    _("%(model)s instance with %(field)s %(value)r is not a valid choice."),
    _("After you’ve created a user, you’ll be able to edit more user options."),
    # or read badly.
    _("The {name} “{obj}” was added successfully."),
    _("The {name} “{obj}” was added successfully. You may add another {name} below."),
    _("The {name} “{obj}” was changed successfully."),
    _("The {name} “{obj}” was changed successfully. You may edit it again below."),
    _("The {name} “{obj}” was changed successfully. You may add another {name} below."),
    _("The %(name)s “%(obj)s” was deleted successfully."),
    _("Successfully deleted %(count)d %(items)s."),
    _("Cannot delete %(name)s"),
)
BORROWED_PLURAL = ngettext_lazy(
    "This password is too short. It must contain at least %d character.",
    "This password is too short. It must contain at least %d characters.",
)
