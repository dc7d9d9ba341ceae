"""Trains a model on N towers. Read from the top: flags, then data in a straight line, then the loop.

  python main.py --input_mode=split --num_gpus=8
  python main.py --help

TensorFlow is imported after flags and files have been read, so that a mistake in them is told at once.
"""

import sys
import time

import data
import models
from training.flags import parse_flags
from training.result import check_result_file, format_result, write_result
from usage_error import UsageError


def build_program(config, model, data_set, devices):
  """Builds the graph: dataset → input mode → staging → switch → towers → average → apply.

  Args:
    config: training.config.Config.
    model: towers.Model.
    data_set: data.DataSet.
    devices: for each tower its device; with `--validation=tower` the last one validates.
  Returns:
    training.steps.Program.
  """
  import towers
  from tensorflow_v1 import tf
  from training.learning_rate import build_learning_rate
  from training.optimizer import build_optimizer
  from training.steps import Program

  has_validation_tower = config.validation == 'tower'
  if has_validation_tower and len(devices) < 2:
    raise UsageError('validation=tower takes one tower for itself, and num_gpus=1 leaves none to train: use num_gpus '
                     'of at least 2, or validation=switch.')
  train_devices, validation_devices = (devices[:-1], devices[-1:]) if has_validation_tower else (devices, devices)

  def feed(examples, devices, batch_size, *, shuffle=False, **settings):
    plan = towers.build_plan(num_examples=examples.num_examples, batch_size=batch_size, num_towers=len(devices),
                             name=examples.name, **settings)
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

  store = towers.build_variable_store(devices=train_devices, placement=config.variables, seed=config.seed)
  all_towers = towers.build_towers(model, batches, devices=train_devices, store=store, is_training=is_training,
                                   batch_norm=config.batch_norm, accumulate=config.accumulate)
  averaged = towers.average_gradients(all_towers)
  if config.accumulate > 1:
    averaged = towers.accumulate_gradients(averaged)
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
    validation = towers.build_validation(all_towers, feed=validate, is_validating=is_validating)
  elif has_validation_tower:
    validation = towers.build_validation_tower(model, validate, number=len(train_devices), store=store)
  return Program(train=train, averaged=averaged, learning_rate=learning_rate, train_op=train_op,
                 validation=validation, input_wait=input_wait, add_wait=add_wait)


def train(config, data_set, started):
  """Builds the program, and runs it to the last step; returns the result as `--result_file` holds it.

  Args:
    config: training.config.Config.
    data_set: data.DataSet.
    started: time.monotonic() when the process began.
  """
  import towers
  from tensorflow_v1 import tf, use_deterministic_kernels
  from training.checkpoints import Checkpoints
  from training.describe import describe_run
  from training.loop import build_schedule, check_resume, run_loop, watch_records
  from training.measure_input import advise
  from training.progress import Progress
  from training.steps import Steps

  if config.deterministic:
    use_deterministic_kernels()
  devices = towers.build_devices(config.num_gpus, config.device)
  if devices.notice:
    print('main.py: %s' % devices.notice, file=sys.stderr)
  model = models.build_classifier(config.model, num_classes=data_set.num_classes)
  program = build_program(config, model, data_set, devices.names)
  print(describe_run(config, data_set, devices, program))

  checkpoints = config.checkpoint_dir and Checkpoints(config.checkpoint_dir, keep=config.keep_checkpoints)
  with tf.Session(config=towers.build_session_config(devices)) as session:
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    path = checkpoints and checkpoints.restore(session)
    step, examples_seen = session.run([towers.get_global_step(), towers.get_examples_seen()])
    plan = program.train.inputs.plan
    schedule = build_schedule(config, plan)
    if path:
      check_resume(path, step=step, examples_seen=examples_seen, plan=plan, may_skip=config.on_bad_record == 'skip')
      print('resumed from %s: %d of %d steps are done' % (path, step, schedule.total_steps))
    steps = Steps(session, program)
    progress = Progress(total_steps=schedule.total_steps, first_step=step, plan=plan,
                        learning_rate=steps.learning_rate, input_wait_seconds=lambda: steps.input_wait_seconds)
    with watch_records(data_set.bad_records, progress):
      steps.start(step)
      outcome = run_loop(steps, session=session, schedule=schedule, step=step, checkpoints=checkpoints,
                         progress=progress)
    examples_seen = session.run(towers.get_examples_seen())
  if progress.input_wait and advise(config, progress.input_wait):
    print(advise(config, progress.input_wait))

  return dict(
      global_step=int(outcome.step), examples_seen=int(examples_seen), num_towers=len(program.averaged.towers),
      global_batch_size=config.batch_size, train_loss=outcome.train_loss,
      validation_loss=outcome.validation.get('loss'), validation_accuracy=outcome.validation.get('accuracy'),
      validation_examples=outcome.validation_examples, examples_per_second=progress.examples_per_second,
      input_wait=progress.input_wait, setup_seconds=progress.first_step_at and progress.first_step_at - started,
      tensorflow_version=tf.__version__)


def check(config, data_set):
  """Compares the model's towers with one tower; returns whether they agree.

  What draws random numbers draws others in every tower, so the comparison is also made with dropout off.
  """
  import towers

  agrees = False
  for is_training in (True, False):
    report = towers.check(models.build_classifier(config.model, num_classes=data_set.num_classes), data_set.train,
                          num_towers=config.num_gpus or 2, batch_size=config.batch_size, seed=config.seed,
                          batch_norm=config.batch_norm, is_training=is_training)
    print('is_training=%s: %s' % (is_training, report.format()))
    agrees = report.agrees
    if agrees or not report.draws:
      break
  return agrees


def measure_input(config, data_set):
  """Measures the input modes without towers; returns examples per second by mode."""
  import towers
  from training import measure_input

  devices = towers.build_devices(config.num_gpus, config.device)
  speeds = measure_input.measure_input(config, data_set, devices)
  print(measure_input.format_speeds(config, len(devices.names), speeds))
  return speeds


def main(arguments):
  """Runs the command line `arguments`, `sys.argv`; returns the exit code.

  0 is done, 1 towers that --check found to differ, 2 a mistake to correct, 130 interrupted.
  """
  started = time.monotonic()
  try:
    config = parse_flags(arguments)
    if config is None:
      return 0
    check_result_file(config.result_file)
    data_set = data.load(config.data, **{name: getattr(config, name) for name in data.LoadSettings._fields})
    if config.check:
      return 0 if check(config, data_set) else 1
    result = measure_input(config, data_set) if config.input_only else train(config, data_set, started)
    if config.result_file:
      write_result(config.result_file, result)
    if not config.input_only:
      print(format_result(result, time.monotonic() - started))
  except UsageError as error:
    print('main.py: error: %s' % error, file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print('\nmain.py: interrupted', file=sys.stderr)
    return 130
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv))
