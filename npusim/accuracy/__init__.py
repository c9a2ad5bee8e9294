"""The expected error of a simulated time, from measured kernels of the same kind.

``simulated.csv`` has one line for each simulated row of ``validation/silicon.csv``; it is written
by ``benchmarks/simulated.py``, so nothing here is entered by hand.
"""

from npusim.accuracy.kernels import Accuracy, Known, accuracy_of, within_all_kinds
from npusim.accuracy.kinds import Kind, Sizes, kind_of

__all__ = ["Accuracy", "Kind", "Known", "Sizes", "accuracy_of", "kind_of", "within_all_kinds"]
