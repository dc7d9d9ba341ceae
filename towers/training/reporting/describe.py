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
  roles = [f'tower {tower}' for tower in range(len(program.reduced.towers))]
  roles += ['validation'] * (len(devices.names) - len(roles))
  lines = [
      f"TensorFlow {tf.__version__}: {_count(len(devices.names), 'tower')} on "
      f"{'GPUs' if devices.kind == 'GPU' else 'virtual CPU devices'}",
      f'data: {config.data}, {data_set.train.num_examples:,} training and '
      f'{data_set.validation.num_examples:,} validation examples',
      f'input: {config.input_mode}, staging depth {config.staging_depth}; {describe_batch(plan)}',
      f'model: {config.model}, {num_weights:,} weights; {config.optimizer}, {config.schedule} '
      f'schedule, peak rate {config.peak_learning_rate():g}',
  ]
  if program.precision is not None:
    lines.append(describe_precision(program.precision))
  if data_set.source:
    lines.insert(2, f'  {data_set.source}; damaged records: {config.on_bad_record}')
  if program.reduced.without_gradient:
    lines.append('without a gradient, so never trained: '
                 + ', '.join(variable.op.name for variable in program.reduced.without_gradient))
  if program.reduced.partly_without_gradient:
    lines.append('WARNING: without a gradient in some towers, so trained by the others alone: ' +
                 ', '.join(
                     variable.op.name for variable in program.reduced.partly_without_gradient))
  if program.reduced.all_reduce is not None:
    lines.append(describe_all_reduce(program.reduced.all_reduce))
  lines.append(f'memory: estimated at least {estimate_memory(program).describe()} per tower, '
               'besides variables')
  variables = tf.global_variables() + (program.replicas.variables
                                       if program.replicas is not None else [])
  return '\n'.join(lines + [format_device_table(devices.names, variables, roles)])


def describe_precision(precision: Precision) -> str:
  """Returns the sentence that says in what towers compute, and how the loss is scaled."""
  is_adapted = precision.loss_scale.variable is not None
  return 'precision: {}, on weights of float32; loss scale {}'.format(
      precision.dtype.name,
      'adapted' if is_adapted else f'{tf.get_static_value(precision.loss_scale.value):g}')


def describe_all_reduce(all_reduce: AllReduce) -> str:
  """Returns the sentence that says into how many collectives the gradients are packed."""
  sentence = (f"all-reduce: {_count(all_reduce.num_gradients, 'gradient')} of "
              f"{format_bytes(all_reduce.num_bytes)}, fused into "
              f"{_count(all_reduce.num_collectives, 'all-reduce')} of "
              f"{format_bytes(all_reduce.num_bytes / max(all_reduce.num_collectives, 1))} on "
              f"average ({all_reduce.kind})")
  if all_reduce.num_gathered:
    sentence += f"; {_count(all_reduce.num_gathered, 'sparse gradient')} gathered row by row"
  return sentence


def describe_batch(plan: Plan) -> str:
  """Returns the sentence that says how a global batch is shared: 'batch: 32 per tower x 2 towers =
  64 global'.
  """
  sizes = plan.shares(plan.micro_batch_size)
  if min(sizes) == max(sizes):
    shares = f"{sizes[0]:,} per tower x {_count(plan.num_towers, 'tower')}"
  else:
    shares = f"{' + '.join(map(str, sizes))} on {plan.num_towers} towers"
  if plan.num_workers > 1:
    shares += f' x {plan.num_workers} workers'
    if plan.micro_batch_size % plan.num_workers:
      shares += ' in turn'
  if plan.accumulate > 1:
    shares += f' x {plan.accumulate} runs'
  sentence = (f"batch: {shares} = {plan.batch_size:,} global, "
              f"{_count(plan.steps_per_epoch, 'step')} per epoch")
  if plan.examples_per_epoch % plan.batch_size:
    sentence += f' (the last of {plan.size_at(plan.steps_per_epoch - 1):,})'
  return sentence


def describe_ops(graph: Any, num_towers: int) -> str:
  """Returns how many ops a graph's towers have."""
  ops = graph.get_operations()
  in_towers = sum(op.name.startswith('tower_') for op in ops)
  return f"{_count(num_towers, 'tower')} of {in_towers // num_towers:,} ops, {len(ops):,} in all"


def describe_check(config: Config) -> str:
  """Returns a line on what `--check` compares, and which settings it does not."""
  compared = dict(tower_build='reuse', variables='host', accumulate=1, precision='float32')
  others = [f'{name}={getattr(config, name)}' for name, value in compared.items()
            if getattr(config, name) not in (value, 'auto')]
  line = (f"compared: {', '.join((f'{name}={value}' for name, value in compared.items()))}, plain "
          "gradient descent without clipping or decay")
  return f'{line}; NOT compared: {", ".join(others)}' if others else line


def _count(number: Any, noun: str) -> str:
  return f"{number:,} {noun}{'' if number == 1 else 's'}"
