"""Profiles taken on a real card, held against the simulator, kernel by kernel.

>>> import npusim
>>> found = npusim.profile.read("prof").compare("910B3")  # doctest: +SKIP
>>> found.slowest[0].ratio, found.slowest[0].cause  # doctest: +SKIP
(2.0, 'waiting: its cores were busy for 12.1 of 25.0 us')
"""

from npusim.profile.comparison import Comparison, Group, Measured
from npusim.profile.files import Profile, read
from npusim.profile.kernels import Kernel, ProfileError

__all__ = ["Comparison", "Group", "Kernel", "Measured", "Profile", "ProfileError", "read"]
