"""What a file that takes the parser's child over would try, by raw system calls. Runs inside the child, as its job.

No import of the application or of the tests: the child loads this text before it is confined.
"""
# ruff: noqa: PTH123, PTH208

import ctypes
import json
import os
import platform
import signal
import socket
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
NUMBERS = {
    "x86_64": {
        "socket": 41, "socketpair": 53, "connect": 42, "fork": 57, "vfork": 58, "clone": 56, "execve": 59, "execveat": 322,
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kill": 62, "tkill": 200, "tgkill": 234,
        "rt_sigqueueinfo": 129, "pidfd_open": 434, "pidfd_getfd": 438, "kcmp": 312, "keyctl": 250, "add_key": 248,
        "io_uring_setup": 425, "userfaultfd": 323, "bpf": 321, "perf_event_open": 298, "memfd_create": 319, "unshare": 272,
        "setns": 308, "mount": 165, "chroot": 161, "shmget": 29, "msgget": 68, "semget": 64, "mq_open": 240,
        "prlimit64": 302, "setrlimit": 160, "setpriority": 141, "sched_setaffinity": 203, "prctl": 157, "personality": 135,
        "truncate": 76, "rename": 82, "renameat2": 316, "unlink": 87, "unlinkat": 263, "symlinkat": 266, "linkat": 265,
        "mkdirat": 258, "mknodat": 259, "fchmodat": 268, "utimensat": 280, "fanotify_init": 300, "inotify_init1": 294,
        "open_by_handle_at": 304, "name_to_handle_at": 303, "openat2": 437, "setuid": 105, "setsid": 112, "seccomp": 317,
        "timer_create": 222, "fcntl": 72, "ioctl": 16, "swapoff": 168, "init_module": 175, "process_madvise": 440,
    },
    "aarch64": {
        "socket": 198, "socketpair": 199, "connect": 203, "clone": 220, "execve": 221, "execveat": 281, "ptrace": 117,
        "process_vm_readv": 270, "process_vm_writev": 271, "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138,
        "pidfd_open": 434, "pidfd_getfd": 438, "kcmp": 272, "keyctl": 219, "add_key": 217, "io_uring_setup": 425,
        "userfaultfd": 282, "bpf": 280, "perf_event_open": 241, "memfd_create": 279, "unshare": 97, "setns": 268,
        "mount": 40, "chroot": 51, "shmget": 194, "msgget": 186, "semget": 190, "mq_open": 180, "prlimit64": 261,
        "setrlimit": 164, "setpriority": 140, "sched_setaffinity": 122, "prctl": 167, "personality": 92, "truncate": 45,
        "renameat2": 276, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "mkdirat": 34, "mknodat": 33, "fchmodat": 53,
        "utimensat": 88, "fanotify_init": 262, "inotify_init1": 26, "open_by_handle_at": 265, "name_to_handle_at": 264,
        "openat2": 437, "setuid": 146, "setsid": 157, "seccomp": 277, "timer_create": 107, "fcntl": 25, "ioctl": 29,
        "swapoff": 225, "init_module": 105, "process_madvise": 440,
    },
}  # fmt: skip
CALLS = NUMBERS.get(platform.machine(), {})
AT_FDCWD = -100


def attack(file, **wanted):
    """Tries everything, and answers what came of each attempt."""
    target = json.loads(wanted["filename"])
    tries = {**reading(target), **writing(target), **connecting(target), **processes(target), **kernel(target)}
    return {name: outcome(tries[name]) for name in target.get("only", tries)}


def outcome(function):
    try:
        return f"done: {function()!r:.80}"
    except OSError as error:
        return f"refused: {error.strerror}"


