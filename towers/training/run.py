"""A run: a program in a session, from the first variable to the result."""

import contextlib
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence

from tensorflow_v1 import tf
from towers.base.output import write_line
from towers.data import BadRecords
from towers.placement.counters import get_examples_seen
from towers.placement.devices import build_session_config
from towers.training.cluster.worker import Worker, facts_of_graph
from towers.training.faults.run_error import OutOfMemory
from towers.training.faults.signals import Signals
from towers.training.fitting import take_in_more
from towers.training.loop import LoopEnd, run_loop, watch_records
from towers.training.reporting.kept import build_callbacks
from towers.training.reporting.progress import Callback, Progress
from towers.training.resume import build_checkpoints, open_warm_start, resume
from towers.training.saving.history import History
from towers.training.saving.standing import Standing, take_standing
from towers.training.settings.config import Config
from towers.training.settings.schedule import Schedule, build_schedule
from towers.training.stepping.failure import explain
from towers.training.stepping.shortage import has_changed_nothing
from towers.training.stepping.startup import Startup
from towers.training.stepping.steps import Steps
from towers.training.stepping.watchdog import Watchdog
from towers.training.tools.measure_input import advise
from towers.training_graph import TrainingGraph


class Run(NamedTuple):
  """What stays the same in a run, also where it goes on in another graph.

  Attributes:
    config: of the loop, its outputs and its session.
    settings: of program and run, by name, for summaries and the report.
    description: of the program, some lines.
    startup: entered; finished with the first step.
    signals: entered.
    bad_records: met in the data; None where there can be none.
    worker: this process among several workers, which have met; or None.
    callbacks: of the user.
  """
  config: Config
  settings: Mapping[str, Any]
  description: str
  startup: Startup
  signals: Signals
  bad_records: Optional[BadRecords] = None
  worker: Optional[Worker] = None
  callbacks: Sequence[Callback] = ()

  def train(self, program: TrainingGraph,
            rebuild: Optional[Callable[[int], TrainingGraph]] = None) -> Dict[str, Any]:
    """Runs a program from its newest checkpoint to its last step; returns the run's result.

    Where a step does not fit, it goes on from there in more micro-batches, in another graph.

    Args:
      program: built.
      rebuild: builds the program in a number of micro-batches, in a graph of its own; None to end
        if a step does not fit.

    Returns:
      What `--result_file` holds, by name.

    Raises:
      UsageError: checkpoints of another program, or settings that do not fit it.
      RunError: the run cannot go on.
      Interrupted: a signal ended it.
    """
    standing: Optional[Standing] = None
    reached = 0
    with contextlib.ExitStack() as closing:
      for callback in self.callbacks:
        closing.callback(callback.close)
      while True:
        try:
          with program.graph.as_default():
            result = self._train_in_session(
                program, standing=standing, reached=reached,
                may_shrink=rebuild is not None and self.worker is None)
          break
        except OutOfMemory as shortage:
          if rebuild is None:
            raise
          program = take_in_more(shortage, program, rebuild=rebuild,
                                 folder=self.config.checkpoint_dir, worker=self.worker)
          standing, reached = shortage.standing, shortage.step
    for callback in self.callbacks:
      callback.finish(result)
    return result

  def _train_in_session(self, program: TrainingGraph, *, standing: Optional[Standing],
                        reached: int, may_shrink: bool) -> Dict[str, Any]:
    """Trains from where the run stands, or from its newest checkpoint.

    Args:
      program: in the default graph.
      standing: between two steps of a former graph; or None.
      reached: the steps that were done there; what comes before is taken again.
      may_shrink: whether an OutOfMemory is to tell where the run stands.
    """
    config, worker, startup = self.config, self.worker, self.startup
    history = History(metric=config.best_metric, patience=config.early_stopping)
    if program.validation is not None:
      history.check_metric(program.validation.names)
    schedule = _build_schedule(config, program, worker)
    checkpoints = build_checkpoints(config, program, worker)
    watchdog = Watchdog(limit_seconds=config.stall_seconds)
    if worker:
      _compare_graphs(worker, startup, watchdog)
    if config.keeps_curves:
      program.build_gradient_norm()
    warm_start = open_warm_start(program, checkpoints)

    startup.begin('variables', 'starting the variables')
    opened = worker.open_session() if worker else tf.Session(config=build_session_config(
        program.devices, needs_threads=program.needs_threads, **config.session_settings()))
    with watchdog, opened as session:
      steps = Steps(session, program)
      try:
        steps.start_variables()
        if warm_start:
          warm_start.start(session)
        step = resume(
            steps, checkpoints=checkpoints, history=history, worker=worker,
            total_steps=schedule.total_steps, standing=standing,
            may_skip=config.on_bad_record == 'skip' or program.train_examples.marks_bad)
        startup.begin('first step', 'running the first step')
        watchdog.watch(steps)
        startup.limit(None)
        progress = Progress(
            total_steps=schedule.total_steps, first_step=step, plan=program.plan,
            learning_rate=steps.learning_rate, on_first_step=startup.finish,
            input_wait_seconds=lambda: steps.input_wait_seconds, is_quiet=config.quiet)
        if checkpoints:
          checkpoints.warn = progress.write

        with watch_records(self.bad_records, progress), contextlib.ExitStack() as closing:
          closing.callback(progress.close)
          own_callbacks = build_callbacks(
              config, self.settings, self.description, steps=steps, first_step=step,
              progress=progress, startup=startup, history=history)
          for callback in own_callbacks:
            closing.callback(callback.close)
          progress.callbacks.extend([*own_callbacks, *self.callbacks])
          if step < reached:
            for callback in self.callbacks:
              callback.rewind(step)
          steps.start(step)
          # Before, there is nothing to save, and a signal ends the process at once.
          self.signals.leave_to_run(progress.seconds_per_step)
          end = run_loop(steps, session=session, schedule=schedule, checkpoints=checkpoints,
                         progress=progress, history=history, signals=self.signals,
                         unwatched=watchdog.paused)
          if worker:
            worker.peers.stop()
        examples_seen = int(session.run(get_examples_seen()))
        steps.activity = 'the end'
      except tf.errors.OpError as error:
        fault = (worker and worker.peers.explain(error)) or explain(error, steps)
        if may_shrink and isinstance(fault, OutOfMemory) and (
            steps.pass_began is not None or has_changed_nothing(error, steps)):
          fault.standing = take_standing(session, history, steps.pass_began)
          # A signal while the graph is built again leaves no time to save.
          with watchdog.paused():
            _save_last_step(checkpoints, session, history, steps.pass_began)
        raise fault from None

    advice = advise(progress.input_wait or 0.0, input_threads=self.settings['input_threads'],
                    staging_depth=self.settings['staging_depth'],
                    is_image_folder=self.settings.get('data') == 'images',
                    needs_threads=program.feed.inputs.needs_threads)
    if advice:
      write_line(advice)
    result = _build_result(program, end, examples_seen, steps=steps, progress=progress,
                           startup=startup)
    for callback in own_callbacks:
      callback.finish(result)
    return result


