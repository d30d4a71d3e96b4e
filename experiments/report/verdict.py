"""What a sweep comes to, in sentences computed from its figures."""

from __future__ import annotations

from experiments.report.study import GOOD_SHARE, Series, Study, rate_text


def slo_text(study: Study) -> str:
    """The targets in words."""
    targets = (("TTFT", "ttft_s", 1.0, "s"), ("TPOT", "tpot_s", 1e3, "ms"))
    known = [(name, study.slo_target(key), factor, unit) for name, key, factor, unit in targets]
    return " and ".join(
        f"{name} ≤ {value * factor:g} {unit}" for name, value, factor, unit in known if value is not None
    )


def headline(study: Study) -> str:
    """The first sentence of a report."""
    if not study.has_slo:
        return _fastest(study)
    slo = f"the SLO ({slo_text(study)})" if slo_text(study) else "their SLO"
    within = f"at least {100 * GOOD_SHARE:g} % of requests within {slo}"
    lowest = rate_text(study.rates[0])
    if len(study.rates) == 1:
        return f"At {lowest}, {_who_keeps(study)} {within}."
    sustained = {series.label: study.sustained_rate(series) for series in study.series}
    rates = [rate for rate in sustained.values() if rate is not None]
    if not rates:
        whom = f"{study.series[0].label} does not sustain" if len(study.series) == 1 else f"No {study.noun} sustains"
        return f"{whom} even the lowest rate that was tried, {lowest}, with {within}."
    best = max(rates)
    winners = [label for label, rate in sustained.items() if rate == best]
    verb, it = ("sustains", "it") if len(winners) == 1 else ("sustain", "they")
    beyond = f" (the highest that was tried: {it} may sustain more)" if best == study.rates[-1] else ""
    # Where all do the same, or there is but one, nothing was outdone.
    what = "up to" if len(winners) == len(study.series) else "the highest rate,"
    return f"{_group(study, winners)} {verb} {what} {rate_text(best)}{beyond}, with {within}."


def verdict(study: Study, series: Series) -> str:
    """What is to be said of one series, in half a sentence."""
    there = f"at {rate_text(study.knee)}: {in_short(study, series, study.knee)}"
    if not study.has_slo or len(study.rates) == 1:
        return there
    rate = study.sustained_rate(series)
    sustained = "no rate that was tried" if rate is None else f"up to {rate_text(rate)}"
    return f"sustains {sustained}; {there}"


def in_short(study: Study, series: Series, rate: float | None) -> str:
    """The figures of a series at a rate that matter most."""
    ttft, tpot = (study.estimate(series, rate, metric, "p99") for metric in ("ttft_s", "tpot_s"))
    figures = [f"P99 TTFT {seconds(ttft.mean)}"] if ttft else []
    figures += [f"P99 TPOT {seconds(tpot.mean)}"] if tpot else []
    share = study.estimate(series, rate, "goodput", "share")
    figures += [f"{100 * share.mean:.3g} % within the SLO"] if share else []
    return ", ".join(figures) or "no request completed"


def seconds(value: float) -> str:
    """A duration for a sentence."""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def enumerate_labels(labels: list[str]) -> str:
    """Labels for a sentence: "a, b and c"."""
    return labels[0] if len(labels) == 1 else ", ".join(labels[:-1]) + (" and " + labels[-1] if labels else "")


def _who_keeps(study: Study) -> str:
    """Subject and verb, where there is a single rate."""
    good = [series.label for series in study.series if study.is_good(series, study.rates[0])]
    if good:
        return f"{_group(study, good)} {'keeps' if len(good) == 1 else 'keep'}"
    return f"{study.series[0].label} does not keep" if len(study.series) == 1 else f"no {study.noun} keeps"


def _group(study: Study, labels: list[str]) -> str:
    """Several series as the subject of a sentence."""
    if len(labels) <= 3:
        return enumerate_labels(labels)
    return f"{len(labels)} of {len(study.series)} {study.noun}s"


def _fastest(study: Study) -> str:
    p99 = {series.label: study.estimate(series, study.knee, "ttft_s", "p99") for series in study.series}
    known = {label: estimate.mean for label, estimate in p99.items() if estimate is not None}
    if not known:
        return "No SLO was set, and no request completed."
    best = min(known, key=known.__getitem__)
    lowest = seconds(known[best])
    there = f"No SLO was set. At {rate_text(study.knee)}"
    if len(known) == 1:
        return f"{there}, the P99 TTFT of {best} is {lowest}."
    return f"{there}, {best} has the lowest P99 TTFT: {lowest}."
