"""Whether a file is a bill of materials of CycloneDX, by the standard's own schema."""

import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = Path(sys.argv[1]).read_text(encoding="utf-8")
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
if error is not None:
    sys.exit(f"{sys.argv[1]}: {error}")
