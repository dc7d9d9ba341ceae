"""A run: a program in a session, from the first variable to the result."""

import contextlib
import dataclasses
from typing import Any, Callable, Dict, List, Optional, Union

import towers
from tensorflow_v1 import tf
from towers.data import BadRecords
from towers.training.cluster.worker import Worker, facts_of_graph
from towers.training.faults.signals import Signals
from towers.training.loop import run_loop, watch_records
from towers.training.reporting.metric_samples import MetricSamples
from towers.training.reporting.metric_writer import MetricWriter
from towers.training.reporting.progress import Progress
from towers.training.saving.checkpoints import Checkpoints, ChiefsCheckpoints
from towers.training.saving.history import History
from towers.training.settings.config import Config
from towers.training.settings.intervals import count_interval, parse_trace_steps
from towers.training.settings.schedule import build_schedule, check_resume
from towers.training.stepping.failure import explain
from towers.training.stepping.startup import Startup
from towers.training.stepping.steps import Steps
from towers.training.stepping.watchdog import Watchdog
from towers.training.tools.measure_input import advise
from towers.training_graph import TrainingGraph


def run_program(program: TrainingGraph, *, config: Config, description: str,
                bad_records: Optional[BadRecords], devices: towers.Devices, startup: Startup,
                signals: Signals, worker: Optional[Worker] = None) -> Dict[str, Any]:
  """Runs a program from where its checkpoints end to its last step; returns what `--result_file`
  holds.

  Args:
    program: built in the default graph.
    config: that it was built from.
    description: of the run, some lines.
    bad_records: what was found damaged in the data, or None where nothing can be.
    devices: that it stands on.
    startup: entered; finished with the first step.
    signals: entered.
    worker: this process among several workers, which have met; or None.

  Raises:
    UsageError: checkpoints of another program, or settings that do not fit it.
    RunError: the run cannot go on.
    Interrupted: a signal ended it.
  """
  history = History(metric=config.best_metric, patience=config.early_stopping)
  if program.validation is not None:
    history.check_metric(program.validation.names)
  is_chief = worker is None or worker.cluster.is_chief
  checkpoints: Union[Checkpoints, ChiefsCheckpoints, None] = None
  if config.checkpoint_dir and not is_chief:
    checkpoints = ChiefsCheckpoints()
  elif config.checkpoint_dir:
    checkpoints = Checkpoints(config.checkpoint_dir, keep=config.keep_checkpoints,
                              stop_on_full_disk=config.on_full_disk == 'stop')
  plan = program.plan
  schedule = build_schedule(
      plan, epochs=config.epochs, steps=config.steps, validate_every=config.validate_every,
      checkpoint_every=config.checkpoint_every, on_nan=config.on_nan)
  if not is_chief:
    schedule = schedule._replace(save_seconds=None)  # The chief's clock counts.
  session_config = worker.session_config if worker else towers.build_session_config(
      devices, needs_threads=program.needs_threads, **config.session_settings())
  watchdog = Watchdog(limit_seconds=config.stall_seconds)
  if worker:
    startup.begin('workers\' graphs', 'waiting for the graphs of the other workers')
    worker.compare('graphs', facts_of_graph(tf.get_default_graph()),
        'Something in the model or the data depends on '
                   'the machine: see to it that all workers build the same.')
    worker.peers.is_busy = watchdog.is_busy
  startup.begin('variables', 'starting the variables')
  with watchdog, tf.Session(worker.target if worker else '', config=session_config) as session:
    steps = Steps(session, program)
    try:
      steps.start_variables()
      path = checkpoints.restore(session) if checkpoints else None
      if worker:
        path = worker.share(path or '')[0]
      steps.broadcast()
      step, examples_seen = map(int,
                                session.run([towers.get_global_step(),
                                             towers.get_examples_seen()]))
      if checkpoints and path:
        check_resume(path, step=step, examples_seen=examples_seen, plan=plan,
                     may_skip=config.on_bad_record == 'skip')
        print(f'resumed from {path}: {step} of {schedule.total_steps} steps are done')
        if checkpoints.folder is not None:
          history.read(checkpoints.folder, step)
        else:
          checkpoints.write(checkpoints.take(session))  # What the chief has restored is saved.
        if worker:
          history.parse(worker.share(history.format())[0], step)
        steps.scale_learning_rate(history.rate_factor)
      startup.begin('first step', 'running the first step')
      watchdog.watch(steps)
      progress = Progress(total_steps=schedule.total_steps, first_step=step, plan=plan,
                          learning_rate=steps.learning_rate, on_first_step=startup.finish,
                          input_wait_seconds=lambda: steps.input_wait_seconds,
                          is_quiet=config.quiet)
      if checkpoints:
        checkpoints.warn = progress.write
      with watch_records(bad_records, progress), contextlib.ExitStack() as closing:
        closing.callback(progress.close)
        if config.trace_steps:
          from towers.training.reporting.timeline import Timeline
          first, last = parse_trace_steps(config.trace_steps)
          timeline = Timeline(config.trace_file, steps, first=first, last=last, first_step=step,
                              warn=progress.write)
          progress.callbacks.append(timeline)
          closing.callback(timeline.close)
        if config.keeps_curves:
          metric_writers = build_metric_writers(
              config, first_step=step, description=description, notice=devices.notice,
              warn=progress.write, read_seconds=lambda: dict(startup.seconds, **progress.seconds()))
          samples = MetricSamples(
              steps, plan=plan, every=count_interval('summary_every', config.summary_every,
                                                     plan.steps_per_epoch), first_step=step,
              metric_writers=metric_writers, has_validated=history.has_validated)
          progress.callbacks.append(samples)
          closing.callback(samples.close)
        steps.start(step)
        # Before, there is nothing to save, and a signal ends the process at once.
        signals.leave_to_run(progress.seconds_per_step)
        outcome = run_loop(steps, session=session, schedule=schedule, checkpoints=checkpoints,
                           progress=progress, history=history, signals=signals,
                           unwatched=watchdog.paused)
        if worker:
          worker.peers.stop()
      examples_seen = session.run(towers.get_examples_seen())
      steps.activity = 'the end'
    except tf.errors.OpError as error:
      raise (worker and worker.peers.explain(error)) or explain(error, steps) from None
  advice = advise(progress.input_wait or 0.0, input_threads=config.input_threads,
                  staging_depth=config.staging_depth, is_image_folder=config.data == 'images',
                  needs_threads=program.feed.inputs.needs_threads)
  if advice:
    print(advice)

  result = dict(global_step=int(outcome.step), examples_seen=int(examples_seen),
                num_towers=len(program.towers), global_batch_size=config.batch_size,
                train_loss=outcome.train_loss, validation_loss=outcome.validation.get('loss'),
                validation_accuracy=outcome.validation.get('accuracy'),
                validation_examples=outcome.validation_examples,
                examples_per_second=progress.examples_per_second, input_wait=progress.input_wait,
                first_losses=steps.first_losses, setup_seconds=progress.first_step_at and
                progress.first_step_at - startup.started, tensorflow_version=tf.__version__)
  if config.keeps_curves:
    samples.finish(result)
  return result


def build_metric_writers(config: Config, *, first_step: int, description: str, notice: str,
                         warn: Callable[[str], None],
                         read_seconds: Callable[[], Dict[str, float]]) -> List[MetricWriter]:
  """Returns who keeps a run's curves."""
  metric_writers: List[MetricWriter] = []
  settings = dataclasses.asdict(config)
  if config.summary_dir:
    from towers.training.reporting.summaries import Summaries, format_settings, format_verbatim
    metric_writers.append(Summaries(
        config.summary_dir, first_step=first_step, graph=tf.get_default_graph(), warn=warn,
        texts=dict(configuration=format_settings(settings, defaults=dataclasses.asdict(Config())),
                   run=format_verbatim(description))))
  if config.report:
    from towers.training.reporting.report import Report, find_versions
    metric_writers.append(
        Report(config.report, settings=settings, first_step=first_step, description=description,
               versions=find_versions(), warnings=[notice] if notice else [],
               read_seconds=read_seconds, warn=warn))
  return metric_writers
