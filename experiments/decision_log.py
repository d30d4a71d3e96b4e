"""The decisions of a run as a file: one line of JSON a step, the fields of `schedulers.decisions.StepDecisions`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from schedulers import SLO, InputError
from schedulers.decisions import Admission, Arrival, StepDecisions

FILE = "decisions.jsonl.gz"


def encode(steps: Iterable[StepDecisions]) -> bytes:
    """The content of the file; the same decisions give the same bytes."""
    lines = [json.dumps(_plain(step), separators=(",", ":")) + "\n" for step in steps]
    return gzip.compress("".join(lines).encode(), compresslevel=4, mtime=0)


def read(folder: Path) -> list[StepDecisions]:
    """The decisions of the run in `folder`.

    Raises:
        InputError: the run kept none, or the file is damaged.
    """
    file = folder / FILE
    if not file.is_file():
        raise InputError(f"{folder} has no {FILE}: give the folder of a run that was made with mode.decisions=true")
    try:
        steps = [_step(json.loads(line)) for line in gzip.decompress(file.read_bytes()).splitlines()]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged: {error}") from error
    if not steps:
        raise InputError(f"{file} holds no step: there is nothing to replay")
    return steps


def _plain(step: StepDecisions) -> dict[str, Any]:
    news = [_plain_arrival(item) if isinstance(item, Arrival) else item for item in step.news]
    return {**step._asdict(), "news": news}


def _plain_arrival(arrival: Arrival) -> dict[str, Any]:
    slo = arrival.slo
    return {**arrival._asdict(), "slo": slo and [slo.ttft_s, slo.tpot_s]}


def _step(fields: dict[str, Any]) -> StepDecisions:
    news = [item if isinstance(item, str) else _arrival(item) for item in fields["news"]]
    admissions = {request_id: Admission(*admission) for request_id, admission in fields["admissions"].items()}
    return StepDecisions(**{**fields, "news": news, "admissions": admissions})


def _arrival(fields: dict[str, Any]) -> Arrival:
    return Arrival(**{**fields, "slo": fields["slo"] and SLO(*fields["slo"])})
