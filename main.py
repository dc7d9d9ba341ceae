"""Trains a model on N towers. Read from the top: flags, then data in a straight line, then the loop.

  python main.py --input_mode=split --num_gpus=8
  python main.py --help

TensorFlow is imported after flags and files have been read, so that a mistake in them is told at once.
"""

import os
import sys
import time

try:
  import data
  import models
  from garbage import uncollected
  from training.cluster import check_port, read_cluster
  from training.flags import parse_flags
  from training.lock import lock_folder
  from training.outputs import check_outputs
  from training.result import format_result, write_result
  from training.run_error import RunError
  from training.signals import Interrupted, Signals
  from training.startup import Startup
  from training.xla import check_xla, set_xla
  from usage_error import UsageError
except ModuleNotFoundError as missing:
  if __name__ != '__main__' or missing.name not in ('absl', 'numpy'):
    raise
  print('main.py: error: %s is not installed in %s: install what towers needs with `pip install .`, or start ./run, '
        'which makes an environment.' % (missing.name, sys.prefix), file=sys.stderr)
  sys.exit(2)


@uncollected()
def build_program(config, model, data_set, devices, worker=0, num_workers=1):
  """Builds the graph: dataset → input mode → staging → switch → towers → average → apply.

  Args:
    config: training.config.Config.
    model: towers.Model.
    data_set: data.DataSet.
    devices: for each tower its device; with `--validation=tower` the last one validates.
    worker: the number of this worker, whose towers these are.
    num_workers: that train together.
  Returns:
    training.program.Program.
  """
  import towers
  from tensorflow_v1 import tf
  from training.learning_rate import build_learning_rate
  from training.optimizer import build_optimizer
  from training.program import Program

  workers = towers.Workers(num_workers, worker)
  has_validation_tower = config.validation == 'tower'
  if has_validation_tower and len(devices) < 2:
    raise UsageError('validation=tower takes one tower for itself, and num_gpus=1 leaves none to train: use num_gpus '
                     'of at least 2, or validation=switch.')
  if config.collective != 'auto' and config.variables != 'replicated' and num_workers == 1:
    raise UsageError('collective=%s has no meaning with variables=%s, which are shared, and one worker: use '
                     'variables=replicated.' % (config.collective, config.variables))
  train_devices, validation_devices = (devices[:-1], devices[-1:]) if has_validation_tower else (devices, devices)

  def feed(examples, devices, batch_size, *, shuffle=False, **settings):
    plan = towers.build_plan(num_examples=examples.num_examples, batch_size=batch_size, num_towers=len(devices),
                             num_workers=num_workers, worker=worker, name=examples.name, **settings)
    inputs = towers.build_inputs(examples, plan=plan, mode=config.input_mode, shuffle=shuffle, seed=config.seed,
                                 parallel_calls=config.input_threads)
    return towers.build_feed(inputs, devices=devices, staging_depth=config.staging_depth)

  train = feed(data_set.train, train_devices, config.batch_size, shuffle=config.shuffle,
               drop_remainder=config.drop_remainder, accumulate=config.accumulate)
  if config.validation != 'none':
    validate = feed(data_set.validation, validation_devices, train.inputs.plan.run_size)

  is_training = True
  if config.validation == 'switch':
    is_validating = tf.placeholder_with_default(False, [], 'is_validating')
    is_training = tf.logical_not(is_validating)
    batches = towers.build_switched_batches(train, validate, is_validating=is_validating)
  else:
    batches = towers.build_batches(train)

  store = towers.build_variable_store(devices=train_devices, placement=config.variables, seed=config.seed,
                                      worker=worker)
  precision = towers.build_precision(config.precision, devices=train_devices, loss_scale=config.loss_scale)
  all_towers = towers.build_towers(model, batches, devices=train_devices, store=store, is_training=is_training,
                                   batch_norm=config.batch_norm, accumulate=config.accumulate,
                                   build=config.tower_build, precision=precision, workers=workers)
  averaged = towers.average_gradients(all_towers, accumulate=config.accumulate, workers=workers,
                                      collective=config.collective, pack_bytes=int(config.pack_megabytes * 1e6))
  if precision is not None:
    averaged = towers.unscale_gradients(averaged, precision.loss_scale)
  gradient_norm = towers.build_gradient_norm(averaged) if config.keeps_curves else None
  if config.clip_norm:
    averaged = towers.clip_gradients(averaged, config.clip_norm)

  plan = train.inputs.plan
  learning_rate = build_learning_rate(
      config, examples_seen=towers.get_examples_seen(), examples_per_epoch=plan.examples_per_epoch,
      total_examples=plan.examples_before(config.count_steps(plan.steps_per_epoch)))
  train_op = towers.build_train_op(averaged, optimizer=build_optimizer(config, learning_rate),
                                   weight_decay=config.weight_decay)

  input_wait = towers.build_input_wait(train, batches, after=train_op)
  add_wait = averaged.add_op and towers.build_input_wait(train, batches, after=averaged.add_op)

  validation = None
  if config.validation == 'switch':
    validation = towers.build_validation(all_towers, feed=validate, is_validating=is_validating, workers=workers)
  elif has_validation_tower:
    validation = towers.build_validation_tower(model, validate, number=len(train_devices), store=store,
                                               precision=precision, workers=workers)
  return Program(train=train, averaged=averaged, learning_rate=learning_rate, train_op=train_op,
                 validation=validation, input_wait=input_wait, add_wait=add_wait, gradient_norm=gradient_norm,
                 copies=towers.build_copies(), precision=precision,
                 spread=towers.build_spread(workers) if num_workers > 1 else None)


