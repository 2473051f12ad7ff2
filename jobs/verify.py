"""Checks that Delta and PostgreSQL hold the same rows; writes nothing."""

import sys

from pgoutput_etl.jobs.verify.command import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.main())
