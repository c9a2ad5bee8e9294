"""The time between the two events that a benchmark records around a replayed graph.

A row of such a benchmark is not a Task Duration. The time between the events is

.. code-block:: text

    max(host, around + kernel)

*around* is the time of the device outside the kernel: it starts the graph, proceeds from one kernel
to the next, and runs the other kernels of the graph. While that and the kernel together are shorter
than the time in which the host issues a replay, the interval is the time of the *host*. So a row
has less information about a short kernel than about a long one, and none if the host hides it.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.validation.rows import Row

__all__ = ["Events", "events_of"]


@dataclass(frozen=True, slots=True)
class Events:
    """The overhead in each time of a table of measured kernels."""

    table: str
    """The suffix of the source of its rows; empty if times are Task Durations."""
    around_us: float = 0.0
    host_us: float = 0.0
    source: str = ""
    """The origin of these numbers."""
    confidence: str = ""

    def interval_us(self, kernel_us: float) -> float:
        """The time between the events if the kernel takes *kernel_us*."""
        return max(self.host_us, self.around_us + kernel_us)

    def kernel_us(self, interval_us: float) -> float | None:
        """The kernel's part of an interval; None if there is none, or if the host hides it."""
        if interval_us <= max(self.host_us, self.around_us):
            return None
        return interval_us - self.around_us

    def __str__(self) -> str:
        """For example `40 us around the kernel, and 60 us at least (calibrated)`."""
        least = f", and {self.host_us:g} us at least" if self.host_us else ""
        return f"{self.around_us:g} us around the kernel{least} ({self.confidence})"


TASK_DURATION = Events("")
TABLES = (
    Events(
        "vllm-ascend/0.18.0/FusedInferAttentionScore.csv",
        around_us=34.0,
        source="46 rows of heads that share keys with a kernel of up to 60 us: their times less "
        "those simulated are 31 to 36 us in 8 of 10, and 34 to 41 in the next 23, of up to 120 us",
        confidence="calibrated",
    ),
    Events(
        "vllm-ascend/0.18.0/FusedInferAttentionScore_Decode.csv",
        around_us=32.0,
        host_us=58.0,
        source="351 rows with a kernel of 30 us and more: their times less those simulated are 17 "
        "to 29 us where heads share keys and 32 to 48 where they do not or FAI-FD splits keys, of "
        "which 32 leaves the least errors; the graph also holds the kernel that writes keys. 190 "
        "of 300 rows with a kernel of 10 to 30 us take 54 to 69 us whatever it does, and version "
        "0.23 of the benchmark takes 25 to 43 us for the same calls",
        confidence="calibrated",
    ),
    Events(
        "vllm-ascend/0.23.0/mla_bmm_perf.txt",
        around_us=5.0,
        source="19 rows of 16 and 32 batches with up to 128 rows: their times less those simulated "
        "are 4.6 to 6.4 us in 8 of 10 rows, whatever the sizes",
        confidence="calibrated",
    ),
    Events(
        "vllm-ascend/0.23.0/generation_mla_perf.txt",
        around_us=5.5,
        source="44 rows with a kernel below 30 us: their times less those simulated are 5.4 to 7 "
        "us in the half that is nearest, as of products in the same version",
        confidence="calibrated",
    ),
    Events(
        "vllm-ascend/0.23.0/context_mla_perf.txt",
        around_us=24.0,
        source="4 rows of one or two requests of 128 tokens, with a kernel of 18 to 25 us, and 2 "
        "of 256 and 512: their times less those simulated are 18 to 34 us",
        confidence="calibrated",
    ),
    Events(
        "vllm-ascend/0.23.0/generation_attention_perf.txt",
        around_us=20.0,
        source="33 rows with a kernel of 13 to 22 us: their times less those simulated are 16 to "
        "26 us in 8 of 10; the graph also holds the kernel that writes keys, as in version 0.18",
        confidence="calibrated",
    ),
)


def events_of(row: Row) -> Events:
    """The overhead in the time of *row*."""
    return next((each for each in TABLES if row.source.endswith(each.table)), TASK_DURATION)
