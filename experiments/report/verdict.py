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
        return f"No SLO was set; the schedulers are compared at {rate_text(study.knee)}, where their latencies part."
    slo = f"the SLO ({slo_text(study)})" if slo_text(study) else "their SLO"
    share = f"at least {100 * GOOD_SHARE:g} % of requests"
    if len(study.rates) == 1:
        good = [
            series.label
            for series in study.series
            if study.sustained_rate(series) is not None or _sustains(study, series)
        ]
        return f"At {rate_text(study.rates[0])}, {share} met {slo} with {_enumerate(good) or 'no scheduler'}."
    sustained = {series.label: study.sustained_rate(series) for series in study.series}
    rates = [rate for rate in sustained.values() if rate is not None]
    if not rates:
        return f"At no rate that was tried, and with no scheduler, {share} met {slo}."
    best = max(rates)
    winners = [label for label, rate in sustained.items() if rate == best]
    verb, it = ("sustains", "it") if len(winners) == 1 else ("sustain", "they")
    beyond = f" (the highest that was tried: {it} may sustain more)" if best == study.rates[-1] else ""
    return f"{_enumerate(winners)} {verb} the highest rate, {rate_text(best)}{beyond}, with {share} within {slo}."


def verdict(study: Study, series: Series) -> str:
    """What is to be said of one series, in half a sentence."""
    knee = study.knee
    ttft, tpot = (study.estimate(series, knee, metric, "p99") for metric in ("ttft_s", "tpot_s"))
    figures = [f"P99 TTFT {_seconds(ttft.mean)}"] if ttft else []
    figures += [f"P99 TPOT {_seconds(tpot.mean)}"] if tpot else []
    share = study.estimate(series, knee, "goodput", "share")
    figures += [f"{100 * share.mean:.3g} % within the SLO"] if share else []
    there = f"at {rate_text(knee)}: {', '.join(figures) or 'no figures'}"
    if not study.has_slo or len(study.rates) == 1:
        return there
    rate = study.sustained_rate(series)
    sustained = "no rate that was tried" if rate is None else f"up to {rate_text(rate)}"
    return f"sustains {sustained}; {there}"


def _sustains(study: Study, series: Series) -> bool:
    share = study.estimate(series, study.rates[0], "goodput", "share")
    return share is not None and share.mean >= GOOD_SHARE


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def _enumerate(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else ", ".join(labels[:-1]) + (" and " + labels[-1] if labels else "")
