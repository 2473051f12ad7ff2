"""The nightly job: brings every Delta table to the last commit in the archive."""

import sys

from pgoutput_etl.jobs.apply.command import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.main())
