"""Restore: a checkpoint's values become those of the program's variables, all of them or none; or
its weights become those of a graph that does not train.

                        variable                  in the checkpoint
  of a model            hidden/weights            hidden/weights
  of a partitioner      table/part_1              rows 4 to 7 of table, however that was cut
  of an optimizer       apply/beta1_power_1       apply/beta1_power, if its slots were of that

Checkpoints of another program are refused, unless the caller says what is new in it, and what has
another name. Averages of the weights may be turned on or off in the middle of a run: those that a
checkpoint lacks start from its weights, and those that the program lacks are left behind.

Which checkpoint is taken, and when an older one, is decided in `checkpoints`.

On other examples, the rest of the epoch would miss some and take others twice, and a validation
would measure on what another fold has learned from. So they are refused, unless the user says that
they are new: then all but the place in the data goes on.
"""

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from towers.base.output import write_line
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError, format_lines
from towers.data.digest import DATA_TENSOR, Digest
from towers.input.plan import Plan
from towers.input.resume_point import Order
from towers.placement.counters import get_examples_seen
from towers.placement.patterns import choose_all
from towers.tensorflow_v1 import Session, tf
from towers.update.moving_averages import AVERAGES_TENSOR, Averages, name_average
from towers.update.slots import MADE
from towers.warm_start.matching import Names, rename
from towers.warm_start.slices import Tensor, VariableSlice, find_slice, open_tensors, read_values
from towers.warm_start.warm_start import load_values

# Of the planned examples. If more are missing, the batch was probably another.
_MOST_SKIPPED = 0.1


class Data(NamedTuple):
  """The training examples of a run."""
  digest: Digest  # Of the examples.
  plan: Plan  # Which of them each step takes.
  order: Order  # In which they come.
  may_be_new: bool = False  # Whether a checkpoint of others is taken.
  may_skip: bool = False  # Whether steps leave out damaged ones.

  def compare(self, reader: Any, path: str) -> str:
    """Returns what differs in the examples of a checkpoint; '' also if it does not record them.

    If they may not differ, it is a UsageError.
    """
    saved = None
    if reader.has_tensor(DATA_TENSOR):
      saved = Digest.from_array(reader.get_tensor(DATA_TENSOR))
    difference = saved.explain_other(self.digest) if saved else ''
    if difference and not self.may_be_new:
      raise UsageError(
          f'The checkpoint {path} was written on other training data: {difference}. '
          'Resume with the data that it was written with, or give another checkpoint_dir; or, to '
          'go on with its weights, slots and step on the new data, give new_data=True.')
    return difference

  def begin_epoch(self, session: Session, path: str, step: int, difference: str) -> str:
    """Lets a checkpoint of other examples begin an epoch of these; returns a notice."""
    epoch, done = self.plan.epoch_and_index(step)
    epoch += done > 0
    load_values(session, {get_examples_seen(): np.int64(epoch * self.plan.examples_per_epoch)})
    return (f'new_data: {path} was written on other training data: {difference}. Weights, slots '
            f'and step stay, and an epoch of the new data begins, number {epoch + 1}')

  def check_steps(self, path: str, *, step: int, examples_seen: int) -> None:
    """Refuses by a UsageError a checkpoint whose steps had another size, if it does not say so.

    It is asked of those alone that do not record where the data stands, as earlier versions wrote.
    A step that skips damaged records sees fewer examples than planned. `may_skip` therefore accepts
    up to a tenth fewer, which also accepts a batch that is larger by so little, and never a smaller
    one.
    """
    planned = self.plan.examples_before(step)
    least = (1 - _MOST_SKIPPED) * planned if self.may_skip else planned
    if least <= examples_seen <= planned:
      return
    message = (f'The checkpoint {path} has seen {examples_seen} examples in {step} steps, but with '
               f'this data and batch_size={self.plan.batch_size} they would be {planned}. It does '
               'not record where the data stands, as those of earlier versions: resume once with '
               'the data, batch_size and last_batch that it was written with, after which any '
               'batch_size goes on; or give another checkpoint_dir.')
    if examples_seen < planned and not self.may_skip:
      message += ' If it skipped damaged records, resume with on_bad_record=skip.'
    raise UsageError(message)


