"""Runs chains of lives for some minutes, and prints a table of the faults.

  python -m tests.chaos --minutes=60 --seed=1
  python -m tests.chaos --seed=1 --chain=17       # One of them again.
  python -m tests.chaos --seed=1 --elastic        # Workers are lost and come back.

The seed draws shapes, faults, victims and moments; only what a fault meets depends on the machine.
Ends with 1 if something was lost.
"""

import argparse
import signal
import sys
import tempfile
import time
from typing import Callable

from tests.chaos.chain import Chains, draw_chain
from tests.chaos.disk import Disk
from tests.chaos.elastic import draw_plan, run_elastic
from tests.chaos.ledger import Ledger
from tests.chaos.team import Lost

_NUM_STEPS = 90
_MOST_LIVES = 6
_NUM_ELASTIC_STEPS = 250
_NUM_CHANGES = 5


def main() -> int:
  parser = argparse.ArgumentParser(prog='python -m tests.chaos',
                                   description=__doc__.splitlines()[0])
  parser.add_argument('--minutes', type=float, default=10, help='after which no chain starts')
  parser.add_argument('--seed', type=int, help='of all chains (default: the time)')
  parser.add_argument('--chain', type=int, help='only this one')
  parser.add_argument('--elastic', action='store_true',
                      help='runs under the launcher that lose workers and get them back')
  given = parser.parse_args()
  seed = int(time.time()) if given.seed is None else given.seed
  say(f'seed {seed}')
  # Ends by an exception, which ends the processes and unmounts the disk.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  with tempfile.TemporaryDirectory() as folder, Disk(folder) as disk:
    say('the disk is a file system of its own' if disk.is_mounted else
        'no file system can be mounted, so no disk is full')
    ledger = Ledger()
    chains = Chains(disk, num_steps=_NUM_ELASTIC_STEPS if given.elastic else _NUM_STEPS,
                    ledger=ledger, report=say)

    def run(index):
      if not given.elastic:
        chains.run(draw_chain(seed, index, most_lives=_MOST_LIVES))
        return
      expected = chains.expect(None)
      with disk.run_folder() as folder:
        run_elastic(draw_plan(seed, index, num_changes=_NUM_CHANGES), folder, expected=expected,
                    num_steps=_NUM_ELASTIC_STEPS, ledger=ledger, report=say)

    return 1 if run_many(given, seed, ledger, run) else 0


def run_many(given: argparse.Namespace, seed: int, ledger: Ledger,
             run: Callable[[int], None]) -> int:
  """Runs one after the other for some minutes, or the one that is given; returns how many lost."""
  started, count, lost = time.monotonic(), 0, 0
  while not count or given.chain is None and time.monotonic() - started < 60 * given.minutes:
    index = count if given.chain is None else given.chain
    try:
      run(index)
      ledger.survive()
    except Lost as error:
      ledger.lose()
      say(f'LOST: {error}\nagain: python -m tests.chaos --seed={seed} --chain={index}'
          f"{' --elastic' if given.elastic else ''}")
      lost += 1
    count += 1
  minutes = (time.monotonic() - started) / 60
  say(f'{ledger.format()}\n\n{count} chains in {minutes:.0f} minutes, {lost} lost')
  return lost


def say(text: str) -> None:
  print(text, flush=True)


if __name__ == '__main__':
  sys.exit(main())
