"""What a folder's manifest asks for, against what its source holds. Pure: paths and SHA-256 alone."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """Paths by what becomes of them; `moved` from and to."""

    unchanged: tuple[str, ...]
    moved: tuple[tuple[str, str], ...]
    send: tuple[str, ...]
    delete: tuple[str, ...]


def plan_of(
    wanted: Mapping[str, str], held: Mapping[str, str], settled: Mapping[str, str], kept: frozenset[str]
) -> Plan:
    """What is to be done so that the source holds what the folder has.

    A document follows its content: what has the SHA-256 of a document whose path has it no more gets that document, in
    exchange for its own. What is left over in the end is deleted.

    Args:
        wanted: the SHA-256 of each file of the folder by its path.
        held: the SHA-256 that the document of a path was made from.
        settled: the SHA-256 that a path was sent with before and that need not be sent again: other bytes are a document's.
        kept: further paths of the folder, whose documents stay whatever they hold.
    """
    now = dict(held)
    places = defaultdict(list)
    for path, digest in now.items():
        places[digest].append(path)
    unchanged, moved, send = [], [], []
    for path, digest in wanted.items():
        if now.get(path) == digest:
            unchanged.append(path)
            continue
        holders = (each for each in places[digest] if now.get(each) == digest)
        free = (each for each in holders if each not in kept and wanted.get(each) != digest)
        if (at := next(free, None)) is not None:
            moved.append((at, path))
            before = now.pop(path, None)
            now[path] = digest
            del now[at]
            if before is not None:
                now[at] = before
                places[before].append(at)
        elif settled.get(path) == digest:
            unchanged.append(path)
        else:
            send.append(path)
    stays = {*send, *kept}
    delete = [path for path, digest in now.items() if path not in stays and wanted.get(path) != digest]
    return Plan(tuple(unchanged), tuple(moved), tuple(send), tuple(delete))
