"""A chat model in a process of its own, which a test can kill and start again at the same address.

`python -m tests.model_process PORT ANSWER` answers with pieces of four characters. Lines of its input say how, from then on:
`hold N` writes N pieces and then waits, `slow S` waits S seconds after each and begins again at its end, `go` waits no more.
"""

import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.servers import PIECE, ModelServer, Reply

ROOT = Path(__file__).resolve().parents[1]


class ModelProcess:
    """Attributes:
    base_url: as `LLM_BASE_URL` has it, also while it does not run.
    """

    def __init__(self, answer):
        self._answer = answer
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self._port}/v1"

    def start(self):
        command = [sys.executable, "-m", "tests.model_process", str(self._port), self._answer]
        self._process = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout.readline() == "ready\n"

    def say(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()


def main(port, answer):
    pieces = [answer[at : at + PIECE] for at in range(0, len(answer), PIECE)]
    with ModelServer(port=int(port)) as model:
        model.always("chat", Reply(pieces))
        print("ready", flush=True)
        for line in sys.stdin:
            match line.split():
                case ["hold", count]:
                    model.released.clear()
                    model.always("chat", Reply(pieces, hang_after=int(count)))
                case ["slow", seconds]:
                    model.released.clear()
                    model.always("chat", Reply(pieces * 1_000, pause_s=float(seconds)))
                case ["go"]:
                    model.always("chat", Reply(pieces))
                    model.release()
            print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
