"""Programs that a process starts while it has a client of Milvus."""

import subprocess
import threading

from kb.index.mirrors.registry import mirror

PROGRAMS = 30


def test_a_program_is_started_without_the_fork_handlers_of_grpc(milvus, capfd):
    """They crash one child in a few hundred before it is the program."""
    store, ended = mirror("milvus"), threading.Event()

    def ask():
        while not ended.wait(0.03):
            store.ping()

    asking = threading.Thread(target=ask)
    asking.start()
    # Not by vfork, as PostgreSQL is where it gets a user of its own.
    codes = {subprocess.run(["true"], preexec_fn=int, check=False).returncode for _ in range(PROGRAMS)}
    ended.set()
    asking.join()

    assert codes == {0}
    assert "fork() handlers" not in capfd.readouterr().err
