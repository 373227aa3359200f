"""Reads what pip-audit has found: 0 nothing, 1 something, 75 it could not look.

A package that it could not look up is not a package without vulnerabilities, which pip-audit's own exit code makes of it.
"""

import json
import sys
from pathlib import Path

OUT_OF_REACH = 75


def main(path: str) -> int:
    try:
        packages = json.loads(Path(path).read_text())["dependencies"]
    except (OSError, ValueError, KeyError, TypeError):
        packages = []
    skipped = [each for each in packages if "skip_reason" in each]
    wrong = [each for each in packages if each.get("vulns")]
    for each in wrong:
        for found in each["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "no version yet"
            print(f"{each['name']} {each['version']}: {found['id']}, fixed in {fixed}")
    if wrong:
        return 1
    if len(skipped) == len(packages):
        print(
            "***** DEPENDENCIES NOT AUDITED: the advisories of pypi.org are out of reach from here. *****",
            file=sys.stderr,
        )
        return OUT_OF_REACH
    print(f"{len(packages) - len(skipped)} packages audited, none known to be vulnerable")
    for each in skipped:
        print(f"***** NOT AUDITED: {each['name']}: {each['skip_reason']}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