def _save_last_step(checkpoints, session, history, snapshot):
  """Saves the step that a run goes on from, if any is done and it is not saved yet."""
  if checkpoints is not None:
    snapshot = snapshot or checkpoints.take(session)
    if snapshot.step and not checkpoints.has_saved(snapshot.step):
      checkpoints.write(snapshot, history)
    checkpoints.close()


def _build_schedule(config: Config, program: TrainingGraph, worker: Optional[Worker]) -> Schedule:
  schedule = build_schedule(
      program.plan, epochs=config.epochs, steps=config.steps, on_nan=config.on_nan,
      validate_every=config.validate_every, checkpoint_every=config.checkpoint_every)
  is_chief = worker is None or worker.cluster.is_chief
  return schedule if is_chief else schedule._replace(save_seconds=None)  # The chief's clock counts.


def _compare_graphs(worker: Worker, startup: Startup, watchdog: Watchdog) -> None:
  """Makes sure that all workers have built the same, before they take a step together."""
  startup.begin('workers\' graphs', 'waiting for the graphs of the other workers')
  worker.compare('graphs', facts_of_graph(tf.get_default_graph()),
                 'Something in the model or the data depends on the machine: see to it that all '
                 'workers build the same.')
  worker.peers.is_busy = watchdog.is_busy


def _build_result(program: TrainingGraph, end: LoopEnd, examples_seen: int, *, steps: Steps,
                  progress: Progress, startup: Startup) -> Dict[str, Any]:
  return dict(
      global_step=int(end.step), examples_seen=examples_seen, num_towers=len(program.towers),
      global_batch_size=program.plan.batch_size, train_loss=end.train_loss,
      **{f'validation_{name}': end.validation.get(name)
         for name in dict.fromkeys(['loss', 'accuracy', *end.validation])},
      validation_examples=end.validation_examples,
      examples_per_second=progress.examples_per_second, input_wait=progress.input_wait,
      first_losses=steps.first_losses,
      all_reduce_bytes=program.gradients.all_reduce and program.gradients.all_reduce.num_bytes,
      setup_seconds=progress.first_step_at and progress.first_step_at - startup.started,
      tensorflow_version=tf.__version__)
