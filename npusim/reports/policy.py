"""What a page that opens from disk may do: run its own scripts, and make no requests."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

__all__ = ["policy"]


def policy(*scripts: str) -> str:
    """The content security policy of a page with *scripts*, each exactly as in its element.

    Scripts are allowed by their hashes, so that markup from a name or a file, if it ever got into
    the page, would run nothing (W3C, Content Security Policy Level 3).
    """
    hashes = [b64encode(sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"base-uri 'none'; form-action 'none'"
    )
