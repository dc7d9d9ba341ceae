"""The feed: staged batches of one or two splits become one batch for each tower.

  train       inputs ──► stage ──► get ─┐
                                        ├─ tf.cond(is_validating) ──► tower i
  validation  inputs ──► stage ──► get ─┘

A `get` (or, without staging, a `get_next`) stands inside its split's branch: outside of the
branches it would run in both, and lose a batch of the other split. Likewise a run puts only the
split that it takes.
"""

import sys
from typing import Any, List, NamedTuple, Optional, Sequence

from towers.base.output import write_line
from towers.base.short_repr import short_repr
from towers.base.usage_error import UsageError, check_same_number
from towers.input.batch import Batch
from towers.input.pipeline import Inputs
from towers.input.plan import Plan
from towers.input.row_offsets import join_shardings
from towers.placement.devices import check_devices
from towers.placement.host import HOST, is_gpu
from towers.staging import Stage, build_stage
from towers.tensorflow_v1 import tf


class Feed(NamedTuple):
  """How the batches of one split get to its towers.

  Attributes:
    inputs: the split's iterators.
    stage: the split's staging areas, or None where the towers take from the iterators directly.
    templates: for each tower the batch as it enters the stage: its structure and static shapes.
    devices: the device of each tower.
  """
  inputs: Inputs
  stage: Optional[Stage]
  templates: Sequence[Batch]
  devices: Sequence[str]

  def __repr__(self) -> str:
    return short_repr(self)

  @property
  def put_ops(self) -> List[Any]:
    """The ops that every run with a batch of this split must run too: none without staging.

    The mean loss, the train op and the sums of a validation run them by themselves. They are for
    programs that fetch only what a tower computes from its batch.
    """
    return [] if self.stage is None else self.stage.put_ops

  def start(self, session: Any, *, step: int = 0, plan: Optional[Plan] = None,
            peeks: bool = False, other: Optional['Feed'] = None
            ) -> Optional[List[List[Any]]]:
    """Starts the iterators at `step` and fills the staging areas; changes no variable.

    The `plan` is that of a run that has resumed, None of one that has not. The `other` split, as
    deeply staged, starts from its beginning in the same runs: each takes its time to prepare in a
    large graph.

    Returns:
      with `peeks` the values of each tower's first batch, which it is still to take, in the order
      of `Batch.flatten`; else None.
    """
    # A number of examples may be static.
    first = [batch.flatten() for batch in self.templates] if peeks else []
    fetched = [[value for value in flat if tf.is_tensor(value)] for flat in first]
    rows: List[Any] = []
    feeds = [self] if other is None else [self, other]
    stages = [feed.stage for feed in feeds if feed.stage is not None]
    starts = [[*(stage.clear_op for stage in stages), *(feed.inputs.initializer for feed in feeds)],
              {**feeds[-1].inputs.feed_dict(0), **self.inputs.feed_dict(step, plan)}]
    session.run(*starts)
    if self.stage is not None:
      for _ in range(self.stage.depth):
        read, _ = session.run([[] if rows else fetched, [stage.fill_ops for stage in stages]])
        rows = rows or read
    elif peeks:
      rows = session.run(fetched)
      session.run(*starts)
    return [values + flat[len(values):] for values, flat in zip(rows, first)] if peeks else None


def build_feed(inputs: Inputs, *, devices: Sequence[str], staging_depth: int = 1) -> Feed:
  """Builds staging areas, in which so many batches wait on each tower's device; with 0 none."""
  check_same_number(inputs.plan.num_towers, f'towers in the plan of {inputs.name}',
                    len(devices), 'devices',
                    fix='build the plan for as many towers as there are devices.')
  check_devices(devices)
  batches = inputs.next_batches()
  if staging_depth == 0:
    # Never run, only for their shapes: the get_next ops that run stand inside the branch.
    return Feed(inputs, None, batches, devices)
  # A static number of examples needs no staging.
  tensors = [batch.flatten()[:-1] if batch.is_static else batch.flatten() for batch in batches]
  return Feed(inputs, build_stage(tensors, devices=devices, depth=staging_depth, name=inputs.name),
              batches, devices)


def build_batches(train: Feed) -> List[Batch]:
  """Returns for each tower its batch of the only split."""
  return _from_flat(_take(train), [train])


