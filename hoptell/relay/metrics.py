"""What the relay counts, as Prometheus text: `GET /metrics` (examples/prometheus/README.md).

Numbers only: no names, no addresses, no text. Counting is an addition to a plain attribute;
prometheus_client writes the text, and is imported when somebody first asks for it (28 ms and
2 MB that a relay without a Prometheus need not spend).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hoptell.relay.model import Gauges

COMMIT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Upper ends of the journal's histogram: a good SSD takes 1 to 5 ms, a busy disk 100."""


class Metrics:
    """Counters since the start of the relay."""

    __slots__ = (
        "accepted",
        "accepted_bytes",
        "commit_counts",
        "commit_seconds",
        "copies",
        "delivered",
        "expired",
        "logins_refused",
        "redelivered",
        "refused",
        "withdrawn",
    )

    def __init__(self) -> None:
        self.accepted = 0
        """Messages taken."""
        self.accepted_bytes = 0
        """UTF-8 bytes of their texts."""
        self.copies = 0
        """Their deliveries."""
        self.delivered = 0
        """Deliveries confirmed by their recipient."""
        self.redelivered = 0
        """Deliveries sent again after their connection was lost."""
        self.expired = 0
        """Deliveries dropped at their deadline."""
        self.withdrawn = 0
        """Messages refused after all, because the journal could not take them."""
        self.commit_counts = [0] * (len(COMMIT_SECONDS) + 1)
        """The journal's commits by how long they took, as in COMMIT_SECONDS and beyond."""
        self.commit_seconds = 0.0
        """All of them together."""
        self.refused: Counter[str] = Counter()
        """Requests turned down, by reason (Refused.reason)."""
        self.logins_refused: Counter[int] = Counter()
        """Logins turned down, by close code."""

    def committed(self, seconds: float) -> None:
        """Count one commit of the journal."""
        self.commit_counts[bisect_left(COMMIT_SECONDS, seconds)] += 1
        self.commit_seconds += seconds

    def text(self, gauges: "Gauges") -> tuple[str, str]:
        """The content type and the body of an answer, with `gauges` for what is now."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(_Collector(self, gauges))
        return CONTENT_TYPE_LATEST, generate_latest(registry).decode()


class _Collector:
    def __init__(self, metrics: Metrics, gauges: "Gauges") -> None:
        self._metrics = metrics
        self._gauges = gauges

    def collect(self) -> Iterator["Metric"]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        now, total = self._gauges, self._metrics
        for name, help, value in (
            ("connections", "Logged-in connections.", now.connections),
            ("peers_online", "Peers that are online.", now.online),
            ("peers_known", "Peers that are known, online or not.", now.known),
            ("queued", "Deliveries that wait for their recipient.", now.queued),
            ("queued_bytes", "Bytes of text that wait.", now.queued_bytes),
            ("in_flight", "Deliveries sent and not confirmed yet.", now.in_flight),
        ):
            yield GaugeMetricFamily(f"hoptell_{name}", help, value)
        for name, help, value in (
            ("accepted", "Messages taken.", total.accepted),
            ("accepted_bytes", "Bytes of text taken.", total.accepted_bytes),
            ("copies", "Deliveries of the messages taken.", total.copies),
            ("delivered", "Deliveries confirmed by their recipient.", total.delivered),
            ("redelivered", "Deliveries sent again after a lost connection.", total.redelivered),
            ("expired", "Deliveries dropped at their deadline.", total.expired),
            ("withdrawn", "Messages that the journal could not take.", total.withdrawn),
        ):
            yield CounterMetricFamily(f"hoptell_{name}", help, value)
        refused = CounterMetricFamily(
            "hoptell_refused", "Requests turned down, by reason.", labels=["reason"]
        )
        for reason, count in sorted(total.refused.items()):
            refused.add_metric([reason], count)
        yield refused
        logins = CounterMetricFamily(
            "hoptell_logins_refused", "Logins turned down, by close code.", labels=["code"]
        )
        for code, count in sorted(total.logins_refused.items()):
            logins.add_metric([str(code)], count)
        yield logins
        ends = [*map(str, COMMIT_SECONDS), "+Inf"]
        yield HistogramMetricFamily(
            "hoptell_journal_commit_seconds",
            "How long the journal's commits took.",
            buckets=list(zip(ends, accumulate(total.commit_counts), strict=True)),
            sum_value=total.commit_seconds,
        )
