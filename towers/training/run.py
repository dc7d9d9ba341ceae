"""A run: a program in a session, from the first variable to the result."""

import contextlib
import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import towers
from tensorflow_v1 import tf
from towers.base.output import write_line
from towers.data import BadRecords
from towers.training.cluster.worker import Worker, facts_of_graph
from towers.training.faults.run_error import OutOfMemory
from towers.training.faults.signals import Signals
from towers.training.fitting import take_in_more
from towers.training.loop import LoopEnd, run_loop, watch_records
from towers.training.reporting.metric_samples import MetricSamples
from towers.training.reporting.metric_writer import MetricWriter
from towers.training.reporting.progress import Callback, Progress
from towers.training.saving.checkpoints import Checkpoints, ChiefsCheckpoints
from towers.training.saving.history import History
from towers.training.saving.standing import Standing, take_standing
from towers.training.settings.config import Config
from towers.training.settings.intervals import count_interval, parse_trace_steps
from towers.training.settings.schedule import Schedule, build_schedule, check_resume
from towers.training.stepping.failure import explain
from towers.training.stepping.shortage import has_changed_nothing
from towers.training.stepping.startup import Startup
from towers.training.stepping.steps import Steps
from towers.training.stepping.watchdog import Watchdog
from towers.training.tools.measure_input import advise
from towers.training_graph import TrainingGraph
from towers.warm_start.warm_start import WarmStart

_Saved = Union[Checkpoints, ChiefsCheckpoints, None]