def restore_variables(session: Session, path: str, *, averages: Optional[Averages] = None,
                      names: Names = None, new: Sequence[str] = (),
                      data: Optional[Data] = None) -> str:
  """Gives all global variables of the default graph, which are initialized, a checkpoint's values.

  The path is without file suffixes; `names` and `new` say how the checkpoint may differ, as `map`
  and `new` of `towers.Session.restore`, and `data` what the run trains on, None if it may be any.
  Returns what is new or left of averages, in words; ''.

  Raises:
    UsageError: the checkpoint holds other variables, or is of other data.
    Exception: it is damaged; TensorFlow raises anything. No variable has changed.
  """
  reader, tensors = open_tensors(path)
  sources = _find_sources(path, names, tensors)
  slices = {variable: find_slice(variable, sources) for variable in tf.global_variables()}
  _follow_slots(sources, {
      variable.op.name: piece.name in sources and _fits(tensors[sources[piece.name]], piece.tensor)
      for variable, piece in slices.items()}, tensors, reader, path)
  saved = {name: tensors[source] for name, source in sources.items()}
  averaged = set(averages.variables.values()) if averages else set()
  expected = {piece.name: piece.tensor for variable, piece in slices.items()
              if variable not in averaged}
  of_weights = {name_average(name) for name in expected} - set(expected)
  has_averages = not of_weights.isdisjoint(saved)
  if averages and has_averages:
    expected.update({slices[variable].name: slices[variable].tensor for variable in averaged})
  elif has_averages:
    saved = {name: tensor for name, tensor in saved.items() if name not in of_weights}
  kept = _choose_new(path, new, saved, expected, sources)
  saved = {name: tensor for name, tensor in saved.items() if name not in kept}
  # Before any tensor is read, so that a strange file never makes TensorFlow allocate its claims.
  check_same_variables(
      path, saved, {name: tensor for name, tensor in expected.items() if name not in kept},
      fix='Give the settings that it was written with, or another checkpoint_dir; or go on with '
          'the step and the slots of what both have, by {}.')
  if data is not None:
    data.compare(reader, path)

  started = read_values(reader.get_tensor, {
      variable: piece._replace(name=sources[piece.name]) for variable, piece in slices.items()
      if piece.name in saved})
  if averages and not has_averages:
    started.update({averages.variables[name]: started[weight]
                    for name, weight in averages.weights.items() if weight in started})
  load_values(session, started)
  if averages and not has_averages:
    return f'average_weights: {path} has no averages, so that they start from its weights'
  if has_averages and not averages:
    return f'average_weights is not set: the averages in {path} are left behind'
  return ''


def restore_weights(session: Session, path: str) -> None:
  """Gives the default graph's variables a checkpoint's weights, or their averages, and no more.

  A checkpoint of another model, or a damaged one, is a UsageError.
  """
  variables = tf.global_variables()
  try:
    reader, tensors = open_tensors(path)
    slices = {variable: find_slice(variable, tensors) for variable in variables}
    averages = {variable: name_average(variable.op.name) for variable in variables
                if name_average(variable.op.name) in tensors}
    if averages and not reader.has_tensor(AVERAGES_TENSOR):
      write_line(f'{min(averages.values())} in {path} is an average of the model itself, which '
                 'validation did not measure: the weights are taken. A variable of this name in '
                 'predict reads it.')
      averages = {}
    slices.update({variable: VariableSlice(name, Tensor(variable.shape, variable.dtype.base_dtype))
                  for variable, name in averages.items()})
    expected = {piece.name: piece.tensor for piece in slices.values()}
    check_same_variables(
        path, {name: tensor for name, tensor in tensors.items() if name in expected}, expected,
        fix='Give the settings that it was written with, or another checkpoint_dir.')
    load_values(session, read_values(reader.get_tensor, slices))
  except UsageError:
    raise
  except Exception as error:  # A damaged file makes TensorFlow raise anything.
    raise UsageError(f'{path} cannot be read: {find_reason(error)}. Put a copy that is whole '
                     'there.') from None


def _find_sources(path, names, tensors) -> Dict[str, str]:
  sources: Dict[str, str] = {}  # The name in the checkpoint of each name in the program.
  for name, (given, _) in rename(names, tensors, setting='map', path=path).items():
    if given in sources:
      raise UsageError(f'map gives {given} two tensors of {path}: {sources[given]} and {name}. Let '
                       'one of them lead to None.')
    sources[given] = name
  return sources


