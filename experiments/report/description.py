"""What was run: enough to check a report or to repeat it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.report.study import Point
from experiments.storage import read_summary
from schedulers.errors import InputError

#: Beside a report: its title, its description and where its points are; enough to draw it again.
CONTENTS = "report.json"


@dataclass(frozen=True, slots=True)
class RunDescription:
    """What a report says of the runs that it shows.

    Attributes:
        command: the command line that did it.
        config_yaml: the composed configuration that the points share.
        cost_model: where step times come from, in a sentence.
        versions: of the programs that took part, by name.
        facts: anything else worth a line (model, device, workload, SLO), by name.
        warnings: what a reader must know before trusting the figures, such as how far a cost model extrapolated.
        failed: points that did not finish, with the reason.
    """

    command: str = ""
    config_yaml: str = ""
    cost_model: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contents:
    """What `report.json` holds. Points that are no longer there count as failed."""

    title: str
    description: RunDescription
    points: Sequence[Point]

    def to_json(self, folder: Path) -> bytes:
        """The content of `report.json`; the points' folders are relative to the report's."""
        places = [{"folder": os.path.relpath(point.folder, folder), "axes": dict(point.axes)} for point in self.points]
        content = {"title": self.title, "description": asdict(self.description), "points": places}
        return (json.dumps(content, indent=1, default=str) + "\n").encode()

    @classmethod
    def read(cls, folder: Path) -> Contents:
        """Read a report's contents back, with the summaries of its points.

        Raises:
            InputError: the file is missing or damaged.
        """
        path = folder / CONTENTS
        try:
            content: dict[str, Any] = json.loads(path.read_text())
            description = RunDescription(**content["description"])
            places = [(folder / place["folder"], place["axes"]) for place in content["points"]]
            title = str(content["title"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is missing or damaged: {error}") from error
        points, failed = [], dict(description.failed)
        for place, axes in places:
            try:
                points.append(Point(place, axes, read_summary(place)))
            except InputError as error:
                failed[", ".join(f"{name}={value}" for name, value in axes.items())] = str(error)
        fields = {**content["description"], "failed": failed}
        return cls(title, RunDescription(**fields), points)
