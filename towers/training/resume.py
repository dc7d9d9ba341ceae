"""Resume: where a run begins, from the first weights, a checkpoint or another graph."""

from typing import Optional, Union

from towers.base.output import write_line
from towers.placement.counters import get_examples_seen, get_global_step
from towers.training.cluster.worker import Worker
from towers.training.saving.checkpoints import Checkpoints, ChiefsCheckpoints
from towers.training.saving.history import History
from towers.training.saving.standing import Standing
from towers.training.settings.config import Config
from towers.training.settings.schedule import check_resume
from towers.training.stepping.steps import Steps
from towers.training_graph import TrainingGraph
from towers.warm_start.warm_start import WarmStart

Saved = Union[Checkpoints, ChiefsCheckpoints, None]


def build_checkpoints(config: Config, program: TrainingGraph, worker: Optional[Worker]) -> Saved:
  """Returns what saves a run and finds its newest checkpoint; None if it saves nothing."""
  if not config.checkpoint_dir:
    return None
  if worker and not worker.cluster.is_chief:
    return ChiefsCheckpoints()
  return Checkpoints(config.checkpoint_dir, keep=config.keep_checkpoints,
                     stop_on_full_disk=config.on_full_disk == 'stop', inputs=program.feed.inputs,
                     averages=program.averages)


def open_warm_start(program: TrainingGraph, checkpoints: Saved) -> Optional[WarmStart]:
  """Returns what starts the chief's variables, examined; None if there is a checkpoint to restore.
  """
  warm_start = program.warm_start
  if warm_start is None or program.workers.rank != 0:
    return None
  if checkpoints and not checkpoints.is_empty():
    write_line(f'initial weights: those of the checkpoint; {warm_start.settings.path} is not read')
    return None
  write_line(warm_start.open())
  return warm_start


def resume(steps: Steps, *, checkpoints: Saved, history: History, worker: Optional[Worker],
           total_steps: int, may_skip: bool, standing: Optional[Standing]) -> int:
  """Restores the newest checkpoint, on all workers; returns the steps that it had done, or 0.

  A run that already stands somewhere goes on from there.
  """
  session = steps.session
  if standing is not None:
    standing.restore(session)
    step = int(session.run(get_global_step()))
    history.parse(standing.history, step)
    steps.scale_learning_rate(history.rate_factor)
    return step
  path = checkpoints.restore(session) if checkpoints else None
  if worker:
    path = worker.share(path or '')[0]
  steps.broadcast()
  step, examples_seen = session.run([get_global_step(), get_examples_seen()])
  if not checkpoints or not path:
    return int(step)

  check_resume(path, step=int(step), examples_seen=int(examples_seen), plan=steps.program.plan,
               may_skip=may_skip)
  write_line(f'resumed from {path}: {step} of {total_steps} steps are done')
  if checkpoints.folder is not None:
    history.read(checkpoints.folder, int(step))
  else:
    checkpoints.write(checkpoints.take(session))  # What the chief has restored is saved.
  if worker:
    history.parse(worker.share(history.format())[0], int(step))
  steps.scale_learning_rate(history.rate_factor)
  return int(step)
