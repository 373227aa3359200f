"""The address of a Git repository, and where people open its files."""

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from kb.base.net.addresses import FetchError, parse_url, port_of

SSH_PORT: Final = 22
# user@host:path, as hosts show it to be copied.
_SCP: Final = re.compile(r"[\w.][\w.-]*@(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*):(?P<path>[^\s:-][^\s]*)")
_SSH: Final = re.compile(
    r"ssh://(?:[\w.][\w.-]*@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)(?::(?P<port>\d{1,5}))?(?P<path>/[^\s]+)"
)
_CONTROL: Final = re.compile(r"[\x00-\x20\x7f\\]")

# The page of a file, by who serves the repository; {branch} and {path} are percent-encoded.
PAGES: Final = {
    "github": "{repository}/blob/{branch}/{path}",
    "gitlab": "{repository}/-/blob/{branch}/{path}",
    "gitea": "{repository}/src/branch/{branch}/{path}",
    "gitee": "{repository}/blob/{branch}/{path}",
}
_KNOWN_HOSTS: Final = {
    "github.com": "github",
    "gitlab.com": "gitlab",
    "gitee.com": "gitee",
    "codeberg.org": "gitea",
    "gitea.com": "gitea",
}


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a repository is: `address` is what git is given, without credentials; `scheme` is https, http or ssh."""

    address: str
    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, address: str) -> "Remote":
        """Reads https://…, ssh://… and user@host:path; raises FetchError for anything else, local paths among it."""
        address = address.strip()
        if _CONTROL.search(address) or len(address) > 2_000:
            raise FetchError("bad_url", url=address[:200])
        if found := _SSH.fullmatch(address) or _SCP.fullmatch(address):
            port = int(found.groupdict().get("port") or SSH_PORT)
            return cls(address, "ssh", found["host"].lower(), port, found["path"])
        if address.lower().startswith("ssh:"):
            raise FetchError("bad_url", url=address[:200])
        url = parse_url(address).copy_with(query=None, fragment=None)
        # Libraries disagree on whether the dot that a full name may end with belongs to it; git is given the address by name.
        url = url.copy_with(host=url.host.rstrip("."))
        return cls(str(url), url.scheme, url.raw_host.decode("ascii"), port_of(url), url.path)

    def spellings(self) -> tuple["Remote", ...]:
        """This one, and as some hosts lead on to over https: with .git at the end."""
        if self.scheme == "ssh" or self.path.endswith(".git"):
            return (self,)
        return self, replace(self, address=f"{self.address.rstrip('/')}.git")

    @property
    def known_as(self) -> str:
        """The name in lines of known hosts."""
        return self.host if self.port == SSH_PORT else f"[{self.host}]:{self.port}"

    def page(self, branch: str, path: bytes, kind: str) -> str:
        """Where people open a file; blank where that is not known. `kind` is one of PAGES, or blank for the host's."""
        template = PAGES.get(
            kind or _KNOWN_HOSTS.get(self.host) or ("gitlab" if self.host.startswith("gitlab.") else "")
        )
        if template is None:
            return ""
        scheme, port = ("http", f":{self.port}") if self.scheme == "http" else ("https", "")
        if self.scheme == "https" and self.port != 443:
            port = f":{self.port}"
        repository = self.path.strip("/").removeprefix("~/").removesuffix(".git")
        return template.format(
            repository=f"{scheme}://{self.host}{port}/{quote(repository)}", branch=quote(branch), path=quote(path)
        )
