"""The confinement of a process on Linux: no network, no other programs, and no files but the interpreter's.

Two features of the kernel that need no privileges: Landlock (since Linux 5.13) limits which files can be opened, and a
seccomp filter refuses system calls. Neither can be undone by the process. Where the kernel lacks one, or on another
system, that part is left out: the limits of time and memory and the empty environment hold without it.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence

# Read access below these folders, beside those of Python: shared libraries and their cache.
_LIBRARIES = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_ALL_ACCESS, _TRUNCATE = (1 << 13) - 1, 1 << 14
_TRUNCATE_VERSION = 3

# The numbers of: socket, execve, execveat, kill, tkill, tgkill, ptrace, process_vm_readv, process_vm_writev,
# pidfd_send_signal, io_uring_setup (which can open sockets), pidfd_open, pidfd_getfd.
_REFUSED = {
    "x86_64": (0xC000003E, (41, 59, 322, 62, 200, 234, 101, 310, 311, 424, 425, 434, 438)),
    "aarch64": (0xC00000B7, (198, 221, 281, 129, 130, 131, 117, 270, 271, 424, 425, 434, 438)),
}
_X32_CALLS = 0x40000000  # The other numbers of the same calls on x86-64.
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_CALL_OFFSET, _ARCHITECTURE_OFFSET = 0, 4
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def confine() -> None:
    """Confine this process, as far as the system can."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return
    _limit_files(libc, [*sys.path, sys.prefix, sys.base_prefix, *_LIBRARIES])
    if platform.machine() in _REFUSED:
        _refuse_calls(libc, *_REFUSED[platform.machine()])


def _limit_files(libc: ctypes.CDLL, readable: Iterable[str]) -> None:
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    if version < 1:
        return
    access = struct.pack("=Q", _ALL_ACCESS | (_TRUNCATE if version >= _TRUNCATE_VERSION else 0))
    rules = libc.syscall(_LANDLOCK_CREATE_RULESET, access, ctypes.c_size_t(len(access)), 0)
    if rules < 0:
        return
    for path in dict.fromkeys(filter(os.path.exists, readable)):
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        libc.syscall(_LANDLOCK_ADD_RULE, rules, _LANDLOCK_PATH_BENEATH, struct.pack("=Qi", allowed, folder), 0)
        os.close(folder)
    libc.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0)
    os.close(rules)


def _refuse_calls(libc: ctypes.CDLL, architecture: int, calls: Sequence[int]) -> None:
    checks = [(_JUMP_IF_AT_LEAST, _X32_CALLS), *((_JUMP_IF_EQUAL, call) for call in calls)]
    code = [
        struct.pack("=HBBI", _LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        struct.pack("=HBBI", _JUMP_IF_EQUAL, 0, len(checks) + 2, architecture),
        struct.pack("=HBBI", _LOAD, 0, 0, _CALL_OFFSET),
        # A check that holds jumps over the others and the permission, to the refusal.
        *(struct.pack("=HBBI", check, len(checks) - at, 0, value) for at, (check, value) in enumerate(checks)),
        struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW),
        struct.pack("=HBBI", _RETURN, 0, 0, _REFUSE),
    ]
    instructions = ctypes.create_string_buffer(b"".join(code))
    program = struct.pack("@HP", len(code), ctypes.addressof(instructions))
    libc.prctl(_PR_SET_SECCOMP, 2, program, 0, 0)
