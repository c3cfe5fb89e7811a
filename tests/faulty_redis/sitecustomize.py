"""Python imports this at start when its folder is on PYTHONPATH."""

import faults  # type: ignore[import-not-found]

faults.install_from_environment()
