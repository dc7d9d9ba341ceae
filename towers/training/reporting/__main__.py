"""Compares the reports of several runs, from the command line."""

import sys

from towers.training.reporting.report import main

if __name__ == '__main__':
  sys.exit(main())
