"""Log records of stage processes, logged once by the parent, by whoever receives them."""

import logging

from stages.messages import LogLine


def log_line(line: LogLine) -> None:
    """Logs a stage's record under `omni.stage.<process>`; handlers and levels are the parent's own."""
    logging.getLogger(f"omni.stage.{line.process}").log(line.level, "%s", line.text)
