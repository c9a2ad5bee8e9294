"""How many cases a test draws: by day a third of what it draws at night.

At night hypothesis gets its profile by `pytest --hypothesis-profile nightly -m nightly`.
"""

from __future__ import annotations

from hypothesis import settings

# No database and no deadline: a run depends on nothing but the code.
settings.register_profile("nightly", derandomize=True, database=None, deadline=None)
settings.register_profile("daily", settings.get_profile("nightly"), max_examples=34)
settings.load_profile("daily")


def is_night() -> bool:
    return settings.get_current_profile_name() == "nightly"


def draws(at_night: int) -> settings:
    """The settings of a test that draws so many cases at night."""
    return settings(max_examples=at_night if is_night() else -(-at_night // 3))
