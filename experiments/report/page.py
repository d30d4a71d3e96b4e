"""A report as one HTML page that needs nothing else: styles, script and figures are in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from string import Template

from experiments.report.charts import Chart, panel_svg, swatch
from experiments.report.description import RunDescription
from experiments.report.style import Look, css_variables


def page(title: str, sections: Iterable[str]) -> bytes:
    """The whole page; sections are HTML."""
    assets = files("experiments.report") / "assets"
    css = Template((assets / "report.css").read_text()).substitute(
        light=css_variables(dark=False), dark=css_variables(dark=True)
    )
    script = (assets / "report.js").read_text()
    template = Template((assets / "page.html").read_text())
    return template.substitute(title=escape(title), css=css, script=script, body="\n".join(sections)).encode()


def chart_section(chart: Chart) -> str:
    """A chart with its legend, its caption and links to its files."""
    drawn = [panel_svg(panel, f"{chart.name}-{i}", chart.panel_size_in) for i, panel in enumerate(chart.panels)]
    panels = "".join(
        f'<div class="panel"><h3>{escape(panel.title)}</h3>{svg}</div>'
        for panel, svg in zip(chart.panels, drawn, strict=True)
    )
    links = " ".join(f'<a href="figures/{chart.name}.{kind}">{kind.upper()}</a>' for kind in ("png", "pdf"))
    figure = (
        f'<figure id="{chart.name}"><figcaption>{escape(chart.caption)} <span class="files">{links}</span></figcaption>'
        f'{legend(chart.legend)}<div class="panels columns-{min(chart.columns, 3)}">{panels}</div></figure>'
    )
    if chart.folded:
        return f"<details><summary>{escape(chart.title)}</summary>{figure}</details>"
    return f"<section><h2>{escape(chart.title)}</h2>{figure}</section>"


def legend(looks: Mapping[str, Look]) -> str:
    """Which line is which."""
    entries = "".join(f"<li>{swatch(look)} {escape(label)}</li>" for label, look in looks.items())
    return f'<ul class="legend">{entries}</ul>' if entries else ""


def warnings_section(warnings: Iterable[str]) -> str:
    """What must be known before the figures are trusted, or nothing."""
    entries = "".join(f"<li>{escape(warning)}</li>" for warning in warnings)
    return f'<aside class="warnings" role="note"><strong>Mind:</strong><ul>{entries}</ul></aside>' if entries else ""


def description_section(description: RunDescription, more: Mapping[str, str]) -> str:
    """What was run."""
    facts = {**description.facts, **more}
    if description.cost_model:
        facts["Cost model"] = description.cost_model
    if description.versions:
        facts["Versions"] = ", ".join(f"{name} {version}" for name, version in description.versions.items())
    parts = ["<section><h2>What was run</h2>"]
    if description.command:
        parts.append(f"<pre>{escape(description.command)}</pre>")
    parts.append(
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items()) + "</dl>"
    )
    if description.config_yaml:
        parts.append(
            f"<details><summary>Composed configuration</summary><pre>{escape(description.config_yaml)}</pre></details>"
        )
    return "".join(parts) + "</section>"
