"""`strap doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from strap.cli.options import Json, print_json
from strap.diagnosis import diagnose


@dataclass(frozen=True)
class Command:
    """Check what works on this machine, and show how to install the rest."""

    EXAMPLES: ClassVar = ("strap doctor",)
    json: Json = False
    """print the findings as JSON"""

    def run(self) -> int:
        """Check everything; return 2 if something that every command needs is broken."""
        checks = diagnose()
        if self.json:
            print_json({"checks": [asdict(check) for check in checks]})
        else:
            width = max(len(check.name) for check in checks)
            for check in checks:
                mark = "ok     " if check.works else ("BROKEN " if check.needed else "absent ")
                print(f"{mark}  {check.name.ljust(width)}  {check.detail}")
        return 0 if all(check.works or not check.needed for check in checks) else 2
