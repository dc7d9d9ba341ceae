"""The feed: staged batches of one or two splits become the one batch that each tower computes on.

  train       inputs ──► stage ──► get ─┐
                                        ├─ tf.cond(is_validating) ──► tower i
  validation  inputs ──► stage ──► get ─┘

What only one split may consume is created inside that split's branch: a `get` (or, without staging,
a `get_next`) outside of the branches would run in both, and lose a batch of the split that nobody
asked for. Likewise only the put of the split that is being taken is run.
"""

from typing import Any, List, NamedTuple, Optional, Sequence

from staging import Stage, build_stage
from tensorflow_v1 import tf
from towers.base.usage_error import check_same_number
from towers.input.batch import Batch
from towers.input.pipeline import Inputs
from towers.placement.host import HOST


class Feed(NamedTuple):
  """The way of one split to its towers.

  Attributes:
    inputs: the split's iterators.
    stage: the split's staging areas, or None where the towers take from the iterators directly.
    templates: for each tower the batch as it enters the stage: its structure and static shapes.
    devices: for each tower its device.
  """
  inputs: Inputs
  stage: Optional[Stage]
  templates: Sequence[Batch]
  devices: Sequence[str]

  @property
  def put_ops(self) -> List[Any]:
    """What every run that takes a batch of this split must run too: none without staging.

    The mean loss, the train op and the sums of a validation run it by themselves. It is for
    programs that fetch nothing but what a tower computes from its batch.
    """
    return [] if self.stage is None else self.stage.put_ops

  def start(self, session: Any, *, step: int = 0) -> None:
    """Starts the iterators so that `step` is the next one, and fills the staging areas; changes no
    variable.
    """
    clear = [] if self.stage is None else [self.stage.clear_op]
    session.run(clear + [self.inputs.initializer], self.inputs.feed_dict(step))
    if self.stage is not None:
      for _ in range(self.stage.depth):
        session.run(self.stage.fill_ops)


def build_feed(inputs: Inputs, *, devices: Sequence[str], staging_depth: int = 1) -> Feed:
  """Builds the staging areas between the iterators of a split and its towers; none with
  `staging_depth` 0.

  Raises:
    UsageError: there are more or fewer devices than the plan has towers.
  """
  check_same_number(inputs.plan.num_towers, f'towers in the plan of {inputs.name}', len(devices),
      'devices',
                    fix='build the plan for as many towers as there are devices.')
  if staging_depth == 0:
    # The get_next ops must stand inside the branch that takes them; these here only tell shapes and
    # are never run.
    return Feed(inputs, None, inputs.next_batches(), devices)
  batches = inputs.next_batches()
  # A number of examples that is known needs no way to the tower.
  tensors = [batch.flatten()[:-1] if batch.is_static else batch.flatten() for batch in batches]
  return Feed(inputs, build_stage(tensors, devices=devices, depth=staging_depth, name=inputs.name),
              batches, devices)


def build_batches(train: Feed) -> List[Batch]:
  """Returns for each tower its batch of the only split."""
  return _from_flat(_take(train), [train])


def build_switched_batches(train: Feed, validation: Feed, *, is_validating: Any) -> List[Batch]:
  """Returns for each tower its batch of the validation split while `is_validating` is fed True, of
  training otherwise.

  Args:
    train: the feed of the training split.
    validation: the feed of the validation split, over the same towers with the same staging depth.
    is_validating: a scalar bool tensor.

  Raises:
    UsageError: the feed_dict have other numbers of towers, or other structures.
  """
  names = [feed.inputs.name for feed in (train, validation)]
  check_same_number(len(train.devices), f'towers of the feed of {names[0]}',
                    len(validation.devices), f'towers of the feed of {names[1]}',
                    fix='towers that validate in turn need both; build the feed_dict for the same '
                        'devices.')
  check_same_number(_count_tensors(train), f'tensors in a batch of {names[0]}',
                    _count_tensors(validation), f'in one of {names[1]}',
                    fix='the model takes both; give both splits the same structure.')
  taken = []
  if train.stage is None or validation.stage is None:
    # One switch for all towers, since in `split` mode one get_next serves them all.
    with tf.device(HOST), tf.name_scope('switch'):
      flat = tf.cond(is_validating, lambda: sum(_take(validation), []),
                     lambda: sum(_take(train), []), strict=True)
    for batch in train.templates:
      size = len(batch.flatten())
      taken.append(flat[:size])
      flat = flat[size:]
  else:
    for tower, device in enumerate(train.devices):
      with tf.device(device), tf.name_scope(f'switch_{tower}'):
        taken.append(tf.cond(is_validating, lambda tower=tower: _take_staged(validation, tower),
                             lambda tower=tower: _take_staged(train, tower), strict=True))
  return _from_flat(taken, [train, validation])


def _count_tensors(feed):
  return len(tf.nest.flatten(feed.templates[0].tensors))


def _take(feed):
  """Builds, where it is called, the ops that take every tower's next batch, and returns flat lists
  of tensors.
  """
  if feed.stage is None:
    return [[tf.convert_to_tensor(value)
             for value in batch.flatten()]
            for batch in feed.inputs.next_batches()]
  taken = []
  for tower, device in enumerate(feed.devices):
    with tf.device(device):
      taken.append(_take_staged(feed, tower))
  return taken


def _take_staged(feed, tower):
  """Takes a tower's next batch out of its staging area, as a flat list."""
  taken, batch = feed.stage.get(tower), feed.templates[tower]
  return taken + [tf.constant(batch.num_examples)] if batch.is_static else taken


def _from_flat(taken, feed_dict):
  """Returns batches from flat tensors, with every static fact that holds in all splits."""
  batches = []
  for tower, flat in enumerate(taken):
    templates = [feed.templates[tower] for feed in feed_dict]
    if all(template.is_static for template in templates) and len(
        {batch.num_examples for batch in templates}) == 1:
      flat = list(flat[:-1]) + [templates[0].num_examples]
    may_be_empty = any(template.may_be_empty for template in templates)
    put_op = None if feed_dict[0].stage is None else feed_dict[0].stage.put_ops[tower]
    batches.append(templates[0].replace(list(flat))._replace(may_be_empty=may_be_empty,
                                                             put_op=put_op))
  return batches