def train(config, cluster, data_set, startup, signals):
  """Builds the program, and runs it to the last step; returns the result as `--result_file` holds it.

  An evaluator follows the checkpoints of those that train instead, and has no result.

  Args:
    config: training.config.Config.
    cluster: training.cluster.Cluster.
    data_set: data.DataSet.
    startup: training.startup.Startup, entered.
    signals: training.signals.Signals, entered.
  """
  import towers
  from tensorflow_v1 import tf, use_deterministic_kernels
  from training.describe import describe_ops, describe_run
  from training.run import run_program
  from training.worker import join_workers

  if config.deterministic:
    use_deterministic_kernels()
  devices = towers.build_devices(config.num_gpus, config.device)
  if devices.notice:
    print('main.py: %s' % devices.notice, file=sys.stderr)
  if config.data_format == 'NCHW' and devices.kind == 'CPU':
    raise UsageError('data_format=NCHW needs GPUs, and TensorFlow sees none. Use data_format=NHWC, whose weights and '
                     'checkpoints are the same.')
  check_xla(config, devices)
  facts = dict(towers=len(devices.names), tensorflow=tf.__version__, training_examples=data_set.train.num_examples,
               validation_examples=data_set.validation.num_examples)
  with join_workers(cluster, config=config, devices=devices, facts=facts, startup=startup) as worker, \
      tf.Graph().as_default() as graph:
    startup.begin('graph', 'building the graph', count_ops=lambda: len(graph.get_operations()))
    model = models.build_classifier(config.model, num_classes=data_set.num_classes, data_format=config.data_format)
    program = build_program(config, model, data_set, devices.names, cluster.worker, cluster.num_workers)
    startup.note(describe_ops(graph, len(devices.names)))
    description = describe_run(config, data_set, devices, program)
    if cluster.is_evaluator:
      from training.evaluator import evaluate
      return evaluate(program, config=config, devices=devices, startup=startup, signals=signals)
    print(description if cluster.is_chief else '%s of %d; %s tells of the run' % (
        cluster.describe(cluster.worker), cluster.num_workers, cluster.describe(0)))
    return run_program(program, config=config, description=description, bad_records=data_set.bad_records,
                       devices=devices, startup=startup, signals=signals, worker=worker)


