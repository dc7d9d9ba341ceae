"""What a run says about itself before its first step: devices, data, batches, model, variables."""

from typing import Any

from towers.graph.sizes import format_bytes
from towers.input.plan import Plan
from towers.placement.collectives import AllReduce
from towers.placement.variables import format_device_table
from towers.placement.xla import compiles_by_default
from towers.reduce.rows import RowSlots
from towers.tensorflow_v1 import tf
from towers.tower.precision import Precision
from towers.training_graph import TrainingGraph

# Where 'auto' asks for nothing that differs.
_FREE = ('tower_build', 'variables', 'last_batch')


def describe_run(program: TrainingGraph, *, data: str = '', source: str = '', model: str = '',
                 update: str = '', best: str = '') -> str:
  """Returns some lines about a built program in the default graph, and the table of its devices.

  `data` and `model` are names of their own, `source` where the examples come from and how they are
  read, `update` the optimizer and its rate, and `best` which validation is the best, all in a few
  words; '' where there is no more to say.
  """
  reduced, devices = program.gradients, program.devices
  train, validation = program.train_examples, program.validation_examples
  num_towers = len(reduced.towers)
  staging_depth = 0 if program.feed.stage is None else program.feed.stage.depth
  num_weights = sum(variable.shape.num_elements() for variable in tf.trainable_variables())

  name = model or program.settings['model']
  kind = 'GPUs' if devices.kind == 'GPU' else 'virtual CPU devices'
  num_train = 'a stream of' if program.plan.is_endless else f'{train.num_examples:,}'
  num_validation = 0 if validation is None else validation.num_examples
  lines = [
      f"TensorFlow {tf.__version__}: {_count(len(devices.names), 'tower')} on {kind}; variables: "
      f'{program.placement.kind}, {program.placement.reason}',
      'data: ' + ', '.join(filter(None, [
          data, f'{num_train} training and {num_validation:,} validation examples']))]
  if source:
    lines.append(f'  {source}')
  lines += [
      f"input: {program.given.input_mode}, staging depth {staging_depth}; "
      f'{describe_batch(program.plan)}',
      '; '.join(filter(None, [f"model: {name}, {_count(num_weights, 'weight')}", update]))]
  if program.precision is not None:
    lines.append(describe_precision(program.precision))
    if compiles_by_default(devices.kind, program.given.precision):
      lines[-1] += ', compiled by XLA'
  recomputed = program.towers[0].recomputed
  if recomputed is not None:
    lines.append(f'recompute: the backward pass computes {recomputed.num_segments - 1} of '
                 f'{recomputed.num_segments} segments of the model again, '
                 f"{_count(recomputed.num_ops, 'op')} per tower")
  if program.averages is not None:
    lines.append(f'averages of the weights: decay {program.averages.decay:g}, for validation and '
                 'export')
  if best and program.validation is not None:
    lines.append(f'best validation: {best}')

  if reduced.partly_without_gradient:
    lines.append('WARNING: without a gradient in some towers, so trained by the others alone: '
                 + ', '.join(variable.op.name for variable in reduced.partly_without_gradient))
  if reduced.all_reduce is not None:
    lines.append(describe_all_reduce(reduced.all_reduce))
    lines += [f'  {describe_rows(slots)}' for slots in reduced.row_slots]
  elif program.given.collective != 'auto':
    lines.append(f"collective={program.given.collective} has nothing to sum: there is one "
                 'worker, whose towers share their variables')

  variables = tf.global_variables()
  if program.replicas is not None:
    variables = variables + program.replicas.variables
  roles = [f'tower {tower}' for tower in range(num_towers)]
  roles += ['validation'] * (len(devices.names) - num_towers)
  return '\n'.join(lines + [format_device_table(devices.names, variables, roles)])


def describe_precision(precision: Precision) -> str:
  """Returns the sentence about the dtype that towers compute in, and the loss scale."""
  loss_scale = precision.loss_scale
  scale = ('adapted' if loss_scale.variable is not None else
           f'{tf.get_static_value(loss_scale.value):g}')
  return f'precision: {precision.dtype.name}, on weights of float32; loss scale {scale}'


