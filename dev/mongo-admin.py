#!/usr/bin/env python3
"""The few things dev/mongo asks of a mongod, without a driver or a shell.

usage: mongo-admin.py free-ports COUNT                   free ports on 127.0.0.1, one a line
       mongo-admin.py state PORT                         what the server says it is, one word
       mongo-admin.py ready SECONDS SET|- PORT...        make the servers one replica set, unless they are, and wait
                                                         until a primary is writable and the others follow it;
                                                         with - wait for a server without a replica set
       mongo-admin.py create-user NAME PASSWORD PORT...  the first user, with role root; fine if there is one

Speaks OP_MSG to 127.0.0.1 with the BSON types that these commands use. Standard library only.
"""

import random
import socket
import struct
import sys
import time

OP_MSG = 2013
UNAUTHORIZED, ALREADY_INITIALIZED, USER_EXISTS = 13, 23, 51003


class Failure(Exception):
    """What went wrong, in words for the person at the terminal."""


# BSON

def encode(document):
    body = b"".join(encode_element(name, value) for name, value in document.items())
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def encode_element(name, value):
    name = name.encode() + b"\0"
    if isinstance(value, bool):
        return b"\x08" + name + (b"\x01" if value else b"\x00")
    if isinstance(value, int):
        return b"\x10" + name + struct.pack("<i", value)
    if isinstance(value, str):
        text = value.encode() + b"\0"
        return b"\x02" + name + struct.pack("<i", len(text)) + text
    if isinstance(value, dict):
        return b"\x03" + name + encode(value)
    if isinstance(value, list):
        return b"\x04" + name + encode({str(i): item for i, item in enumerate(value)})
    raise TypeError(f"cannot encode {type(value).__name__}")


def decode(data):
    document, at = {}, 4
    while data[at] != 0:
        kind = data[at]
        end = data.index(0, at + 1)
        name = data[at + 1:end].decode()
        document[name], at = decode_value(kind, data, end + 1)
    return document


def decode_value(kind, data, at):
    """The value that starts at `at`, and where the next element starts."""
    fixed = {0x01: "<d", 0x08: "<?", 0x09: "<q", 0x10: "<i", 0x11: "<Q", 0x12: "<q"}
    if kind in fixed:
        return struct.unpack_from(fixed[kind], data, at)[0], at + struct.calcsize(fixed[kind])
    if kind == 0x0A:
        return None, at
    if kind == 0x07:
        return data[at:at + 12].hex(), at + 12
    size = struct.unpack_from("<i", data, at)[0]
    if kind == 0x02:
        return data[at + 4:at + 3 + size].decode(), at + 4 + size
    if kind == 0x05:
        return data[at + 5:at + 5 + size], at + 5 + size
    if kind == 0x03:
        return decode(data[at:at + size]), at + size
    if kind == 0x04:
        return list(decode(data[at:at + size]).values()), at + size
    raise Failure(f"the server's answer holds the BSON type 0x{kind:02x}, which this script cannot read")


# The wire

def command(port, document, timeout=5.0):
    """Runs a command on the database admin and returns the answer, whatever its `ok` is."""
    body = struct.pack("<i", 0) + b"\0" + encode({**document, "$db": "admin"})
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.sendall(struct.pack("<iiii", 16 + len(body), 1, 0, OP_MSG) + body)
        size = struct.unpack("<i", receive(connection, 4))[0]
        answer = receive(connection, size - 4)
    return decode(answer[17:])  # the rest of the header (12), flags (4), section kind (1)


def receive(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the server closed the connection")
        data += part
    return data


def must(port, document, accepted_codes=(), timeout=30.0):
    answer = command(port, document, timeout)
    if answer.get("ok") != 1 and answer.get("code") not in accepted_codes:
        name = next(iter(document))
        raise Failure(f"{name} on port {port}: {answer.get('errmsg')} (code {answer.get('code')})")


# The commands

def free_ports(count):
    """Below the range that the kernel hands to outgoing connections, so that a port is still free after a restart."""
    candidates = random.sample(range(20000, 32000), 2000)
    return [port for port in candidates if is_free(port)][:count]


def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def state(port):
    try:
        hello = command(port, {"hello": 1})
    except OSError:
        return "unreachable"
    if hello.get("isreplicaset"):
        return "uninitiated"
    if hello.get("isWritablePrimary"):
        return "primary" if "setName" in hello else "standalone"
    return "secondary" if hello.get("secondary") else "starting"


def ready(seconds, name, ports):
    wanted = ["standalone"] if name == "-" else ["primary"] + ["secondary"] * (len(ports) - 1)
    deadline = time.monotonic() + seconds
    while True:
        states = [state(port) for port in ports]
        if sorted(states) == wanted:
            return
        if set(states) == {"uninitiated"} and name != "-":
            initiate(name, ports)
        if time.monotonic() > deadline:
            seen = ", ".join(f"{port} {word}" for port, word in zip(ports, states))
            raise Failure(f"no writable primary with all members within {seconds:g} s: {seen}")
        time.sleep(0.05)


def initiate(name, ports):
    members = [{"_id": i, "host": f"127.0.0.1:{port}"} for i, port in enumerate(ports)]
    config = {"_id": name, "version": 1, "members": members}
    if len(ports) > 1:
        config["settings"] = {"electionTimeoutMillis": 2000}
    must(ports[0], {"replSetInitiate": config}, accepted_codes=(ALREADY_INITIALIZED,))


def create_user(name, password, ports):
    """Works without a login only while there is no user: a refusal then means that there is one."""
    primary = next((port for port in ports if state(port) == "primary"), None)
    if primary is None:
        raise Failure("no primary to create the user on")
    user = {"createUser": name, "pwd": password, "roles": [{"role": "root", "db": "admin"}]}
    must(primary, user, accepted_codes=(UNAUTHORIZED, USER_EXISTS))


def main(arguments):
    match arguments:
        case ["free-ports", count]:
            print(*free_ports(int(count)), sep="\n")
        case ["state", port]:
            print(state(int(port)))
        case ["ready", seconds, name, *ports]:
            ready(float(seconds), name, [int(port) for port in ports])
        case ["create-user", name, password, *ports]:
            create_user(name, password, [int(port) for port in ports])
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (Failure, OSError) as error:
        sys.exit(f"mongo-admin: {error}")
