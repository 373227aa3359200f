"""Processes of an image as compose.yaml has them, without a daemon: namespaces, mounts and a user of the kernel's own.

The root is read-only, /tmp a tmpfs, the volumes are folders; a process has the user of the image, no capability, and no
way to get one. All share one network, whose hosts are addresses of the loopback, and nothing outside it can be reached.
"""

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

from tests.deployment.compose import services

SECONDS = 600
# What Docker gives a service that names no period of its own.
STOP_GRACE = "10s"
ENTERED = "cd {directory} && exec setpriv --reuid {user} --regid {group} --clear-groups {rights} -- {command}"
NO_RIGHTS = "--bounding-set=-all --inh-caps=-all --ambient-caps=-all --no-new-privs"
# The device numbers of the host are no use to whom may not open them; shared memory is as small as Docker makes it.
MOUNTED = """
mount --bind {root} {root}
mount --rbind /proc {root}/proc
mount --rbind /dev {root}/dev
mount -t tmpfs -o size=64m,nosuid,nodev,noexec shm {root}/dev/shm
{mounts}
mount -o remount,bind,ro {root}
exec chroot {root} /bin/sh -c {entered}
"""


def seconds(duration):
    """Of a duration as Compose writes it: 90s, 2m, 1m30s."""
    return sum(
        int(number) * {"s": 1, "m": 60, "h": 3600}[unit] for number, unit in re.findall(r"(\d+)([smh])", duration)
    )


