"""Runs chains of lives for some minutes, and prints a table of the faults.

  python -m tests.chaos --minutes=60 --seed=1
  python -m tests.chaos --seed=1 --chain=17       # One of them again.

The seed draws shapes, faults, victims and moments; only what a fault meets depends on the machine.
Ends with 1 if something was lost.
"""

import argparse
import signal
import sys
import tempfile
import time

from tests.chaos.chain import Chains, draw_chain
from tests.chaos.disk import Disk
from tests.chaos.ledger import Ledger

_NUM_STEPS = 90
_MOST_LIVES = 6


def main() -> int:
  """Runs a command line; returns the exit code."""
  parser = argparse.ArgumentParser(prog='python -m tests.chaos',
                                   description=__doc__.splitlines()[0])
  parser.add_argument('--minutes', type=float, default=10, help='after which no chain starts')
  parser.add_argument('--seed', type=int, help='of all chains (default: the time)')
  parser.add_argument('--chain', type=int, help='only this one')
  given = parser.parse_args()
  seed = int(time.time()) if given.seed is None else given.seed
  say(f'seed {seed}')
  ledger = Ledger()
  chains = lost = 0
  started = time.monotonic()
  # Ends by an exception, which ends the processes and unmounts the disk.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  with tempfile.TemporaryDirectory() as folder, Disk(folder) as disk:
    say('the disk is a file system of its own' if disk.is_mounted else
        'no file system can be mounted: a limit of the size of files stands in for a full disk')
    runs = Chains(disk, num_steps=_NUM_STEPS, ledger=ledger, report=say)
    while not chains or given.chain is None and time.monotonic() - started < 60 * given.minutes:
      index = chains if given.chain is None else given.chain
      if not runs.run(draw_chain(seed, index, most_lives=_MOST_LIVES)):
        say(f'again: python -m tests.chaos --seed={seed} --chain={index}')
        lost += 1
      chains += 1
  minutes = (time.monotonic() - started) / 60
  say(f'{ledger.format()}\n\n{chains} chains in {minutes:.0f} minutes, {lost} lost')
  return 1 if lost else 0


def say(text: str) -> None:
  """Prints at once."""
  print(text, flush=True)


if __name__ == '__main__':
  sys.exit(main())
