#!/usr/bin/env python3
"""Raises the loopback interface if it is down, as it is in some containers and virtual machines.

NCCL and Open MPI talk over it on one host; without it mpirun ends with "PMIx server's listener thread failed to start".
Exit status 1, with a line on stderr, if it is down and cannot be raised. Standard library only."""
import fcntl, socket, struct, sys

GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP


def flags(call, value=0):
    """The flags of the interface, or those that are set to `value`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return struct.unpack_from("16xH", fcntl.ioctl(any_socket, call, struct.pack("16sH14x", b"lo", value)))[0]


def main():
    before = flags(GET_FLAGS)
    if before & UP:
        return
    try:
        flags(SET_FLAGS, before | UP)
    except PermissionError:
        sys.exit("the loopback interface lo is down, and only root can raise it: mpirun and NCCL will fail")
    print("the loopback interface lo was down; it is up now", file=sys.stderr)


main()
