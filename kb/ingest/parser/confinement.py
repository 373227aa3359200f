"""Takes from the parser's child what no parser needs, so that a file that takes it over gains nothing but the child.

seccomp bounds the system calls, Landlock the files; both hold for native code and for the rest of the process's life.
Each is used where the kernel has it, and `probe_job` reports which hold. LibreOffice needs more: threads, and a folder
of its own to write in; no more processes than the one, and no connections.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

# Of the Debian package libseccomp2; apt and systemd depend on it, so that nearly every system has it.
SECCOMP_LIBRARY: Final = "libseccomp.so.2"

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NAME: Final = 15
_PR_SET_NO_NEW_PRIVS: Final = 38

# A call that the filter does not name fails as on a kernel that lacks it, which the C library can cope with.
_ENOSYS: Final = 38
_ACT_ERRNO: Final = 0x00050000
_ACT_PRETEND: Final = _ACT_ERRNO  # With the error 0: the call is not made, and returns as if it were
_ACT_ALLOW: Final = 0x7FFF0000
_EQUAL: Final = 4
_MASKED_EQUAL: Final = 7
_INT: Final = 0xFFFFFFFF

# What reads open files, memory, clocks and metadata of files. Nothing here starts, signals, connects, creates or renames.
_CALLS: Final = (
    *("read", "readv", "pread64", "preadv", "write", "writev", "close", "lseek"),
    *("fstat", "stat", "lstat", "newfstatat", "statx", "statfs", "fstatfs"),
    *("access", "faccessat", "faccessat2", "readlink", "readlinkat", "getdents64", "getcwd"),
    *("mmap", "munmap", "mremap", "mprotect", "madvise", "brk", "membarrier"),
    *("futex", "sched_yield", "sched_getaffinity", "getcpu"),
    *("clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time", "times", "getrusage"),
    *("poll", "ppoll", "select", "pselect6", "getrandom", "uname", "sysinfo", "getrlimit"),
    *("getpid", "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall", "exit", "exit_group"),
)
# F_SETOWN with O_ASYNC would signal any process of the user, so only these commands of fcntl and ioctl pass.
_FCNTL_COMMANDS: Final = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC
_IOCTL_COMMANDS: Final = (0x5401, 0x5413, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONCLEX, FIOCLEX
_WRITING: Final = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC

# What an office program needs beside: threads, locks, events, and files of its own. Not among them are `fork`, and what
# changes metadata of files, which Landlock does not bound.
_PROGRAM_CALLS: Final = (
    *("set_robust_list", "get_robust_list", "set_tid_address", "rseq", "arch_prctl", "execve"),
    *("mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", "umask", "flock"),
    *("pwrite64", "pwritev", "ftruncate", "fallocate", "fadvise64", "fsync", "fdatasync", "open", "openat"),
    *("dup", "dup2", "dup3", "pipe", "pipe2", "eventfd2", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait"),
    *("getresuid", "getresgid", "getgroups", "getpgrp", "sched_getparam", "sched_getscheduler"),
)
_PROGRAM_FCNTL_COMMANDS: Final = (4, 5, 6, 7)  # F_SETFL, F_GETLK, F_SETLK, F_SETLKW
_O_ASYNC: Final = 0o20000
_CLONE_THREAD: Final = 0x10000
_AF_UNIX: Final = 1

# The same on every architecture.
_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_ADD_RULE: Final = 445
_LANDLOCK_RESTRICT_SELF: Final = 446
_CREATE_RULESET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1
_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE
_MAKE_REGULAR: Final = 1 << 8
# To remove folders and files, make folders, move from folder to folder, and cut off.
_CHANGE: Final = _WRITE_FILE | _MAKE_REGULAR | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 13 | 1 << 14
# By the version of the interface: all rights to files, all rights to TCP, and the scopes of sockets and signals.
_RIGHTS: Final = {
    1: ((1 << 13) - 1,),
    2: ((1 << 14) - 1,),
    3: ((1 << 15) - 1,),
    4: ((1 << 15) - 1, 0b11),
    5: ((1 << 16) - 1, 0b11),
    6: ((1 << 16) - 1, 0b11, 0b11),
}

# What the loader, the C library, ONNX Runtime and PDFium look up.
_SYSTEM_FILES: Final = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share", "/usr/local/share"),
    *("/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/etc/ssl/openssl.cnf"),
    *("/dev/null", "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
)
# What LibreOffice looks up beside: its settings and extensions as packages lay them out, and fonts.
_PROGRAM_FILES: Final = (
    *("/etc/libreoffice", "/var/lib/libreoffice", "/var/spool/libreoffice"),
    *("/etc/fonts", "/var/cache/fontconfig"),
)
# Where its loader lies, which is executed with it.
_LOADERS: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store", "/gnu/store")
_LIBRARY_PATHS: Final = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

# Of one argument of a system call: its place, the comparison, the mask or value, the value under the mask.
Condition = tuple[int, int, int, int]
# The name of a system call, what must hold of its arguments, and what happens then.
Rule = tuple[str, tuple[Condition, ...], int]


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


def hide_from_siblings() -> None:
    """Keeps this process's memory and environment from other processes of the same user, so from parsers' children.

    Root reads them all the same, and so does nobody after `exec`.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_DUMPABLE, 0)


