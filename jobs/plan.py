"""Reports what the nightly job would do now; writes nothing."""

import sys

from pgoutput_etl.jobs.plan.command import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.main())
