# ruff: noqa: E501 - hostile programs keep their lines
"""Attempts on the network and on sockets of the machine. What listens on the host sees nobody come."""

from sandbox_attempts import ERROR, OK, Attempt

ATTEMPTS = [
    Attempt(
        "TCP to the trainer",
        """
for host in ("127.0.0.1", "localhost", "0.0.0.0", "@HOST_ADDRESS@", "::1", "::ffff:127.0.0.1"):
    _denied(host, socket.create_connection, (host, @PORT@), 2)
    _denied(host, socket.create_connection, (host, @PORT@), 2)
def nonblocking():
    s = socket.socket(); s.setblocking(False)
    if s.connect_ex(("127.0.0.1", @PORT@)) not in (0, errno.EINPROGRESS): raise OSError
    import select; select.select([], [s], [], 1)
    if s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR): raise OSError
_denied("non-blocking", nonblocking)
""",
        row="6",
        light=True,
    ),
    Attempt(
        "TCP fast open, bound sources, odd families",
        """
def fastopen():
    s = socket.socket(); s.sendto(b"x", 0x20000000, ("127.0.0.1", @PORT@)); return "sent"
def source():
    s = socket.socket(); s.bind(("127.0.0.1", 0)); s.connect(("127.0.0.1", @PORT@)); return "connected"
def mptcp():
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.settimeout(1); s.connect(("127.0.0.1", @PORT@)); return "connected"
for f in (fastopen, source, mptcp): _denied(f.__name__, f)
for family in range(1, 46):
    if family in (1,): continue
    for kind in (1, 2, 3, 5):
        number = _syscall(41, family, kind, 0)
        if number >= 0:
            os.close(number)
            if not @OWN_NETWORK@: _escaped(f"socket of family {family}, type {kind}")
            elif family in (16, 17, 29, 31, 38, 40, 44): _escaped(f"socket of family {family}, type {kind}")
""",
        row="6",
        light=True,
    ),
    Attempt(
        "servers of one's own",
        """
for address in ("127.0.0.1", "0.0.0.0", "@HOST_ADDRESS@"):
    for port in (0, 80, @FREE_PORT@):
        try:
            s = socket.socket(); s.bind((address, port)); s.listen()
            print("listens", s.getsockname())
            if not @OWN_NETWORK@: _escaped(f"listens at {s.getsockname()}")
        except OSError: pass
""",
        row="6",
    ),
    Attempt(
        "UDP, DNS, raw, netlink, packet, vsock",
        """
def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b"@TOKEN@", ("127.0.0.1", @UDP@)); return "sent" if not @OWN_NETWORK@ else 1 / 0
_denied("udp", udp)
_denied("dns", socket.gethostbyname, "example.org")
_denied("getaddrinfo", socket.getaddrinfo, "example.org", 80)
_denied("raw", socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
_denied("ping", socket.socket, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
_denied("packet", socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0)
_denied("netlink", socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)
_denied("vsock", socket.socket, socket.AF_VSOCK, socket.SOCK_STREAM, 0)
_denied("alg", socket.socket, socket.AF_ALG, socket.SOCK_SEQPACKET, 0)
_denied("can", socket.socket, 29, socket.SOCK_RAW, 1)
_denied("bluetooth", socket.socket, 31, socket.SOCK_RAW, 1)
_denied("xdp", socket.socket, 44, socket.SOCK_RAW, 0)
""",
        row="7",
        light=True,
    ),
    Attempt(
        "UDP in every way",
        """
import itertools
for call in ("sendto", "connect", "sendmsg"):
    try:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if call == "sendto": s.sendto(b"@TOKEN@", ("127.0.0.1", @UDP@))
        elif call == "connect": s.connect(("127.0.0.1", @UDP@)); s.send(b"@TOKEN@")
        else: s.sendmsg([b"@TOKEN@"], [], 0, ("127.0.0.1", @UDP@))
    except OSError: pass
try:
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.sendto(b"@TOKEN@", ("::ffff:127.0.0.1", @UDP@))
except OSError: pass
try:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136); s.sendto(b"@TOKEN@", ("127.0.0.1", @UDP@))   # UDP-Lite
except OSError: pass
""",
        row="7",
    ),
    Attempt(
        "programs that fetch",
        """
import shutil, subprocess
for command in (["curl", "-sm2", "http://127.0.0.1:@PORT@/"], ["wget", "-qO-", "-T2", "http://127.0.0.1:@PORT@/"], ["nc", "127.0.0.1", "@PORT@"],
                ["/bin/bash", "-c", "echo hi > /dev/tcp/127.0.0.1/@PORT@"], ["git", "ls-remote", "http://127.0.0.1:@PORT@/x"], ["ssh", "127.0.0.1"],
                [sys.executable, "-c", "import socket; socket.create_connection(('127.0.0.1', @PORT@)); print('connected')"],
                ["pip", "download", "six"], ["perl", "-MIO::Socket", "-e", "print IO::Socket::INET->new('127.0.0.1:@PORT@') ? 'connected' : ''"]):
    try: done = subprocess.run(command, capture_output=True, timeout=4, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired): continue
    if b"connected" in done.stdout: _escaped(str(command))
import urllib.request
_denied("urllib", lambda: urllib.request.urlopen("http://127.0.0.1:@PORT@/", timeout=2).read())
""",
        row="9",
    ),
    Attempt(
        "cloud metadata fails fast",
        """
started = time.monotonic()
for host in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "10.0.0.1", "8.8.8.8"):
    _denied(host, socket.create_connection, (host, 80), 3)
took = time.monotonic() - started
if took > 1: _escaped(f"it took {took:.1f} s to be refused")
""",
        row="10",
        light=True,
    ),
    Attempt(
        "unix sockets of the machine",
        r"""
for address in ("\0@ABSTRACT@", "@SOCKET_PATH@", "/run/systemd/private", "/var/run/docker.sock", "/run/docker.sock", "/run/dbus/system_bus_socket",
                "/run/user/0/bus", "/tmp/.X11-unix/X0", "\0/tmp/.X11-unix/X0", "/run/containerd/containerd.sock", "/dev/log"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        def reach():
            s = socket.socket(socket.AF_UNIX, kind); s.settimeout(1)
            if kind == socket.SOCK_DGRAM: s.sendto(b"@TOKEN@", address)
            else: s.connect(address)
            return "reached"
        _denied(repr(address), reach)
try: names = open("/proc/net/unix").read()
except OSError: names = ""
if "@ABSTRACT@" in names or "@SOCKET_PATH@" in names: _escaped("sockets of the machine are listed")
""",
        row="6",
        light=True,
    ),
    Attempt(
        "name an abstract socket for others to find",
        r"""
for name in ("\0@TOKEN@-named", ""):
    try:
        s = socket.socket(socket.AF_UNIX); s.bind(name or "named"); s.listen()
        print("bound", s.getsockname())
        import subprocess
    except OSError: pass
time.sleep(0.2)
""",
    ),
    Attempt(
        "lists of the network",
        """
for name in ("tcp", "tcp6", "udp", "unix", "arp", "route", "dev", "fib_trie", "if_inet6"):
    try: text = open(f"/proc/net/{name}").read()
    except OSError: continue
    if "%04X" % @PORT@ in text and name == "tcp": _escaped("the trainer's port is listed")
    if name in ("dev", "fib_trie") and ("eth0" in text or "ens" in text or "@HOST_ADDRESS@" in text): _escaped(f"the machine's interfaces are listed in {name}")
try: interfaces = [name for _, name in socket.if_nameindex() if name != "lo"]
except OSError: interfaces = []
if [i for i in interfaces if not i.startswith(("tunl", "sit", "ip6", "gre", "erspan", "ip_vti", "teql"))]: _escaped(str(interfaces))
try: os.listdir("/sys/class/net") and _escaped("/sys/class/net")
except OSError: pass
""",
    ),
    Attempt(
        "interfaces and routes of one's own",
        """
import fcntl
try: s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
except OSError: s = None
if s is not None:
    request = struct.pack("16sH14s", b"lo", 0x41, b"")
    _denied("lo up", fcntl.ioctl, s.fileno(), 0x8914, request)
    _denied("tun", lambda: fcntl.ioctl(os.open("/dev/net/tun", os.O_RDWR), 0x400454CA, struct.pack("16sH", b"tun0", 1)))
""",
    ),
    Attempt(
        "pass descriptors back and forth",
        """
import array
for fd in range(3, 64):
    try: s = socket.socket(fileno=os.dup(fd))
    except OSError: continue
    try:
        s.setblocking(False)
        data, ancillary, flags, address = s.recvmsg(4096, socket.CMSG_LEN(16 * 4))
        for level, kind, payload in ancillary:
            got = array.array("i"); got.frombytes(payload[: len(payload) // 4 * 4])
            for one in got: _escaped(f"received a descriptor: {os.readlink('/proc/self/fd/%d' % one)}")
    except OSError: pass
    try: s.sendmsg([b"@TOKEN@" * 10], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2] * 80))])
    except OSError: pass
    try: print(s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError: pass
""",
        ends=(OK, ERROR),
    ),
    Attempt(
        "keep descriptors in flight",
        """
import array
pairs = []
try:
    for _ in range(200):
        a, b = socket.socketpair()
        a.setblocking(False)
        for _ in range(200): a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [a.fileno(), b.fileno()] * 100))])
        pairs.append((a, b))
except OSError as error: print(error)
""",
        ends=(OK, ERROR),
    ),
]
