"""Train: a whole training of a program, as `main.py` does it."""

import os
import time
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Sequence, Union

from towers.arguments import with_known_names
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.data import Examples
from towers.input.micro_batches import AUTO
from towers.placement.cluster import read_cluster
from towers.placement.devices import Devices
from towers.placement.variables import choose_placement
from towers.settings import common_to_workers
from towers.training.callbacks import read_callbacks
from towers.training.claim import claim
from towers.training.cluster.worker import has_started, join_workers
from towers.training.faults.signals import Signals
from towers.training.fitting import recall_accumulate
from towers.training.reporting.describe import describe_run
from towers.training.reporting.progress import Callback
from towers.training.reporting.result import format_result, write_result
from towers.training.run import Request, Run
from towers.training.settings.config import Config
from towers.training.stepping.startup import Startup
from towers.training_graph import TrainingGraph


@with_known_names('run')
def train(program: TrainingGraph, *, epochs: Optional[float] = None, steps: Optional[int] = None,
          validate_every: str = '1epoch', checkpoint_dir: Optional[str] = None,
          checkpoint_every: str = '1epoch', keep_checkpoints: int = 5, new_data: bool = False,
          best_metric: str = 'loss', early_stopping: Optional[int] = None,
          on_full_disk: str = 'warn', on_nan: str = 'stop', max_seconds: Optional[float] = None,
          stall_seconds: float = 300.0, quiet: bool = False,
          summary_dir: Optional[str] = None, report: Optional[str] = None,
          summary_every: str = '0.1epochs', trace_steps: Optional[str] = None,
          trace_file: str = 'trace.json',
          result_file: Optional[str] = None, graph_rewriter: str = 'auto',
          inter_threads: Optional[int] = None, intra_threads: Optional[int] = None,
          start_seconds: float = 300.0, worker_seconds: float = 20.0,
          callbacks: Iterable[Union[Callback, Callable[[int, float], Any]]] = ()
          ) -> Dict[str, Any]:
  """Trains a program to its last step: resumes, validates, saves, guards and reports.

  The arguments are the flags of `main.py` of the same names and defaults. With TF_CONFIG set, this
  process is one of several workers, or the evaluator.

  Args:
    program: a `towers.Program`.
    epochs, steps: passes over the training examples, or weight updates; 5 epochs if both are None.
    validate_every, checkpoint_every: as '500steps' or '2epochs'; checkpoints also as '600seconds'.
    checkpoint_dir: folder to save to, and to resume from when it has a checkpoint.
    keep_checkpoints: newest checkpoints to keep, besides the best one.
    new_data: whether a checkpoint of other training data is taken; an epoch of the new data begins.
    best_metric: of validation; the best is the largest, or the smallest of a loss or error.
    early_stopping: validations in a row without a new best one, after which the run stops.
    on_full_disk: 'warn' or 'stop' when a checkpoint cannot be written.
    on_nan: 'stop' or 'skip' when the loss or a gradient is not finite.
    max_seconds: in which the run validates, saves and ends, to go on when it is started again.
    stall_seconds: without any progress, after which the run ends and says why.
    quiet: whether to leave out the progress line.
    summary_dir, summary_every: folder for TensorBoard, and between two points of its curves.
    report, result_file: page of HTML to write; file for the result, as JSON.
    trace_steps, trace_file: steps whose every op is traced, as '10:12', and where to.
    graph_rewriter, inter_threads, intra_threads: see `build_session_config`.
    start_seconds, worker_seconds: to wait for all workers, and for one that is silent.
    callbacks: `towers.Callback` objects, or functions of the step and the loss, run after each
      step. An exception in one ends the run once the step is saved.

  Returns:
    The result, by name, as `--result_file` has it; {} for an evaluator.

  Raises:
    UsageError: settings that do not fit, or checkpoints of another program.
    RunError: the run cannot go on.
    Interrupted: SIGTERM or Ctrl-C ended it, after it had saved.
  """
  return _train(program, callbacks, dict(
      epochs=epochs, steps=steps, validate_every=validate_every, checkpoint_dir=checkpoint_dir,
      checkpoint_every=checkpoint_every, keep_checkpoints=keep_checkpoints, new_data=new_data,
      best_metric=best_metric, early_stopping=early_stopping, on_full_disk=on_full_disk,
      on_nan=on_nan, max_seconds=max_seconds, stall_seconds=stall_seconds, quiet=quiet,
      summary_dir=summary_dir, report=report, summary_every=summary_every,
      trace_steps=trace_steps, trace_file=trace_file, result_file=result_file,
      graph_rewriter=graph_rewriter, inter_threads=inter_threads, intra_threads=intra_threads,
      start_seconds=start_seconds, worker_seconds=worker_seconds))


