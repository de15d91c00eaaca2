"""Advise, from validation rows, whether to federate and with which method, or say that rows are too few to tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from fedlog.experiments.compare.findings import Findings
from fedlog.experiments.tables.significance import Estimate
from fedlog.wire.bits_text import describe_bits

WORTH = 0.01  # the smallest gain in accuracy that pays for a federation, unless the user gives another
FALSE_CLAIM_RATE = 0.05  # at most this often is a gain claimed that does not exist


class AdviceKind(Enum):
    """The kind of advice: to federate, to train alone, or none because there are too few rows to tell."""

    FEDERATE = "federate"
    ALONE = "train alone"
    UNCLEAR = "too few rows to tell"


@dataclass(frozen=True)
class Advice:
    """The advice of a comparison: `sentence` states it, and `confirmation` states the gain on test rows.

    `winners` and `losers` are the sites that gain and lose by federating.
    """

    kind: AdviceKind
    sentence: str
    confirmation: str
    method: str | None = None  # the label of the advised method; without advice, of the best method
    gain: Estimate | None = None  # its gain on validation rows, with the interval of the test that decided
    winners: tuple[str, ...] = ()  # sites that gain for sure
    losers: tuple[str, ...] = ()  # sites that lose for sure

    def __str__(self) -> str:
        return self.sentence


def advise(findings: Findings, worth: float = WORTH) -> Advice:
    """Advise whether to federate, from validation rows only; a gain below `worth` does not pay for a federation."""
    if findings.local_label is None or not findings.federated_labels:
        what = "training alone" if findings.local_label is None else "a federated method"
        return Advice(AdviceKind.UNCLEAR, f"No advice: {what} was not run, or failed.", "")
    # A gain is claimed if the lower end is above 0, for the best of several methods: hence the factors 2 and 1 / count.
    confidence = 1 - 2 * FALSE_CLAIM_RATE / len(findings.federated_labels)
    found = {label: findings.estimate_gain(label, "validation", confidence) for label in findings.federated_labels}
    gains = {label: gain for label, gain in found.items() if gain is not None}
    if not gains:
        return Advice(AdviceKind.UNCLEAR, "No advice: no site has validation rows.", "")
    best = max(gains, key=lambda label: gains[label].value)
    top = gains[best]
    if top.low is None or top.high is None:
        return Advice(AdviceKind.UNCLEAR, "One repetition cannot tell: give five seeds or more.", "", best, top)
    paying = [label for label, gain in gains.items() if (gain.low or 0) > 0 and (gain.high or 0) >= worth]
    if paying:
        return _advise_method(findings, _choose_cheapest(findings, paying, gains, worth), gains)
    # "No method gains enough" must hold for all methods at once, so this test needs no correction for their number.
    found = {label: findings.estimate_gain(label, "validation", 1 - 2 * FALSE_CLAIM_RATE) for label in gains}
    bounds = {label: gain for label, gain in found.items() if gain is not None}
    if len(bounds) == len(gains) and all((gain.high or 0) < worth for gain in bounds.values()):
        return _advise_training_alone(findings, best, bounds[best], worth)
    return _advise_more_rows(findings, best, top)


def _choose_cheapest(findings: Findings, labels: Sequence[str], gains: dict[str, Estimate], worth: float) -> str:
    """Return the label with the fewest bits, among those whose gain falls short of the highest by less than `worth`."""
    most = max(gains[label].value for label in labels)
    near = [label for label in labels if gains[label].value > most - worth]
    return min(near, key=lambda label: (findings.results[label].bits, -gains[label].value))


def _advise_method(findings: Findings, label: str, gains: dict[str, Estimate]) -> Advice:
    """Make the advice to federate with the method of this label."""
    results, gain = findings.results[label], gains[label]
    sites = {site: found.gain for site, found in results.sites.items() if found.gain is not None}
    winners = tuple(site for site, found in sites.items() if (found.low or 0) > 0)
    losers = tuple(site for site, found in sites.items() if (found.high or 0) < 0)
    who = f"{_join_names(winners) or 'no single site'} {'gains' if len(winners) < 2 else 'gain'} for sure, "
    who += f"{_join_names(losers) or 'none'} {'loses' if len(losers) < 2 else 'lose'}"
    sentence = (
        f"Federate with {label}: {describe_gain(gain)} over training alone on validation rows, for "
        f"{describe_bits(results.bits_a_site_and_round)} a site and a round; {who}."
    )
    return Advice(AdviceKind.FEDERATE, sentence, _describe_test_gain(findings, label), label, gain, winners, losers)


def _advise_training_alone(findings: Findings, best: str, gain: Estimate, worth: float) -> Advice:
    """Make the advice not to federate; `best` is the label of the best federated method."""
    sentence = (
        f"Training alone is as good: do not federate. The best other method on validation rows, {best}, gains "
        f"{describe_gain(gain)}, and no method gains {100 * worth:g} or more."
    )
    return Advice(AdviceKind.ALONE, sentence, _describe_test_gain(findings, best), best, gain)


def _advise_more_rows(findings: Findings, best: str, gain: Estimate) -> Advice:
    """Say that there are too few rows to tell; `best` is the label of the best federated method."""
    width = gain.half_width or 0.0
    sentence = (
        f"Too few rows to tell: a difference below {100 * width:.1f} points cannot be seen here. The best method on "
        f"validation rows, {best}, gains {describe_gain(gain)} over training alone."
    )
    return Advice(AdviceKind.UNCLEAR, sentence, _describe_test_gain(findings, best), best, gain)


def _describe_test_gain(findings: Findings, label: str) -> str:
    """Return a sentence with the gain of this variant on test rows; empty if there are no test rows."""
    found = findings.estimate_gain(label, "test")
    return "" if found is None else f"Test rows, which had no part in this: {label} gains {describe_gain(found)}."


def describe_gain(gain: Estimate) -> str:
    """Format a gain in points with its interval, as `+3.4 points (between +1.2 and +5.6)`."""
    said = f"{100 * gain.value:+.1f} points"
    if gain.low is None or gain.high is None:
        return said
    return f"{said} (between {100 * gain.low:+.1f} and {100 * gain.high:+.1f})"


def _join_names(names: Sequence[str]) -> str:
    """Join names by commas; after the first ten, write only how many more there are."""
    shown = list(names[:10])
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(shown) + more
