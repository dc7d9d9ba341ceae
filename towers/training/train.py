"""Train: a whole training of a program, as `main.py` does it."""

import dataclasses
import os
import sys
import time
from typing import Any, Dict, Iterable, Optional

from towers.base.output import quieted, write_line
from towers.base.usage_error import UsageError
from towers.placement.cluster import read_cluster
from towers.process.signals import Signals
from towers.process.startup import Startup
from towers.settings.arguments import with_known_names
from towers.settings.config import RunSettings
from towers.training.callbacks import AnyCallback, read_callbacks
from towers.training.outputs import lock_outputs
from towers.training.run import Run
from towers.training_graph import TrainingGraph
from towers.workers.worker import find_started


@with_known_names('run')
def train(program: TrainingGraph, *, epochs: Optional[float] = None, steps: Optional[int] = None,
          validate_every: str = '1epoch', checkpoint_dir: Optional[str] = None,
          checkpoint_every: str = '1epoch', keep_checkpoints: int = 5, new_data: bool = False,
          best_metric: str = 'loss', early_stopping: Optional[int] = None,
          on_full_disk: str = 'warn', on_nan: str = 'stop', max_seconds: Optional[float] = None,
          stall_seconds: float = 300.0, quiet: bool = False, summary_dir: Optional[str] = None,
          report: Optional[str] = None, summary_every: str = '0.1epochs',
          trace_steps: Optional[str] = None, trace_file: str = 'trace.json',
          result_file: Optional[str] = None, graph_rewriter: str = 'auto',
          inter_threads: Optional[int] = None, intra_threads: Optional[int] = None,
          start_seconds: float = 300.0, worker_seconds: float = 20.0,
          callbacks: Iterable[AnyCallback] = ()) -> Dict[str, Any]:
  """Trains a program to its last step: resumes, validates, saves, guards and reports.

  The arguments are flags of `main.py` too. With TF_CONFIG set, this process is a worker of several,
  or the evaluator.

  Args:
    program: a `towers.Program`.
    epochs, steps: passes over the training examples, or weight updates; 5 epochs if both are None.
    validate_every, checkpoint_every: as '500steps' or '2epochs'; checkpoints also as '600seconds'.
    checkpoint_dir: folder to save to, and to resume from when it has a checkpoint.
    keep_checkpoints: newest checkpoints to keep, besides the best one.
    new_data: whether a checkpoint of other training data is taken; an epoch of the new data begins.
    best_metric: of validation, as 'accuracy' or 'rmse'; where the name does not say whether the
      smallest is the best, with the direction, as 'min:distance'.
    early_stopping: validations in a row without a new best, after which the run stops.
    on_full_disk: 'warn' or 'stop' when a checkpoint cannot be written.
    on_nan: 'stop' or 'skip' when the loss or a gradient is not finite.
    max_seconds: in which the run validates, saves and ends, to go on when it is started again.
    stall_seconds: without any progress, after which the run ends and says why.
    quiet: whether to write warnings alone, the lines that begin with WARNING.
    summary_dir, summary_every: folder for TensorBoard, and between two points of its curves.
    report, result_file: page of HTML to write; file for the result, as JSON.
    trace_steps, trace_file: steps whose every op is traced, as '10:12', and where to.
    graph_rewriter, inter_threads, intra_threads: see `build_session_config`.
    start_seconds, worker_seconds: to wait for all workers, and for one that is silent.
    callbacks: each a `towers.Callback`, or a function of the step and the loss. An exception in one
      ends the run once the step is saved.

  Returns:
    The result, by name, as `--result_file` has it; {} for an evaluator.

  Raises:
    UsageError: settings that do not fit, or checkpoints of another program.
    RunError: the run cannot go on.
    Interrupted: a signal ended it, after it had saved.
  """
  settings = RunSettings.of(locals())
  _check(program, settings)
  callbacks, cluster = read_callbacks(callbacks), read_cluster(os.environ)
  own, told = settings.for_worker(cluster), {**program.settings, **dataclasses.asdict(settings)}
  with quieted(quiet), lock_outputs(own, cluster, listens=find_started(cluster) is None), \
      Signals() as signals, Startup(time.monotonic()) as startup, program.graph.as_default():
    if program.sessions:
      write_line('WARNING: towers.train trains weights of its own: those of the open session stay, '
                 f'at step {program.sessions[-1].step}. To train these, write session.train(), or '
                 'session.save(folder) and give checkpoint_dir=folder.', sys.stderr)
    elif quiet and cluster.is_chief and not (checkpoint_dir or result_file or callbacks):
      write_line('WARNING: no checkpoint_dir: the weights are gone when the run ends', sys.stderr)
    run = Run(own, told, startup, signals, callbacks=callbacks)
    with run.joined(program.given, program.devices,
                    (program.train_examples, program.validation_examples)) as accumulate:
      return run.train(program.build_again(accumulate))


def _check(program, settings):
  """Refuses what is no program, and settings that its run cannot have."""
  if not isinstance(program, TrainingGraph):
    raise UsageError(f'towers.train takes a program, and got {program!r}: write '
                     'towers.train(towers.Program(model, train=…, batch_size=…, optimizer=…)).')
  if settings.on_nan == 'rollback':
    raise UsageError('on_nan=rollback lowers the learning rate, which only a program of '
                     'main.py lets it: use on_nan=skip or stop.')
  if settings.early_stopping is not None and program.validation is None:
    raise UsageError(f'early_stopping={settings.early_stopping} needs validation: give '
                     'towers.Program the argument validation.')
