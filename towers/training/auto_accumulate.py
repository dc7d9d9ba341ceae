"""accumulate=auto: as many micro-batches as a step needs to fit, found by trying.

  1 micro-batch ─► out of memory ─► 2 ─► out of memory ─► 4 ─► …    same step, same global batch
                        └─► examples per tower that may fit, remembered beside the checkpoints

A graph of more micro-batches takes the same examples in the same steps, so a run goes on in it as
it resumes in any other shape. Several workers are inside of a collective while one runs out of
memory: it remembers the number and ends, and all start again.
"""

import os
from typing import Optional

from towers.base.json_files import recall, write_sealed
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.input.micro_batches import find_fitting
from towers.process.run_error import OutOfMemory, RunError, StartAgain
from towers.training_graph import TrainingGraph
from towers.workers.worker import Worker

# {"checksum": 1234567, "examples_per_tower": 512}, and not the number of micro-batches: a resumed
# run may have another number of towers or workers, and each of them then another share.
ROOM = 'memory.json'
_MOST = 'examples_per_tower'


def recall_accumulate(folder: Optional[str], *, batch_size: int, num_towers: int,
                      worker: Optional[Worker] = None) -> int:
  """Returns the micro-batches that a run begins with, the same for all workers, which all call it.

  The folder is that of checkpoints, the batch the global one, and the towers are this worker's.
  """
  most = recall_most(folder) if folder else None
  if worker is not None:
    known = worker.peers.share(most or 0)
    most = min(filter(None, known), default=None)
    num_towers *= len(known)
  if most is None:
    return 1
  accumulate = find_fitting(most, batch_size=batch_size, num_towers=num_towers)
  if worker is None or worker.cluster.is_chief:
    write_line(f'accumulate=auto: a tower has room for {most:,} examples, as {folder} remembers; a '
               f'step takes {_count(accumulate)}')
  return accumulate


def take_in_more(shortage: OutOfMemory, program: TrainingGraph, *, folder: Optional[str],
                 worker: Optional[Worker] = None) -> TrainingGraph:
  """Returns a program that does not fit in more micro-batches, and remembers how much may fit.

  It raises the shortage itself where more of them do not help, or there is nowhere to tell other
  workers; else a StartAgain where there are others.
  """
  accumulate = shortage.accumulate
  if accumulate is None or (worker and not folder):
    raise shortage
  most = program.plan._replace(accumulate=accumulate).num_rows
  is_remembered = folder is not None and remember_most(folder, most)
  if worker:
    if not is_remembered:
      raise shortage
    raise StartAgain(f'Out of memory {shortage.cause}. Start all workers again: they go on from '
                     f'the last checkpoint, in {_count(accumulate)} a step.')

  goes_on = 'goes on from there' if shortage.snapshot else 'goes on from the last checkpoint'
  write_line(f'out of memory {shortage.cause}; accumulate=auto {goes_on} in {_count(accumulate)} a '
             f'step, each of {most:,} examples per tower')
  try:
    return program.build_again(accumulate)
  except (UsageError, ValueError) as error:
    raise RunError(f'{shortage} accumulate=auto cannot take the step in {_count(accumulate)} here: '
                   f'{error}') from None


def recall_most(folder: str) -> Optional[int]:
  """Returns the most examples per tower of a micro-batch, or None; warns of a damaged file."""
  found = recall(os.path.join(folder, ROOM), {_MOST: int}, 'how much fits is found out anew')
  return (found[_MOST] or None) if found else None


def remember_most(folder: str, most: int) -> bool:
  """Remembers how many examples may fit; returns whether the folder could be written."""
  try:
    os.makedirs(folder, exist_ok=True)
    write_sealed(os.path.join(folder, ROOM), {_MOST: most})
  except OSError as error:
    write_line(f'WARNING: {folder} cannot remember how much fits: {error.strerror}')
    return False
  return True


def _count(accumulate):
  return f"{accumulate:,} micro-batch{'' if accumulate == 1 else 'es'}"
