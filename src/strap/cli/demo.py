"""`strap demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strap.cli.progress import showing
from strap.cli.retrieve import summary
from strap.runs import RetrievalOptions, run_retrieval
from strap.synthetic import make_planted


@dataclass(frozen=True)
class Command:
    """The main job on generated data: datasets with planted matches, retrieved and checked."""

    out: Path = Path("demo")
    """the folder to work in"""

    def run(self) -> int:
        """Generate, retrieve, and compare with what was planted."""
        planted = make_planted(self.out / "data")
        options = RetrievalOptions(encoder="pixels", top_k=12)
        with showing() as progress:
            run = run_retrieval(
                planted.target,
                [planted.prior],
                self.out / "run",
                options,
                stores=self.out / "stores",
                progress=progress,
            )
        print(summary(run))
        best = {match.query: match.segment for match in run.matches if match.rank == 1}
        right = sum(best.get(plant.query) == plant.segment for plant in planted.plants)
        print(f"{right} of {len(planted.plants)} planted matches found first, borders exact")
        return 0 if right == len(planted.plants) else 1
