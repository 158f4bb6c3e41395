"""Addresses of pods."""

from __future__ import annotations

import ipaddress


class Addresses:
    """Addresses of one range: each is given to one pod at a time, and a free one as late as possible again."""

    def __init__(self, cidr: str) -> None:
        self._range = ipaddress.IPv4Network(cidr)
        self._used: set[str] = set()
        self._last = 0

    def mark(self, address: str) -> None:
        """A pod has this address already; one that is not of the range does not matter."""
        if address and ipaddress.IPv4Address(address) in self._range:
            self._used.add(address)

    def __contains__(self, address: str) -> bool:
        """Whether a pod has this address of the range."""
        return address in self._used

    def take(self) -> str:
        """A free address.

        Raises:
            LookupError: all are in use.
        """
        size = self._range.num_addresses
        for step in range(1, size):
            number = (self._last + step) % size
            address = str(self._range[number])
            if number not in (0, size - 1) and address not in self._used:
                self._last = number
                self._used.add(address)
                return address
        raise LookupError(f"no free address in {self._range}")

    def release(self, address: str) -> None:
        """The pod that had this address is gone."""
        self._used.discard(address)
