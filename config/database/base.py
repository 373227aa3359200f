"""Django's PostgreSQL, without the statements that it keeps while DEBUG is on."""

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    @property
    def queries_logged(self) -> bool:
        """Whether statements are kept in `queries`: only where a test or a tool asks for it, not for DEBUG alone.

        Each would be written out with its parameters, of which a vector is one: a search took twice as long.
        """
        return bool(self.force_debug_cursor)
