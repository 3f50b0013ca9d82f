"""Decks: TOML as dicts, and what differs between two of them."""
from __future__ import annotations

import sys
from typing import Any, Dict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from .errors import DataError


def parse_deck(text: str, where: str) -> Dict[str, Any]:
    """The sections of a deck as dicts. Raises DataError if it is no TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where}: {error}") from None


def flat(deck: Dict[str, Any]) -> Dict[str, Any]:
    """Values by dotted keys: {"parallel.tp": 2}."""
    found = {}
    for section, value in deck.items():
        if isinstance(value, dict):
            found.update({f"{section}.{key}": inner for key, inner in value.items()})
        else:
            found[section] = value
    return found
