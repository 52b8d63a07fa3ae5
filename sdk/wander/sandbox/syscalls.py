"""Numbers of the system calls that the filter names, for each machine: (x86-64, arm64).

None means that the machine does not have the call. The numbers are those of Linux 6.18, and a test compares
them with libseccomp's.
"""

from __future__ import annotations

NEWEST = 469
"""Highest number in Linux 6.18 (`file_setattr`); calls with higher numbers fail with ENOSYS."""

DENIED: dict[str, tuple[int, int | None]] = {
    # access to other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # large or frequently vulnerable parts of the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_secret": (447, 447),
    "remap_file_pages": (216, 234),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    # keyrings belong to a user in all namespaces
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # resources that the kernel counts per user or machine, across namespaces
    "mq_open": (240, 180),
    "io_setup": (206, 0),
    # file access that bypasses the mounts
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # control of the machine
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "query_module": (178, None),
    "get_kernel_syms": (177, None),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "personality": (135, 92),
    # obsolete calls
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "ustat": (136, None),
    "sysfs": (139, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    # memory of other processes, by NUMA
    "mbind": (237, 235),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
}
"""Calls that fail with EPERM."""

WATCHERS: dict[str, tuple[int, int | None]] = {
    "epoll_create": (213, None),
    "epoll_create1": (291, 20),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
}
"""Calls that many harmless programs make. The kernel counts their watches per user, across namespaces. They
are denied if that user runs a hub, which could otherwise run out of watches. Python's event loop then uses
`poll`."""

OWNERS: dict[str, tuple[int, int | None]] = {
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
}
"""Calls that change the owner of a file. In a user namespace with one user they fail for any other user,
which ends programs like `tar` and `cp -a`."""

JUDGED: dict[str, tuple[int, int | None]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "prctl": (157, 167),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "sendto": (44, 206),
}
"""Calls that are allowed or denied depending on their arguments (`wander.sandbox.seccomp`)."""