def call(name, *arguments):
    """Of what the C library might turn into another call: the system call itself."""
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(CALLS[name]), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def contents(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def memory_of(pid):
    """The first readable bytes of another process, by its file of memory."""
    with open(f"/proc/{pid}/maps") as maps:
        start = int(maps.readline().split("-")[0], 16)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(start)
        return memory.read(4)


def reading(target):
    parent, folder, secret = target["parent"], target["folder"], target["secret"]
    return {
        "read a secret": lambda: contents(secret),
        "read a secret through the root of the parent": lambda: contents(f"/proc/{parent}/root{secret}"),
        "read a secret through its own root": lambda: contents(f"/proc/self/root{secret}"),
        "list the data directory": lambda: os.listdir(folder),
        "list the root": lambda: os.listdir("/"),
        "read the accounts": lambda: contents("/etc/passwd"),
        "read the settings": lambda: contents(target["settings"]),
        "read the parent's environment": lambda: contents(f"/proc/{parent}/environ"),
        "read the parent's memory map": lambda: contents(f"/proc/{parent}/maps"),
        "read the parent's memory": lambda: memory_of(parent),
        "list the parent's files": lambda: os.listdir(f"/proc/{parent}/fd"),
        "open the parent's pipe": lambda: os.open(f"/proc/{parent}/fd/0", os.O_RDONLY),
        "read the environment of all processes": lambda: [contents(f"/proc/{pid}/environ") for pid in target["others"]],
        "list the processes": lambda: os.listdir("/proc"),
        "read a device": lambda: contents("/dev/zero"),
    }


def writing(target):
    folder, secret, code = target["folder"], target["secret"].encode(), target["code"]

    def opened(path, flags):
        os.close(os.open(path, flags, 0o600))

    tries = {
        "create a file": lambda: opened(f"{folder}/created", os.O_WRONLY | os.O_CREAT),
        "create a file in /tmp": lambda: opened("/tmp/created-by-a-parser", os.O_RDWR | os.O_CREAT),
        "create a file in shared memory": lambda: opened("/dev/shm/created-by-a-parser", os.O_RDWR | os.O_CREAT),
        "create a nameless file": lambda: opened("/tmp", os.O_RDWR | os.O_TMPFILE),
        "overwrite a file": lambda: opened(secret, os.O_WRONLY),
        "append to a file": lambda: opened(secret, os.O_WRONLY | os.O_APPEND),
        "empty a file": lambda: opened(secret, os.O_RDONLY | os.O_TRUNC),
        "overwrite the application": lambda: opened(code, os.O_RDWR),
        "open its own input for writing": lambda: opened("/proc/self/fd/0", os.O_RDWR),
    }
    calls = {
        "truncate": (secret, 0),
        "rename": (secret, secret + b"2"),
        "renameat2": (AT_FDCWD, secret, AT_FDCWD, secret + b"2", 0),
        "unlink": (target["victim"].encode(),),
        "unlinkat": (AT_FDCWD, target["victim"].encode(), 0),
        "symlinkat": (b"/", AT_FDCWD, f"{folder}/symbolic".encode()),
        "linkat": (AT_FDCWD, secret, AT_FDCWD, f"{folder}/hard".encode(), 0),
        "mkdirat": (AT_FDCWD, f"{folder}/made".encode(), 0o700),
        "mknodat": (AT_FDCWD, f"{folder}/pipe".encode(), 0o010600, 0),
        "fchmodat": (AT_FDCWD, secret, 0o666),
        "utimensat": (AT_FDCWD, secret, None, 0),
        "openat2": (AT_FDCWD, secret, struct.pack("QQQ", os.O_RDWR, 0, 0), 24),
    }
    return tries | by_call(calls)


def connecting(target):
    def connected(family, address):
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.connect(tuple(address) if isinstance(address, list) else address)

    return {
        "connect to Redis": lambda: connected(socket.AF_INET, target["redis"]),
        "connect to PostgreSQL": lambda: connected(*postgresql(target["postgresql"])),
        "listen": lambda: socket.create_server(("127.0.0.1", 0)).close(),
        "open a socket of IPv6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close(),
        "open a raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close(),
        "open a netlink socket": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close(),
        "open an abstract socket": lambda: connected(socket.AF_UNIX, "\0zhiku-attack"),
        "open a packet socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close(),
        **by_call({"socket": (2, 1, 0), "socketpair": (1, 1, 0, (ctypes.c_int * 2)())}),
    }


def postgresql(address):
    return (socket.AF_UNIX, address) if isinstance(address, str) else (socket.AF_INET, address)


def processes(target):
    parent = target["parent"]

    def forked():
        if (pid := os.fork()) == 0:
            os._exit(0)
        return os.waitpid(pid, 0)

    def cloned(flags):
        """A raw fork by clone: the child of it ends at once."""
        if (pid := call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)) == 0:
            os._exit(0)
        return os.waitpid(pid, 0)

    def thread():
        started = ctypes.c_ulong()
        routine = ctypes.cast(LIBC.pthread_self, ctypes.c_void_p)
        if number := LIBC.pthread_create(ctypes.byref(started), None, routine, None):
            raise OSError(number, os.strerror(number))
        LIBC.pthread_join(started, None)

    local, remote = struct.pack("QQ", id(target), 8), struct.pack("QQ", 0x400000, 8)
    calls = {
        "kill": (parent, 0),
        "tkill": (parent, 0),
        "tgkill": (parent, parent, 0),
        "rt_sigqueueinfo": (parent, 0, bytes(128)),
        "ptrace": (0x4206, parent, 0, 0),  # PTRACE_SEIZE, which stops nobody
        "pidfd_open": (parent, 0),
        "kcmp": (parent, parent, 0, 0, 0),
        "sched_setaffinity": (parent, 8, struct.pack("Q", 2**64 - 1)),
        "setpriority": (0, parent, 0),
        "prlimit64": (parent, 7, None, (ctypes.c_ulong * 2)()),
        "process_vm_readv": (parent, local, 1, remote, 1, 0),
        "process_vm_writev": (parent, local, 1, remote, 1, 0),
        "process_madvise": (0, None, 0, 0, 0),
        "execveat": (AT_FDCWD, b"/none", None, None, 0),
    }
    return by_call(calls) | {
        "fork": forked,
        "clone": lambda: cloned(0),
        "clone into a user namespace": lambda: cloned(0x10000000),
        "start a thread": thread,
        "start a program": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "become a program": lambda: os.execve("/none", ["none"], {}),
        "own the parent's signals of a pipe": lambda: call("fcntl", 1, 8, parent),
        "ask for signals of a pipe": lambda: call("fcntl", 1, 4, os.O_ASYNC),
        "ask for signals of a pipe by ioctl": lambda: call("ioctl", 1, 0x5452, ctypes.byref(ctypes.c_int(1))),
        "type into a terminal": lambda: call("ioctl", 0, 0x5412, b"x"),
    }