def die_with(parent: int) -> None:
    """Ends this process, or what it executes, as soon as its parent does."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended meanwhile
        sys.exit(1)


def confine(writable: Path | None = None) -> None:
    """Binds this process, which has one thread as yet, for good; it may create files in `writable` only."""
    if sys.platform != "linux":
        return
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    hide_from_siblings()
    grants = [(path, _READ_FILE | _READ_DIR) for path in readable_folders()]
    if writable is not None:
        grants.append((writable, _WRITE_FILE | _MAKE_REGULAR))
    with suppress(OSError):
        _confine_files(grants)
    with suppress(OSError):
        _confine_calls(_rules(may_write=writable is not None))


def confine_program(folder: Path, writable: Path) -> None:
    """Binds this process for a program that lies in a folder, which it executes next; it may change files in `writable`.

    Raises OSError where seccomp is unavailable, without which the program could start others and open connections.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    reads = _READ_FILE | _READ_DIR
    grants = [(Path(name), reads) for name in (*_SYSTEM_FILES, *_PROGRAM_FILES)]
    grants += [(Path(name), reads | _EXECUTE) for name in (*_LOADERS, folder)]
    with suppress(OSError):
        _confine_files([*grants, (writable, reads | _CHANGE)])
    _confine_calls(_program_rules())


def readable_folders() -> list[Path]:
    """Where the child may read: libraries, modules of Python and this application's code, and no data."""
    libraries = (Path(prefix, name) for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64"))
    # Where pip installs; other folders of the import path may hold an operator's files.
    packages = (
        folder
        for folder in map(Path, sys.path)
        if folder.name in {"site-packages", "dist-packages"} or any(folder.glob("*.dist-info"))
    )
    named = (Path(entry) for name in _LIBRARY_PATHS for entry in os.environ.get(name, "").split(":") if entry)
    own = Path(__file__).resolve().parents[2]
    return list(dict.fromkeys((*map(Path, _SYSTEM_FILES), *libraries, *packages, *named, own)))


def probe_job(_file: BinaryIO) -> dict[str, bool]:
    """Whether the child that runs this is refused system calls that it must not make, and files that it must not read."""
    return {"calls": _is_refused(os.pipe), "files": _is_refused(os.listdir, "/")}


def _is_refused(function: Any, *arguments: Any) -> bool:
    try:
        function(*arguments)
    except OSError:
        return True
    return False


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(ctypes.c_int(option), *(ctypes.c_ulong(each) for each in (value, 0, 0, 0)))


def _confine_calls(rules: Iterable[Rule]) -> None:
    """Raises OSError where library or kernel lack seccomp."""
    library = ctypes.CDLL(SECCOMP_LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    filters = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_ACT_ERRNO | _ENOSYS)))
    for name, conditions, action in rules:
        number = library.seccomp_syscall_resolve_name(name.encode())
        comparisons = (_Comparison * len(conditions))(*(_Comparison(*each) for each in conditions))
        # A call of another architecture, or that this library does not know yet, stays refused.
        library.seccomp_rule_add_array(filters, ctypes.c_uint32(action), number, len(conditions), comparisons)
    status = library.seccomp_load(filters)
    if status != 0:
        raise OSError(-status, os.strerror(-status))


def _common_rules() -> Iterable[Rule]:
    yield from ((name, (), _ACT_ALLOW) for name in _CALLS)
    for name, commands in (("fcntl", _FCNTL_COMMANDS), ("ioctl", _IOCTL_COMMANDS)):
        yield from ((name, (_is(1, command),), _ACT_ALLOW) for command in commands)
    yield "prctl", (_is(0, _PR_SET_NAME),), _ACT_ALLOW
    yield "prlimit64", (_is(0, 0), (2, _EQUAL, 0, 0)), _ACT_ALLOW  # its own limits, to read them
    yield "tgkill", (_is(0, os.getpid()),), _ACT_ALLOW  # as abort() does


def _rules(*, may_write: bool) -> Iterable[Rule]:
    """The system calls that pass."""
    yield from _common_rules()
    for name, place in (("open", 1), ("openat", 2)):
        yield name, () if may_write else ((place, _MASKED_EQUAL, _WRITING, os.O_RDONLY),), _ACT_ALLOW


def _program_rules() -> Iterable[Rule]:
    """The system calls that pass for a program with threads.

    LibreOffice listens for a second start of itself, in /tmp, and does not go on without; it is made believe.
    """
    yield from _common_rules()
    yield from ((name, (), _ACT_ALLOW) for name in _PROGRAM_CALLS)
    yield "clone", ((0, _MASKED_EQUAL, _CLONE_THREAD, _CLONE_THREAD),), _ACT_ALLOW
    for command in _PROGRAM_FCNTL_COMMANDS:
        yield "fcntl", (_is(1, command), (2, _MASKED_EQUAL, _O_ASYNC, 0)), _ACT_ALLOW
    yield "socket", (_is(0, _AF_UNIX),), _ACT_ALLOW
    yield from ((name, (), _ACT_PRETEND) for name in ("bind", "listen"))


def _is(place: int, value: int) -> Condition:
    return (place, _MASKED_EQUAL, _INT, value)


def _confine_files(grants: Iterable[tuple[Path, int]]) -> None:
    """Leaves this process rights to files in some folders; raises OSError where the kernel lacks Landlock."""
    version = _call(_LANDLOCK_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    rights = _RIGHTS[min(version, max(_RIGHTS))]
    handled = (ctypes.c_uint64 * len(rights))(*rights)
    ruleset = _call(_LANDLOCK_CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    try:
        for path, granted in grants:
            _allow(ruleset, path, granted & rights[0] & (rights[0] if path.is_dir() else _OF_FILES))
        _call(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not on this system
    try:
        _call(_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(_PathBeneath(rights, descriptor)), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: Any) -> int:
    """A system call that the C library has no function for."""
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    words = (each if not isinstance(each, int) else ctypes.c_long(each) for each in arguments)
    result = int(library.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
