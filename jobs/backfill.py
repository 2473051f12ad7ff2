"""Does tables again from the archive: whole, a range of commits, or beside as of a commit."""

import sys

from pgoutput_etl.jobs.backfill.command import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.main())