def build_switched_batches(train: Feed, validation: Feed, *, is_validating: Any) -> List[Batch]:
  """Returns for each tower its batch: of validation where `is_validating`, else of training.

  Both feeds are over the same towers with the same staging depth.
  """
  check_same_number(len(train.devices), f'towers of the feed of {train.inputs.name}',
                    len(validation.devices), f'towers of the feed of {validation.inputs.name}',
                    fix='towers that validate in turn need both; build the feeds for the same '
                        'devices.')
  check_alike(train, validation)
  if train.stage is None or validation.stage is None:
    # One switch for all towers, since in `split` mode one get_next serves them all.
    with tf.device(HOST), tf.name_scope('switch'):
      flat = tf.cond(is_validating, lambda: sum(_take(validation), []),
                     lambda: sum(_take(train), []), strict=True)
    size = len(flat) // len(train.devices)
    taken = [flat[begin:begin + size] for begin in range(0, len(flat), size)]
  else:
    taken = []
    for tower, device in enumerate(train.devices):
      with tf.device(device), tf.name_scope(f'switch_{tower}'):
        taken.append(_switch_staged(train, validation, tower, is_validating))
  return _from_flat(taken, [train, validation])


def check_alike(train: Feed, validation: Feed) -> None:
  """Refuses splits of other structures or dtypes; warns of other shapes, which a model may take."""
  check_same_number(len(_list_tensors(train)), f'tensors in a batch of {train.inputs.name}',
                    len(_list_tensors(validation)), f'in one of {validation.inputs.name}',
                    fix='the model takes both; give both splits the same structure.')
  for index, (one, other) in enumerate(zip(*map(_list_tensors, (train, validation)))):
    if one.dtype != other.dtype:
      raise UsageError(f'component {index} is {other.dtype.name} in the validation split and '
                       f'{one.dtype.name} in the training split: convert one of them.')
    shape, other_shape = one.shape[1:], other.shape[1:]
    if not shape.is_compatible_with(other_shape):
      write_line(f'WARNING: component {index} has the shape {other_shape.as_list()} in the '
                 f'validation split and {shape.as_list()} in the training split: validation fails, '
                 'unless the model takes both', sys.stderr)


def _list_tensors(feed):
  return tf.nest.flatten(feed.templates[0].tensors)


def _take(feed):
  """Builds, where it is called, the ops that take every tower's next batch, as flat lists."""
  if feed.stage is None:
    return [[tf.convert_to_tensor(value) for value in batch.flatten()]
            for batch in feed.inputs.next_batches()]
  taken = []
  for tower, device in enumerate(feed.devices):
    with tf.device(device):
      taken.append(_take_staged(feed, tower))
  return taken


def _switch_staged(train, validation, tower, is_validating):
  """Takes a tower's next batch out of its area of one of both splits."""
  kept: List[Any] = []

  def take(feed):
    taken = _take_staged(feed, tower)
    kept[:] = [value.dtype for value in taken]
    # GPUs merge all bits of 32 but those of integers, which they would send to the host.
    on_gpu = is_gpu(feed.devices[tower])
    return [tf.bitcast(value, tf.float32)
            if on_gpu and value.dtype == tf.int32 and value.shape.ndims != 0 else value
            for value in taken]

  merged = tf.cond(is_validating, lambda: take(validation), lambda: take(train), strict=True)
  return [value if value.dtype == dtype else tf.bitcast(value, dtype)
          for value, dtype in zip(merged, kept)]


def _take_staged(feed, tower):
  """Takes a tower's next batch out of its staging area, as a flat list."""
  taken, batch = feed.stage.get(tower), feed.templates[tower]
  return taken + [tf.constant(batch.num_examples)] if batch.is_static else taken


def _from_flat(taken, feeds):
  """Returns batches from flat tensors, with every static fact that holds in all splits."""
  batches = []
  for tower, flat in enumerate(taken):
    templates = [feed.templates[tower] for feed in feeds]
    if feeds[0].stage is None:
      # Here too a tower's batch is on its device: tf.map_fn stands where its input does.
      with tf.device(feeds[0].devices[tower]):
        flat = [tf.identity(value) for value in flat[:-1]] + flat[-1:]
    is_static = all(template.is_static for template in templates)
    if is_static and len({template.num_examples for template in templates}) == 1:
      flat = list(flat[:-1]) + [templates[0].num_examples]
    may_be_empty = any(template.may_be_empty for template in templates)
    is_padded, *others = [template.is_padded for template in templates]
    put_op = None if feeds[0].stage is None else feeds[0].stage.put_ops[tower]
    batches.append(templates[0].replace(list(flat))._replace(
        may_be_empty=may_be_empty, is_padded=is_padded, pads_validation=any(others), put_op=put_op,
        sharding=join_shardings([template.sharding for template in templates])))
  return batches
