#!/usr/bin/python3
"""A synchronous parameter server over TCP, as one would write it: the mean of what all ranks send goes back to all.

    tcp_server.py --listen 10.77.1.1:7800 --ranks 4 --parts 16 --congestion bbr

A rank opens a connection for each part of its gradient. A part's mean goes out when the last rank's has come, while others are
still on their way.
"""
import argparse
import selectors
import socket
import threading

import numpy


def receive(connection, into):
    view = memoryview(into).cast("B")
    while len(view):
        got = connection.recv_into(view)
        if not got:
            raise ConnectionError("the other end has closed")
        view = view[got:]


def cut(flat, parts):
    return numpy.array_split(flat, parts)


def exchange_parts(connections, flat):
    """Sends a part on each connection and receives its mean in the same place; all of them at once, without threads."""
    parts = [memoryview(part).cast("B") for part in cut(flat, len(connections))]
    for part, connection in zip(parts, connections):
        connection.setblocking(True)
        connection.sendall(len(part).to_bytes(8, "big"))
        connection.setblocking(False)
    selector = selectors.DefaultSelector()
    sent, received = [0] * len(parts), [0] * len(parts)
    # What comes back overwrites what has gone out: a mean is never sooner than its part.
    for i, connection in enumerate(connections):
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, i)
    left = len(parts)
    while left:
        for key, mask in selector.select():
            i, connection = key.data, key.fileobj
            if mask & selectors.EVENT_WRITE:
                try:
                    sent[i] += connection.send(parts[i][sent[i]:])
                except BlockingIOError:
                    pass
                if sent[i] == len(parts[i]):
                    selector.modify(connection, selectors.EVENT_READ, i)
            if mask & selectors.EVENT_READ:
                try:
                    got = connection.recv_into(parts[i][received[i]:])
                except BlockingIOError:
                    continue
                if not got:
                    raise ConnectionError("the server has closed")
                received[i] += got
                if received[i] == len(parts[i]):
                    selector.unregister(connection)
                    left -= 1


def serve_part(connections):
    """One part's rounds, until the ranks go."""
    ranks = len(connections)
    try:
        while True:
            sizes = []
            for connection in connections:
                header = bytearray(8)
                receive(connection, header)
                sizes.append(int.from_bytes(header, "big"))
            values = [numpy.empty(size // 4, numpy.float32) for size in sizes]
            readers = [threading.Thread(target=receive, args=pair) for pair in zip(connections[1:], values[1:])]
            for reader in readers:
                reader.start()
            receive(connections[0], values[0])
            for reader in readers:
                reader.join()
            mean = memoryview(sum(values[1:], values[0]) / numpy.float32(ranks)).cast("B")
            writers = [threading.Thread(target=connection.sendall, args=(mean,)) for connection in connections[1:]]
            for writer in writers:
                writer.start()
            connections[0].sendall(mean)
            for writer in writers:
                writer.join()
    except OSError:
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--congestion", default="bbr")
    options = parser.parse_args()
    host, port = options.listen.rsplit(":", 1)
    listener = socket.create_server((host, int(port)), backlog=256)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, options.congestion.encode())  # of those it accepts
    places = {}
    for _ in range(options.ranks * options.parts):
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = bytearray(2)
        receive(connection, name)
        places[tuple(name)] = connection
    threads = [threading.Thread(target=serve_part, args=([places[rank, part] for rank in range(options.ranks)],))
               for part in range(options.parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
