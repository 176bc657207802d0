"""The one error that bad input raises."""

from __future__ import annotations


class InputError(ValueError):
    """Input from outside (a file, a parameter, a message) that cannot be used.

    Args:
        where: file (with row where known) or dotted parameter key.
        value: what was found there; shown with ``repr`` and cut at 80 characters.
        allowed: what would have been accepted.
    """

    def __init__(self, where: str, value: object, allowed: str) -> None:
        self.where = where
        self.value = value
        self.allowed = allowed
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{where}: {shown} is not usable; {allowed}")