def describe_all_reduce(all_reduce: AllReduce) -> str:
  """Returns the sentence about how many collectives sum the gradients, and what they send."""
  bytes_each = all_reduce.num_bytes / max(all_reduce.num_collectives, 1)
  sent_as = all_reduce.wire and f'sent as {all_reduce.wire.name}'
  sentence = (f"all-reduce: {_count(all_reduce.num_gradients, 'gradient')} of "
              f"{format_bytes(all_reduce.num_bytes)}, fused into "
              f"{_count(all_reduce.num_collectives, 'all-reduce')} of {format_bytes(bytes_each)} "
              f"on average ({', '.join(filter(None, [all_reduce.kind, sent_as]))})")
  if all_reduce.kind == 'ring':  # NCCL chooses its own ways.
    member = 'tower' if all_reduce.num_workers == 1 else 'worker'
    sentence += (f'; {all_reduce.num_messages} messages in a row, each {member} sends '
                 f'{format_bytes(all_reduce.sent_bytes)}')
  if all_reduce.num_gathered:
    sentence += f"; {_count(all_reduce.num_gathered, 'sparse gradient')} gathered row by row"
  return sentence


def describe_rows(slots: RowSlots) -> str:
  """Returns the sentence about what the workers send of a sparse gradient."""
  num_rows, num_workers = slots.variable.shape.as_list()[0], slots.workers.num_workers
  head = f'rows of {slots.variable.op.name}: '
  whole = f'all {num_rows:,} ({format_bytes(num_rows * slots.row_bytes)})'
  if not slots.is_known:
    return (f'{head}those that a step touches, {format_bytes(slots.row_bytes)} each, or {whole} '
            f'from {-(-num_rows // num_workers):,} in one worker on')
  touched = f"{slots.most:,} x {_count(num_workers, 'worker')}"
  if slots.is_whole:
    return f'{head}{whole} in each step, since it touches up to {touched}'
  sent = format_bytes(slots.num_slots * slots.row_bytes)
  return f'{head}those that a step touches, up to {touched} ({sent}), not {whole}'


def describe_batch(plan: Plan) -> str:
  """Returns how towers share a global batch: 'batch: 32 per tower x 2 towers = 64 global, …'."""
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
    shares += f' x {plan.accumulate} micro-batches'
  sentence = f'batch: {shares} = {plan.batch_size:,} global'
  if plan.is_endless:
    return sentence
  sentence += f", {_count(plan.steps_per_epoch, 'step')} per epoch"
  if plan.carries:
    if plan.num_examples % plan.batch_size:
      sentence += ' at most, whose rest goes into the first batch of the next one (carry)'
  elif plan.examples_per_epoch % plan.batch_size:
    filled = ', filled up' if plan.last_batch == 'pad' else ''
    which = 'the last' if plan.steps_per_epoch > 1 else 'its batch'
    sentence += f' ({which} of {plan.size_at(plan.steps_per_epoch - 1):,}{filled})'
  left_out = plan.num_examples - plan.examples_per_epoch
  if left_out:
    sentence += f' ({_count(left_out, "example")} of each epoch left out)'
  return sentence


def describe_check(config: Any) -> str:
  """Returns a line on what `--check` compares, and which settings of a `Config` it leaves out."""
  compared = dict(tower_build='reuse', variables='host', accumulate=1, precision='float32',
                  last_batch='keep', recompute='none')
  line = f'compared: {_assignments(compared)}, plain gradient descent without clipping or decay'
  given = {name: getattr(config, name) for name in compared}
  others = {name: value for name, value in given.items()
            if value != compared[name] and not (value == 'auto' and name in _FREE)}
  return f'{line}; NOT compared: {_assignments(others)}' if others else line


def _assignments(settings):
  return ', '.join(f'{name}={value}' for name, value in settings.items())


def _count(number, noun):
  return f"{number:,} {noun}{'' if number == 1 else 's'}"