def run_program(program: TrainingGraph, *, config: Config, settings: Mapping[str, Any],
                description: str, startup: Startup, signals: Signals,
                bad_records: Optional[BadRecords] = None, worker: Optional[Worker] = None,
                callbacks: Sequence[Callback] = (),
                rebuild: Optional[Callable[[int], TrainingGraph]] = None) -> Dict[str, Any]:
  """Runs a program from its newest checkpoint to its last step; returns the run's result.

  Where a step does not fit, it goes on from there in more micro-batches, in another graph.

  Args:
    program: built in the default graph.
    config: of the loop, its outputs and its session.
    settings: of program and run, by name, for summaries and the report.
    description: of the program, some lines.
    startup: entered; finished with the first step.
    signals: entered.
    bad_records: met in the data; None where there can be none.
    worker: this process among several workers, which have met; or None.
    callbacks: of the user.
    rebuild: builds the program in a number of micro-batches, in a graph of its own; None to end if
      a step does not fit.

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
    for callback in callbacks:
      closing.callback(callback.close)
    while True:
      try:
        with program.graph.as_default():
          result = _run(program, config=config, settings=settings, description=description,
                        startup=startup, signals=signals, bad_records=bad_records, worker=worker,
                        callbacks=callbacks, standing=standing, reached=reached,
                        may_shrink=rebuild is not None and worker is None)
        break
      except OutOfMemory as shortage:
        if rebuild is None:
          raise
        program = take_in_more(shortage, program, rebuild=rebuild, folder=config.checkpoint_dir,
                               worker=worker)
        standing, reached = shortage.standing, shortage.step
  for callback in callbacks:
    callback.finish(result)
  return result


def _run(program: TrainingGraph, *, config: Config, settings: Mapping[str, Any], description: str,
         startup: Startup, signals: Signals, bad_records: Optional[BadRecords],
         worker: Optional[Worker], callbacks: Sequence[Callback], standing: Optional[Standing],
         reached: int, may_shrink: bool) -> Dict[str, Any]:
  """Runs a program in a session of its own, from where it stands or from its newest checkpoint."""
  history = History(metric=config.best_metric, patience=config.early_stopping)
  if program.validation is not None:
    history.check_metric(program.validation.names)
  schedule = _build_schedule(config, program, worker)
  checkpoints = _build_checkpoints(config, program, worker)
  watchdog = Watchdog(limit_seconds=config.stall_seconds)
  if worker:
    _compare_graphs(worker, startup, watchdog)
  if config.keeps_curves:
    program.build_gradient_norm()
  warm_start = _open_warm_start(program, checkpoints)

  startup.begin('variables', 'starting the variables')
  opened = worker.open_session() if worker else tf.Session(config=towers.build_session_config(
      program.devices, needs_threads=program.needs_threads, **config.session_settings()))
  with watchdog, opened as session:
    steps = Steps(session, program)
    try:
      steps.start_variables()
      if warm_start:
        warm_start.start(session)
      step = _resume(steps, checkpoints=checkpoints, history=history, worker=worker,
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

      with watch_records(bad_records, progress), contextlib.ExitStack() as closing:
        closing.callback(progress.close)
        for callback in [
            *_build_callbacks(config, settings, description, steps=steps, first_step=step,
                              progress=progress, startup=startup, history=history)]:
          progress.callbacks.append(callback)
          closing.callback(callback.close)
        own_callbacks = list(progress.callbacks)
        progress.callbacks.extend(callbacks)
        if step < reached:
          for callback in callbacks:
            callback.rewind(step)
        steps.start(step)
        # Before, there is nothing to save, and a signal ends the process at once.
        signals.leave_to_run(progress.seconds_per_step)
        end = run_loop(steps, session=session, schedule=schedule, checkpoints=checkpoints,
                       progress=progress, history=history, signals=signals,
                       unwatched=watchdog.paused)
        if worker:
          worker.peers.stop()
      examples_seen = int(session.run(towers.get_examples_seen()))
      steps.activity = 'the end'
    except tf.errors.OpError as error:
      fault = (worker and worker.peers.explain(error)) or explain(error, steps)
      if may_shrink and isinstance(fault, OutOfMemory) and (
          steps.pass_began is not None or has_changed_nothing(error, steps)):
        fault.standing = take_standing(session, history, steps.pass_began)
      raise fault from None

  advice = advise(progress.input_wait or 0.0, input_threads=settings['input_threads'],
                  staging_depth=settings['staging_depth'],
                  is_image_folder=settings.get('data') == 'images',
                  needs_threads=program.feed.inputs.needs_threads)
  if advice:
    write_line(advice)
  result = _build_result(program, end, examples_seen, steps=steps, progress=progress,
                         startup=startup)
  for callback in own_callbacks:
    callback.finish(result)
  return result


def _build_schedule(config: Config, program: TrainingGraph, worker: Optional[Worker]) -> Schedule:
  schedule = build_schedule(
      program.plan, epochs=config.epochs, steps=config.steps, on_nan=config.on_nan,
      validate_every=config.validate_every, checkpoint_every=config.checkpoint_every)
  is_chief = worker is None or worker.cluster.is_chief
  return schedule if is_chief else schedule._replace(save_seconds=None)  # The chief's clock counts.


def _build_checkpoints(config: Config, program: TrainingGraph, worker: Optional[Worker]) -> _Saved:
  if not config.checkpoint_dir:
    return None
  if worker and not worker.cluster.is_chief:
    return ChiefsCheckpoints()
  return Checkpoints(config.checkpoint_dir, keep=config.keep_checkpoints,
                     stop_on_full_disk=config.on_full_disk == 'stop', inputs=program.feed.inputs,
                     averages=program.averages)


def _open_warm_start(program: TrainingGraph, checkpoints: _Saved) -> Optional[WarmStart]:
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


def _compare_graphs(worker: Worker, startup: Startup, watchdog: Watchdog) -> None:
  """Makes sure that all workers have built the same, before they take a step together."""
  startup.begin('workers\' graphs', 'waiting for the graphs of the other workers')
  worker.compare('graphs', facts_of_graph(tf.get_default_graph()),
                 'Something in the model or the data depends on the machine: see to it that all '
                 'workers build the same.')
  worker.peers.is_busy = watchdog.is_busy


def _resume(steps: Steps, *, checkpoints: _Saved, history: History, worker: Optional[Worker],
            total_steps: int, may_skip: bool, standing: Optional[Standing]) -> int:
  """Restores the newest checkpoint, on all workers; returns the steps that it had done, or 0.

  A run that already stands somewhere goes on from there.
  """
  session = steps.session
  if standing is not None:
    standing.restore(session)
    step = int(session.run(towers.get_global_step()))
    history.parse(standing.history, step)
    steps.scale_learning_rate(history.rate_factor)
    return step
  path = checkpoints.restore(session) if checkpoints else None
  if worker:
    path = worker.share(path or '')[0]
  steps.broadcast()
  step, examples_seen = session.run([towers.get_global_step(), towers.get_examples_seen()])
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


def _build_callbacks(config: Config, settings: Mapping[str, Any], description: str, *,
                     steps: Steps, first_step: int, progress: Progress, startup: Startup,
                     history: History) -> List[Callback]:
  """Returns what config asks to be kept of the steps: a timeline, and curves."""
  callbacks: List[Callback] = []
  program = steps.program
  if config.trace_steps:
    from towers.training.reporting.timeline import Timeline
    first, last = parse_trace_steps(config.trace_steps)
    callbacks.append(Timeline(config.trace_file, steps, first=first, last=last,
                              first_step=first_step, warn=progress.write))
  if config.keeps_curves:
    every = count_interval('summary_every', config.summary_every, program.plan.steps_per_epoch)
    metric_writers = _build_metric_writers(
        config, settings, description, first_step=first_step, notice=program.devices.notice,
        warn=progress.write, read_seconds=lambda: dict(startup.seconds, **progress.seconds()))
    callbacks.append(MetricSamples(
        steps, plan=program.plan, every=every, first_step=first_step,
        metric_writers=metric_writers, has_validated=history.has_validated))
  return callbacks


def _build_metric_writers(config: Config, settings: Mapping[str, Any], description: str, *,
                          first_step: int, notice: str, warn: Callable[[str], None],
                          read_seconds: Callable[[], Dict[str, float]]) -> List[MetricWriter]:
  """Returns the writers of a run's curves: for TensorBoard, and the report."""
  metric_writers: List[MetricWriter] = []
  if config.summary_dir:
    from towers.training.reporting.summaries import Summaries, format_settings, format_verbatim
    metric_writers.append(Summaries(
        config.summary_dir, first_step=first_step, graph=tf.get_default_graph(), warn=warn,
        texts=dict(configuration=format_settings(settings, defaults=dataclasses.asdict(Config())),
                   run=format_verbatim(description))))
  if config.report:
    from towers.training.reporting.report import Report, find_versions
    metric_writers.append(Report(
        config.report, settings=settings, first_step=first_step, description=description,
        versions=find_versions(), warnings=[notice] if notice else [],
        read_seconds=read_seconds, warn=warn))
  return metric_writers


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
