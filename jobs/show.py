"""Prints rows of a Delta table."""

import sys

from pgoutput_etl.jobs.show.command import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.main())