class Installation:
    """The services of compose.yaml that run our image.

    Args:
        root: the files of the image.
        configuration: of the image.
        folder: for volumes and logs.
        variables: what Compose fills compose.yaml in with: the operator's .env.
        mounted: more folders by their place in every container; read-only.
    """

    def __init__(self, root, configuration, *, folder, variables, mounted):
        self.root, self.configuration, self.folder = root, configuration, folder
        self.variables = variables
        self.services = services(variables)
        self.mounted = mounted
        self.processes, self.started, self.healthy_after = {}, {}, {}
        self.user, self.group = self._ids(configuration["User"])
        self._make_volumes()
        for place in mounted:  # a mount needs a place, and the root is read-only by then
            (root / place.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (root / place.lstrip("/")).touch()

    def _ids(self, name):
        for line in (self.root / "etc/passwd").read_text().splitlines():
            known, _, user, group, *_ = line.split(":")
            if known == name:
                return int(user), int(group)
        raise LookupError(name)

    def volumes(self, service):
        """The folders of a service's volumes by their place in it."""
        pairs = (each.split(":")[:2] for each in self.services[service].get("volumes", []))
        return {place: self.folder / "volumes" / name for name, place in pairs}

    def _make_volumes(self):
        """As Docker makes a volume: with the owner and mode that the image has at its place."""
        for place, folder in self.volumes("web").items():
            folder.mkdir(parents=True)
            template = (self.root / place.lstrip("/")).stat()
            os.chown(folder, template.st_uid, template.st_gid)
            folder.chmod(template.st_mode & 0o7777)

    def _environment(self, service, more):
        image = dict(each.split("=", 1) for each in self.configuration["Env"])
        stated = {name: str(value) for name, value in self.services[service]["environment"].items()}
        return image | {"HOME": "/data", "HOSTNAME": service} | self.variables | stated | more

    def _entered(self, command, rights=NO_RIGHTS):
        return ENTERED.format(
            directory=self.configuration["WorkingDir"],
            user=self.user,
            group=self.group,
            rights=rights,
            command=shlex.join(command),
        )

    def _mounts(self, service):
        pairs = [(f"--bind {folder}", place) for place, folder in self.volumes(service).items()]
        pairs += [(f"--bind -o ro {folder}", place) for place, folder in self.mounted.items()]
        for each in self.services[service].get("tmpfs", []):
            place, _, options = each.partition(":")
            pairs.append((f"-t tmpfs -o {options or 'mode=1777'} tmpfs", place))
        return "\n".join(f"mount {what} {self.root}{place}" for what, place in pairs)

    def start(self, service, *command, **more):
        """Starts a service's command, or another one as `docker compose run` would.

        Returns:
            The process; a signal that it gets reaches the command itself.
        """
        assert self.services[service]["read_only"] is True, service
        script = MOUNTED.format(
            root=self.root,
            mounts=self._mounts(service),
            entered=shlex.quote(self._entered(self._command(service, command))),
        )
        with self.log(service).open("ab") as log:
            process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-euc", script],
                env=self._environment(service, more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes[service], self.started[service] = process, time.monotonic()
        return process

    def _command(self, service, command):
        return list(command) or self.services[service]["command"]

    def log(self, service):
        return self.folder / f"{service}.log"

    def run(self, service, *command, **more):
        """Runs a service's command, or another one, to its end with status 0; returns what it printed."""
        before = self.log(service).stat().st_size if self.log(service).exists() else 0
        status = self.start(service, *command, **more).wait(SECONDS)
        printed = self.log(service).read_bytes()[before:].decode()
        assert status == 0, f"{service} {command}: {status}\n{printed}"
        return printed

    def execute(self, service, *command, timeout=SECONDS, check=True, **more):
        """Runs a command beside a service's process, as `docker compose exec` does."""
        target = f"/proc/{self.processes[service].pid}"
        try:
            done = subprocess.run(
                [
                    "nsenter",
                    f"--mount={target}/ns/mnt",
                    f"--root={target}/root",
                    f"--wd={target}/root",
                    "/bin/sh",
                    "-c",
                    self._entered(command),
                ],
                env=self._environment(service, more),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            done = subprocess.CompletedProcess(command, 124, "", f"no end after {late.timeout:.0f} s")
        assert not check or done.returncode == 0, f"{service} {command}: {done.stdout}{done.stderr}"
        return done

    def until_healthy(self, names):
        """Asks the health checks that compose.yaml states, as Docker does, in turn."""
        pending, deadline = list(names), time.monotonic() + SECONDS
        while pending:
            assert time.monotonic() < deadline, f"not healthy: {pending}"
            for service in pending:
                if self._tried(service, self._healthy):
                    self.healthy_after[service] = time.monotonic() - self.started[service]
            pending = [service for service in pending if service not in self.healthy_after]

    def _healthy(self, service):
        check = self.services[service]["healthcheck"]
        kind, *command = check["test"]
        assert kind == "CMD", check
        return self.execute(service, *command, timeout=seconds(check["timeout"]), check=False).returncode == 0

    def until(self, holds, service):
        """Returns what `holds` returned once that is true; fails where the service ends first."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if found := self._tried(service, lambda _: holds()):
                return found
            time.sleep(0.3)
        raise AssertionError(f"{service}:\n{self.log(service).read_text()}")

    def _tried(self, service, holds):
        status = self.processes[service].poll()
        assert status is None, f"{service} ended with {status}:\n{self.log(service).read_text()}"
        return holds(service)

    def stop(self, service):
        """As Docker stops a container: SIGTERM, and SIGKILL after the period of grace.

        Returns:
            The exit status, and the processes that it left.
        """
        process = self.processes[service]
        members = self.members(service)
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(seconds(self.services[service].get("stop_grace_period", STOP_GRACE)))
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        left = [pid for pid in members if Path(f"/proc/{pid}/exe").exists()]
        return status, left

    def members(self, service):
        """The ids of a service's processes."""
        own = _namespace(self.processes[service].pid)
        return [pid for pid in _pids() if _namespace(pid) == own]

    def memory(self, service):
        """Bytes of a service's processes, what they share counted once."""
        rollups = (_read(f"/proc/{pid}/smaps_rollup") for pid in self.members(service))
        found = (re.search(r"^Pss: +(\d+) kB$", text, re.MULTILINE) for text in rollups)
        return 1024 * sum(int(each[1]) for each in found if each)

    def rights(self, service):
        """What /proc says of each of a service's processes: fields of its status by name."""
        return [status for status in map(_status, self.members(service)) if status]


def _pids():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _namespace(pid):
    try:
        return Path(f"/proc/{pid}/ns/mnt").readlink()
    except OSError:
        return None


def _read(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _status(pid):
    lines = (line.partition(":") for line in _read(f"/proc/{pid}/status").splitlines())
    return {name: value.split() for name, _, value in lines}
