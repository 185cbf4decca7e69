"""What benchmarks on a CPU share."""

import json
import os
import sys
from datetime import date
from pathlib import Path
from typing import Any

from tilewright.api.machine import cpu_name


def save(out: Path, **figures: Any) -> None:
    """Write figures as JSON, with when, how and on what they were measured."""
    report = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "cpu": cpu_name(),
        "load_average": os.getloadavg(),
        **figures,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
