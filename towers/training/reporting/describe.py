"""What a run tells of itself before its first step: devices, data, batches, model, variables."""

from typing import Any

from tensorflow_v1 import tf
from towers import AllReduce, Devices, Plan, Precision, format_device_table
from towers.data import DataSet
from towers.program import Program
from towers.training.settings.config import Config
from towers.training.stepping.memory import estimate_memory, format_bytes


def describe_run(config: Config, data_set: DataSet, devices: Devices, program: Program) -> str:
  """Returns some lines and the table of devices, once the program is built."""
  plan = program.train.inputs.plan
  num_weights = sum(variable.shape.num_elements() for variable in tf.trainable_variables())
  roles = ['tower %d' % tower for tower in range(len(program.reduced.towers))]
  roles += ['validation'] * (len(devices.names) - len(roles))
  lines = [
      'TensorFlow {}: {} on {}'.format(
          tf.__version__, _count(len(devices.names), 'tower'),
          'GPUs' if devices.kind == 'GPU' else 'virtual CPU devices'),
      'data: {}, {:,} training and {:,} validation examples'.format(
          config.data, data_set.train.num_examples, data_set.validation.num_examples),
      'input: {}, staging depth {}; {}'.format(config.input_mode, config.staging_depth, describe_batch(plan)),
      'model: {}, {:,} weights; {}, {} schedule, peak rate {:g}'.format(
          config.model, num_weights, config.optimizer, config.schedule, config.peak_learning_rate()),
  ]
  if program.precision is not None:
    lines.append(describe_precision(program.precision))
  if data_set.source:
    lines.insert(2, '  {}; damaged records: {}'.format(data_set.source, config.on_bad_record))
  if program.reduced.without_gradient:
    lines.append('without a gradient, so never trained: '
                 + ', '.join(variable.op.name for variable in program.reduced.without_gradient))
  if program.reduced.partly_without_gradient:
    lines.append('WARNING: without a gradient in some towers, so trained by the others alone: '
                 + ', '.join(variable.op.name for variable in program.reduced.partly_without_gradient))
  if program.reduced.all_reduce is not None:
    lines.append(describe_all_reduce(program.reduced.all_reduce))
  lines.append('memory: estimated at least %s per tower, besides variables'
               % estimate_memory(program).describe())
  variables = tf.global_variables() + (program.replicas.variables if program.replicas is not None else [])
  return '\n'.join(lines + [format_device_table(devices.names, variables, roles)])


def describe_precision(precision: Precision) -> str:
  """Returns the sentence that says in what towers compute, and how the loss is scaled."""
  is_adapted = precision.loss_scale.variable is not None
  return 'precision: %s, on weights of float32; loss scale %s' % (
      precision.dtype.name, 'adapted' if is_adapted else '%g' % tf.get_static_value(precision.loss_scale.value))


def describe_all_reduce(all_reduce: AllReduce) -> str:
  """Returns the sentence that says into how many collectives the gradients are packed."""
  sentence = 'all-reduce: {} of {}, fused into {} of {} on average ({})'.format(
      _count(all_reduce.num_gradients, 'gradient'), format_bytes(all_reduce.num_bytes),
      _count(all_reduce.num_collectives, 'all-reduce'),
      format_bytes(all_reduce.num_bytes / max(all_reduce.num_collectives, 1)), all_reduce.kind)
  if all_reduce.num_gathered:
    sentence += '; %s gathered row by row' % _count(all_reduce.num_gathered, 'sparse gradient')
  return sentence


def describe_batch(plan: Plan) -> str:
  """Returns the sentence that says how a global batch is shared: 'batch: 32 per tower x 2 towers = 64 global'."""
  sizes = plan.shares(plan.micro_batch_size)
  if min(sizes) == max(sizes):
    shares = '{:,} per tower x {}'.format(sizes[0], _count(plan.num_towers, 'tower'))
  else:
    shares = '%s on %d towers' % (' + '.join(map(str, sizes)), plan.num_towers)
  if plan.num_workers > 1:
    shares += ' x %d workers' % plan.num_workers
    if plan.micro_batch_size % plan.num_workers:
      shares += ' in turn'
  if plan.accumulate > 1:
    shares += ' x %d runs' % plan.accumulate
  sentence = 'batch: {} = {:,} global, {} per epoch'.format(
      shares, plan.batch_size, _count(plan.steps_per_epoch, 'step'))
  if plan.examples_per_epoch % plan.batch_size:
    sentence += ' (the last of {:,})'.format(plan.size_at(plan.steps_per_epoch - 1))
  return sentence


def describe_ops(graph: Any, num_towers: int) -> str:
  """Returns how many ops a graph's towers have."""
  ops = graph.get_operations()
  in_towers = sum(op.name.startswith('tower_') for op in ops)
  return '{} of {:,} ops, {:,} in all'.format(_count(num_towers, 'tower'), in_towers // num_towers, len(ops))


def describe_check(config: Config) -> str:
  """Returns a line on what `--check` compares, and which settings it does not."""
  compared = dict(tower_build='reuse', variables='host', accumulate=1, precision='float32')
  others = [f'{name}={getattr(config, name)}' for name, value in compared.items()
            if getattr(config, name) not in (value, 'auto')]
  line = ('compared: %s, plain gradient descent without clipping or decay'
          % ', '.join(f'{name}={value}' for name, value in compared.items()))
  return f'{line}; NOT compared: {", ".join(others)}' if others else line


def _count(number: Any, noun: str) -> str:
  return '{:,} {}{}'.format(number, noun, '' if number == 1 else 's')
