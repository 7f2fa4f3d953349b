"""Whose turn it is: places given out by shares, as evenly as whole numbers allow."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from fractions import Fraction


class Turns:
    """Gives places to names by ``shares``, which are relative to their sum.

    Each place goes to the name that is owed most. However many places were given out, no name is
    ahead of its share by a whole place, and each has exactly its share whenever that is a whole
    number for all of them (where every name could take its turn). Shares are taken as they are
    written (0.1 is a tenth), and the sums are whole numbers: the same shares give the same turns
    everywhere.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        exact = {name: Fraction(str(share)) for name, share in shares.items()}
        unit = math.lcm(*(share.denominator for share in exact.values()))
        self._shares = {name: int(share * unit) for name, share in exact.items()}
        self._owed = dict.fromkeys(self._shares, 0)

    def next(self, among: Collection[str]) -> str:
        """The next place's name, one of those in ``among`` (at least one); of several that are
        owed as much, the first one of the shares."""
        for name, share in self._shares.items():
            self._owed[name] += share
        chosen = max(
            (name for name in self._shares if name in among), key=lambda name: self._owed[name]
        )
        self._owed[chosen] -= sum(self._shares.values())
        return chosen