def kernel(target):
    limits = (ctypes.c_ulong * 2)(2**63, 2**63)
    return by_call(
        {
            "keyctl": (0, -3, 1),
            "add_key": (b"user", b"zhiku-attack", b"x", 1, -1),
            "io_uring_setup": (4, bytes(120)),
            "userfaultfd": (1,),
            "bpf": (0, bytes(128), 128),
            "perf_event_open": (bytes(128), 0, -1, -1, 0),
            "memfd_create": (b"x", 0),
            "unshare": (0x10000000,),
            "setns": (0, 0),
            "mount": (b"none", b"/none", b"tmpfs", 0, None),
            "chroot": (b"/",),
            "shmget": (0x7A686B75, 4096, 0o1600),
            "msgget": (0x7A686B75, 0o1600),
            "semget": (0x7A686B75, 1, 0o1600),
            "mq_open": (b"zhiku-attack", os.O_RDWR | os.O_CREAT, 0o600, None),
            "setrlimit": (7, limits),
            "prctl": (4, 1, 0, 0, 0),
            "personality": (0xFFFFFFFF,),
            "fanotify_init": (0, 0),
            "inotify_init1": (0,),
            "open_by_handle_at": (AT_FDCWD, bytes(128), 0),
            "name_to_handle_at": (AT_FDCWD, b"/", struct.pack("Ii", 120, 0) + bytes(120), bytes(8), 0),
            "setuid": (os.getuid(),),
            "seccomp": (2, 0, bytes(8)),
            "timer_create": (0, None, bytes(8)),
            "swapoff": (b"/none",),
            "init_module": (b"", 0, b""),
        }
    )


def by_call(calls):
    return {name: lambda name=name, given=given: call(name, *given) for name, given in calls.items() if name in CALLS}
