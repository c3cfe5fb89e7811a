"""A TCP proxy before a Redis that can go silent, lose replies, cut connections and turn to another server."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable

CHUNK = 1 << 16


class Link:
    """One client's connection and its counterpart to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.silent = self.loses_reply = False

    def close(self) -> None:
        self.client.close()
        self.server.close()


class Proxy:
    """Forwards to the unix socket `target`. Everything is done in one thread of its own."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._selector = selectors.DefaultSelector()
        self._links: set[Link] = set()
        self._wake, self._woken = socket.socketpair()
        self._orders: list[Callable[[], None]] = []
        self._done = threading.Event()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._thread.start()

    def silence(self) -> int:
        """Forward nothing more on the connections there are, and leave them open. How many."""
        return self._order(lambda link: setattr(link, "silent", True))

    def lose_replies(self) -> int:
        """On every connection there is: the next reply is dropped after the command was applied, and the line cut."""
        return self._order(lambda link: setattr(link, "loses_reply", True))

    def cut(self) -> int:
        """Close all connections. How many."""
        return self._order(self._drop)

    def turn_to(self, target: str) -> None:
        """Send connections to another server from now on, and close those there are."""
        self.target = target
        self.cut()

    def stop(self) -> None:
        self._done.set()
        self._wake.send(b"x")
        self._thread.join()
        for link in list(self._links):
            link.close()
        for each in (self._listener, self._wake, self._woken, self._selector):
            each.close()

    def _order(self, act: Callable[[Link], None]) -> int:
        """Have the thread do something with every link, and wait for it."""
        done, count = threading.Event(), 0

        def order() -> None:
            nonlocal count
            for link in list(self._links):
                act(link)
                count += 1
            done.set()

        self._orders.append(order)
        self._wake.send(b"x")
        assert done.wait(60), "the proxy stands still"
        return count

    def _serve(self) -> None:
        while not self._done.is_set():
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(CHUNK)
                elif key.data in self._links:
                    self._forward(key.fileobj, key.data)  # type: ignore[arg-type]
            while self._orders:
                self._orders.pop(0)()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self.target)
        except OSError:
            server.close()
            client.close()
            return
        link = Link(client, server)
        self._links.add(link)
        for side in (client, server):
            self._selector.register(side, selectors.EVENT_READ, link)

    def _forward(self, source: socket.socket, link: Link) -> None:
        if link.silent:  # unread, as by a host that is gone
            for side in (link.client, link.server):
                with contextlib.suppress(KeyError):
                    self._selector.unregister(side)
            return
        try:
            chunk = source.recv(CHUNK)
            if not chunk or (link.loses_reply and source is link.server):
                self._drop(link)
            else:
                (link.server if source is link.client else link.client).sendall(chunk)
        except OSError:
            self._drop(link)

    def _drop(self, link: Link) -> None:
        for side in (link.client, link.server):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(side)
        link.close()
        self._links.discard(link)
