"""The errors of this package. `status` is the exit status of `espalier-runs`; it means what it means for `espalier`."""
from __future__ import annotations

import difflib
from typing import Iterable


class Error(Exception):
    """Base class of all errors of this package."""
    status = 1


class UsageError(Error):
    """A call or a command line asks for something that does not exist."""
    status = 2


class DataError(Error):
    """A file of a run is missing, damaged or of a format that is not known."""
    status = 3


class UnknownName(UsageError, KeyError):
    """A mapping has nothing of this name."""
    __str__ = Exception.__str__  # KeyError would put it in quotes


def unknown(where: str, what: str, name: object, names: Iterable[str]) -> UnknownName:
    """The error for a name that is not there, with the nearest one that is."""
    names = list(names)
    near = difflib.get_close_matches(str(name), names, n=1)
    if near:
        return UnknownName(f"{where}: no {what} {name} (did you mean {near[0]}?)")
    few = ", ".join(names[:10]) + (f", ... ({len(names)} in all)" if len(names) > 10 else "")
    return UnknownName(f"{where}: no {what} {name}; there are: {few or 'none'}")
