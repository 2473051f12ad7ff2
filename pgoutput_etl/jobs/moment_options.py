"""The options that name a moment."""

from __future__ import annotations

import argparse

from pgoutput_etl.answers.moment.request import Moment
from pgoutput_etl.jobs.command import argument
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.timestamps import parse_time


def add_moment(parser: argparse.ArgumentParser) -> None:
    moment = parser.add_mutually_exclusive_group()
    moment.add_argument(
        "--at",
        dest="moment",
        type=argument(_lsn_or_time),
        metavar="LSN|TIME",
        help="as of a commit, by its LSN, or by a time (ISO 8601, UTC unless it names a zone): the last one before it",
    )
    moment.add_argument(
        "--at-xid",
        dest="moment",
        type=argument(lambda text: Moment(xid=int(text))),
        metavar="XID",
        help="as of the commit of a transaction",
    )
    moment.add_argument(
        "--before-xid",
        dest="moment",
        type=argument(lambda text: Moment(xid=int(text), before=True)),
        metavar="XID",
        help="as of the commit before that of a transaction",
    )


def _lsn_or_time(text: str) -> Moment:
    return Moment(lsn=parse_lsn(text)) if "/" in text else Moment(time=parse_time(text))