def _train(program, callbacks, own):
  """Trains a program with `own` settings of the run."""
  if not isinstance(program, TrainingGraph):
    raise UsageError(f'towers.train takes a program, and got {program!r}: write '
                     'towers.train(towers.Program(model, train=…, batch_size=…, optimizer=…)).')
  if own['on_nan'] == 'rollback':
    raise UsageError('on_nan=rollback lowers the learning rate, which only a program of '
                     'main.py lets it: use on_nan=skip or stop.')
  if own['early_stopping'] is not None and program.validation is None:
    raise UsageError(f"early_stopping={own['early_stopping']} needs validation: give "
                     'towers.Program the argument validation.')
  callbacks, cluster = read_callbacks(callbacks), read_cluster(os.environ)
  config = Config(**own).for_worker(cluster)

  def build(accumulate):
    is_built = accumulate == program.plan.accumulate
    return program if is_built else program.build_again(accumulate)

  with claim(config, cluster, listens=not has_started(cluster)), Signals() as signals, \
      Startup(time.monotonic()) as startup, program.graph.as_default():
    request = Request(config, {**program.settings, **own}, startup, signals, callbacks=callbacks)
    return train_configured(
        build, request, devices=program.devices, num_towers=program.plan.num_towers,
        splits=(program.train_examples, program.validation_examples))


def train_configured(build: Callable[[int], TrainingGraph], request: Request, *, devices: Devices,
                     num_towers: int, splits: Sequence[Optional[Examples]],
                     described: Optional[Mapping[str, str]] = None) -> Dict[str, Any]:
  """Trains a program as the worker that this process is, or follows as the evaluator.

  Args:
    build: returns the program in a number of micro-batches.
    request: what is asked of the run.
    devices: of this worker's towers.
    num_towers: that train, of these.
    splits: the data: training, validation.
    described: what `describe_run` is to say besides.

  Returns:
    As `train`.
  """
  cluster = read_cluster(os.environ)
  config, settings, startup = request.config, request.settings, request.startup
  with join_workers(
      cluster, dict(common_to_workers(settings), towers=len(devices.names),
                    variables=choose_placement(settings['variables'], devices.names).kind,
                    training_data=splits[0], validation_data=splits[1]),
      session_settings=dict(config.session_settings(), devices=devices,
                            collective=settings['collective'], precision=settings['precision']),
      startup=startup, start_seconds=config.start_seconds,
      worker_seconds=config.worker_seconds) as worker:
    accumulate = settings['accumulate']
    is_auto = accumulate == AUTO
    if is_auto:
      accumulate = recall_accumulate(
          config.checkpoint_dir, batch_size=settings['batch_size'], worker=worker,
          num_towers=num_towers)
    program = build(accumulate)
    if cluster.is_evaluator:
      from towers.training.evaluator import evaluate
      evaluate(program, config, startup=startup, signals=request.signals)
      return {}
    with program.graph.as_default():
      description = describe_run(program, **(described or {}))
    write_line(description if cluster.is_chief else
               f'{cluster.describe(cluster.rank)} of {cluster.num_workers}; '
               f'{cluster.describe(0)} prints the rest')
    if cluster.is_chief and not config.checkpoint_dir:
      write_line('no checkpoint_dir: the weights are gone when the run ends')
    run = Run(program, request, description=description, worker=worker)
    result = run.train(build if is_auto else None)
  if config.result_file:
    write_result(config.result_file, result)
  if cluster.is_chief:  # The other workers have printed what is theirs.
    write_line(format_result(result, time.monotonic() - startup.started))
  return result