def _follow_slots(sources, fits, tensors, reader, path):
  """Lets an optimizer's own numbers, such as powers of beta, come from where its slots do.

  Their names tell the order of groups alone. `fits` says of each variable whether the checkpoint
  has it: an optimizer none of whose slots it has starts anew.
  """
  weights = tuple(f'{variable.op.name}/' for variable in tf.trainable_variables())
  others, untold, left = set(fits), [], []
  kinds: Dict[str, List[str]] = {}  # Of each, the names of those that go on.
  for key in tf.get_default_graph().get_all_collection_keys():
    made = [variable.op.name for variable in tf.get_collection(key) if key.startswith(MADE)]
    slots = {name for name in made if name.startswith(weights)}
    goes_on = any(fits[slot] for slot in slots)
    for name in [name for name in made if slots and name not in slots]:
      others.discard(name)
      kinds.setdefault(_split(name)[0], []).extend([name] * goes_on)
  for kind, names in kinds.items():
    saved = [sources.pop(name) for name in sorted(set(sources) - others, key=_split)
             if _split(name)[0] == kind]
    if names and len(saved) not in (0, len(names)):
      values = [tensors[name].shape.as_list() or reader.get_tensor(name) for name in saved]
      if any(isinstance(value, list) or value != values[0] for value in values):
        untold += [f'{name}: {value}' for name, value in zip(saved, values)]
        left += [f'{name + "$"!r}: None' for name in saved[1:] or saved]
      saved = saved[:1] * len(names)
    sources.update(zip(sorted(names, key=_split), saved))
  if untold:
    raise UsageError(
        f'The checkpoint {path} has own numbers of several optimizers, in the order of their '
        f'groups, and it cannot be told which go on here:\n{format_lines(untold)}\nLeave all but '
        f"one group's behind, as session.restore(folder, map={{{', '.join(left)}}}).")


def _split(name):
  """Returns a name without the number that TensorFlow appends, and the number."""
  kind, _, number = name.rpartition('_')
  return (kind, int(number)) if number.isdigit() else (name, 0)


def _choose_new(path, new, saved, expected, sources):
  """Returns the names under `new`; refuses one that the checkpoint has."""
  kept = set(choose_all('new', new, expected, what='variable of the program'))
  there = sorted(name for name in kept if name in saved and _fits(saved[name], expected[name]))
  if there:
    source = sources[there[0]]
    raise UsageError(f'new: {there[0]} goes on from {source} of {path}. Name what that lacks, as '
                     f'{there[0]}/ for the slots; or leave the value behind, by '
                     f'map={{{source + "$"!r}: None}}.')
  return kept


def check_same_variables(path: str, saved: Mapping[str, Any], expected: Mapping[str, Any], *,
                         fix: str) -> None:
  """Refuses a checkpoint whose `Tensor`s by name are not those that the program expects.

  The UsageError lists the differences, and ends in `fix`, with {} for the call that keeps the rest.
  """
  changed = [name for name in sorted(set(saved) & set(expected))
             if not _fits(saved[name], expected[name])]
  gone, new = sorted(set(saved) - set(expected)), sorted(set(expected) - set(saved))
  lines = []
  for name in changed:
    (shape, dtype), (other_shape, other_dtype) = saved[name], expected[name]
    names = ('', '') if dtype == other_dtype else (f' {dtype.name}', f' {other_dtype.name}')
    lines.append(f'{name}: {_show(shape)}{names[0]} in the checkpoint, '
                 f'{_show(other_shape)}{names[1]} in the program')
  lines += [f'only in the checkpoint: {name} {_show(saved[name][0])}' for name in gone]
  lines += [f'only in the program: {name} {_show(expected[name][0])}' for name in new]
  if lines:
    raise UsageError(f'The checkpoint {path} belongs to another model or optimizer:\n'
                     f'{format_lines(lines)}\n' +
                     fix.format(_format_call(changed + new, gone, {*saved, *expected})))


def _format_call(new, gone, names):
  """Returns the call that takes over what both have."""
  others = names.difference(new, gone)
  arguments = []
  if gone:
    left = ', '.join(f'{pattern!r}: None' for pattern in _shorten(gone, others))
    arguments.append(f'map={{{left}}}')
  if new:
    arguments.append(f'new={_shorten(new, others)!r}')
  return f"session.restore(folder, {', '.join(arguments)})"


def _shorten(names, others) -> List[str]:
  """Returns patterns that match names and not others; slots by the name of their variable."""
  patterns: List[str] = []
  for name in sorted(names):
    if not any(re.match(pattern, name) for pattern in patterns):
      pattern = name.replace('.', r'\.')
      is_wide = any(re.match(pattern, other) for other in others)
      patterns.append(pattern + '(/|$)' if is_wide else pattern)
  return patterns


def _fits(saved, expected) -> bool:
  return saved.shape.is_compatible_with(expected.shape) and saved.dtype == expected.dtype


def _show(shape):
  return 'of any shape' if shape.dims is None else str(shape.as_list())