def check(config, data_set):
  """Compares the model's towers with one tower; returns whether they agree.

  Random ops draw other numbers in every tower; then dropout is off in a second
  comparison. GPUs are used with `--device=gpu` alone.
  """
  import towers
  from tensorflow_v1 import use_deterministic_kernels
  from training.describe import describe_check

  on_gpus = config.device == 'gpu'
  if config.deterministic or on_gpus:
    use_deterministic_kernels()
  model = models.build_classifier(config.model, num_classes=data_set.num_classes,
                                  data_format=config.data_format)
  reports = []
  for is_training in (True, False):
    reports.append(towers.check(
        model, data_set.train, num_towers=config.num_gpus or 2, batch_size=config.batch_size,
        seed=config.seed, batch_norm=config.batch_norm, is_training=is_training,
        device='gpu' if on_gpus else 'cpu'))
    print('is_training=%s: %s' % (is_training, reports[-1].format()))
    if reports[-1].agrees or not reports[-1].draws:
      break
  print(describe_check(config))
  return reports[-1].agrees and all(report.agrees or report.only_draws for report in reports)


def measure_input(config, data_set):
  """Measures the input modes without towers; returns examples per second by mode."""
  import towers
  from training import measure_input

  devices = towers.build_devices(config.num_gpus, config.device)
  speeds = measure_input.measure_input(config, data_set, devices)
  print(measure_input.format_speeds(config, len(devices.names), speeds))
  return speeds


def tune(config):
  """Returns the config with the fastest settings."""
  from training.autotune import autotune
  return autotune(config, program=__file__)


def export(config, data_set):
  """Writes the model with the best weights of a run that has ended."""
  from training.export import export
  print('exported to %s' % export(config, data_set))


def examine():
  """Looks at this machine; returns whether nothing is at fault."""
  from training.doctor import examine
  return examine()


def predict(config):
  """Names the classes of the examples that --predict gives."""
  from training.predict import predict
  predict(config)


def main(arguments):
  """Runs the command line `arguments`, `sys.argv`; returns the exit code.

  0 is done, 1 towers that --check found to differ or a fault that --doctor found, 2 a mistake to correct, 3 a run that
  could not go on, 75 one that another worker has left alone, 130 and 143 ended by Ctrl-C and SIGTERM.
  """
  started = time.monotonic()
  with Signals() as signals, Startup(started) as startup:
    try:
      config = parse_flags(arguments)
      if config is None:
        return 0
      if config.doctor:
        return 0 if examine() else 1
      if config.predict:
        check_outputs(config)
        predict(config)
        return 0
      cluster = read_cluster(os.environ)
      config = config.for_worker(cluster)
      check_outputs(config)
      check_port(cluster)
      with lock_folder(config.checkpoint_dir if cluster.is_chief else None):
        if config.autotune:
          config = tune(config)
        set_xla(config.xla, os.environ)
        data_set = data.load(config.data, **{name: getattr(config, name) for name in data.LoadSettings._fields})
        if config.check:
          return 0 if check(config, data_set) else 1
        if config.input_only:
          result = measure_input(config, data_set)
        else:
          result = train(config, cluster, data_set, startup, signals)
        if config.result_file:
          write_result(config.result_file, result)
        if not config.input_only:
          if cluster.is_chief:  # The others have told what is theirs.
            print(format_result(result, time.monotonic() - started))
          if config.export_dir:
            export(config, data_set)
    except UsageError as error:
      print('main.py: error: %s' % error, file=sys.stderr)
      return 2
    except RunError as error:
      print('main.py: error: %s' % error, file=sys.stderr)
      return error.exit_code
    except Interrupted as interrupted:
      print('main.py: %s' % interrupted, file=sys.stderr)
      return interrupted.exit_code
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv))
