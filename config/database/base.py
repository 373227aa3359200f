"""Django's PostgreSQL, without the statements that it keeps while DEBUG is on, and with a cheaper check of the pool."""

import select
from typing import Any

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    @property
    def queries_logged(self) -> bool:
        """Whether statements are kept in `queries`: only where a test or a tool asks for it, not for DEBUG alone.

        Each would be written out with its parameters, of which a vector is one: a search took twice as long.
        """
        return bool(self.force_debug_cursor)

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Passes over connections of the pool that the server has closed, as after a restart of PostgreSQL.

        Its last message, or the end of the stream, is there to be read then; Django's check asks the server each time.
        """
        connection = super().get_new_connection(conn_params)
        while self.pool and _has_input(connection.fileno()):
            connection.close()
            self.pool.putconn(connection)  # which makes room for another one
            connection = super().get_new_connection(conn_params)
        return connection


def _has_input(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
