"""Numbers of system calls, per architecture: of those that the launcher makes and those that sandboxed code may not.

From the kernel's tables; from 424 on all architectures share their numbers. A name that an architecture does not have
is not in its table.
"""

import platform
import struct

KNOWN_UP_TO = 466
"""removexattrat, Linux 6.13: the newest call that was looked at. The filter knows nothing of later ones."""

_SHARED = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
    "statmount": 457,
    "listmount": 458,
    "lsm_set_self_attr": 460,
}
# name: x86_64, aarch64
_TABLE: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "clone": (56, 220),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "personality": (135, 92),
    "quotactl": (179, 60),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "acct": (163, 89),
    "syslog": (103, 116),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "remap_file_pages": (216, 234),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "sysfs": (139, None),
    "ustat": (136, None),
    "vserver": (236, None),
    "seccomp": (317, 277),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "setsockopt": (54, 208),
    "ioctl": (16, 29),
    "prctl": (157, 167),
    "fcntl": (72, 25),
    "prlimit64": (302, 261),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "capset": (126, 91),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "truncate": (76, 45),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_unlink": (241, 181),
}
_COLUMN = {"x86_64": 0, "aarch64": 1, "arm64": 1}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def numbers(machine: str) -> dict[str, int]:
    """Name -> number. Raises KeyError for an architecture that is not in the table."""
    column = _COLUMN[machine]
    own = {name: pair[column] for name, pair in _TABLE.items()}
    return _SHARED | {name: number for name, number in own.items() if number is not None}


def supported() -> bool:
    """Whether this process runs on an architecture of the table, with 64-bit pointers."""
    return platform.machine() in _COLUMN and struct.calcsize("P") == 8


MACHINE = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
NUMBERS: dict[str, int] = numbers(MACHINE) if supported() else {}
