"""Writes the five dashboards as JSON into the directory that is the only argument.

`dashboards/build` runs it with Grafana's SDK. The JSON is committed: change the Python, run
`dashboards/build`, and read the diff.
"""

import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

import admission
import benchmarks
import fabric
import job
import placement

DASHBOARDS = {
    "fabric": fabric,
    "job": job,
    "placement": placement,
    "admission": admission,
    "benchmarks": benchmarks,
}


def main(directory: Path) -> None:
    for name, module in DASHBOARDS.items():
        text = JSONEncoder(sort_keys=True, indent=2).encode(module.dashboard())
        (directory / f"{name}.json").write_text(text + "\n")


main(Path(sys.argv[1]))
