"""How far to trust a simulated time: what is known of measured kernels of the same kind.

``simulated.csv`` has a line for each row of ``validation/silicon.csv`` that was simulated:
``benchmarks/simulated.py`` writes it, so nothing here is typed in.
"""

from npusim.accuracy.kernels import Accuracy, Known, accuracy_of, within_all_kinds
from npusim.accuracy.kinds import Kind, Sizes, kind_of

__all__ = ["Accuracy", "Kind", "Known", "Sizes", "accuracy_of", "kind_of", "within_all_kinds"]
