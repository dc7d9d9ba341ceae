"""Session: a program step by step, with nothing to remember between the steps.

  with program.session() as session:       variables started, or the chief's; input started
    while session.step < 10_000:
      loss = session.train()               takes a batch on every tower, updates, puts the next one
    print(session.validate())              the whole validation split, every metric as a mean
"""

import contextlib
import os
import time
from typing import Any, Callable, Dict, Optional, Sequence

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.forward import Forward, open_rows
from towers.graph.walk import find_needed
from towers.opened import Opened
from towers.placement.counters import get_global_step
from towers.training.faults.run_error import RunError
from towers.training.saving.files import INDEX, path_of
from towers.training.saving.lock import lock_folder
from towers.training.saving.weights import find_best
from towers.training.stepping.not_finite import NotFinite
from towers.training.stepping.startup import Startup
from towers.training.stepping.taken import find_taken, list_ops
from towers.warm_start.matching import Names


class Session(Opened):
  """A program in an open `tf.Session`, ready to train.

  Whatever is called, in whatever order, the staging areas stay as full as they were: nothing
  blocks, and no tower falls behind another.
  """

  def __enter__(self) -> 'Session':
    with contextlib.ExitStack() as closing, Startup(time.monotonic()) as startup:
      closing.enter_context(self.opened(startup))
      closing.enter_context(self.as_default())
      with self.explained():
        self.steps.broadcast()
        self.start(0)
      self._closing = closing.pop_all()
    return self

  def __exit__(self, *error: Any) -> None:
    self._closing.__exit__(*error)

  def __repr__(self) -> str:
    where = f'at step {self.step}' if self._opened else 'not open'
    return f'<towers.Session {where}, of {self.program!r}>'

  def train(self) -> float:
    """Updates the weights once; returns the mean loss over the global batch before the update.

    Raises:
      RunError: the loss or a gradient is NaN or infinite, also when the step is taken again. No
        variable has changed; the step counts as done, so that one may go on.
    """
    # No context: the less Python does between two runs, the fewer of the session's threads sleep.
    steps, watchdog = self._opened, self.watchdog
    if steps is None or self._warm_start is not None or self._training_moved:
      steps = self.make_ready()
    watched, watchdog.steps = watchdog.steps, steps
    try:
      return float(steps.train())
    except NotFinite:
      return self._take_again()
    except tf.errors.OpError as error:
      raise self._explain(error) from None
    finally:
      watchdog.steps = watched

  def _take_again(self):
    """Returns the loss of a step that was not finite, if it is on a second try."""
    with self._called() as steps:
      retried = steps.retry()
      if retried.is_done:
        return retried.loss
      steps.skip()
      raise RunError(f'Step {steps.step} is not finite: {retried.describe()}. It has changed no '
                     'variable. Lower the learning rate or clip the gradients; or catch this '
                     'error to go on with the next step.')

  def validate(self) -> Dict[str, float]:
    """Returns the mean of 'loss' and of each metric over the whole validation split.

    Raises:
      UsageError: the program has no validation examples.
    """
    if not self.steps.can_validate:
      raise UsageError('The program has nothing to validate on: give towers.Program the argument '
                       'validation.')
    with self._called() as steps:
      self._check_beside()
      measured = self.begin_pass()
      self._validation_moved = True  # Until all of it is measured.
      steps.validate(measured)
      self._validation_moved = False
    return measured.means()

  def metrics(self) -> Dict[str, float]:
    """Returns the means of 'loss' and of each metric over the training steps since the last call.

    They are over the examples of these steps, each with the weights before its update; {} without a
    step.
    """
    metrics, mark = self.steps.metrics, self._mark
    self._mark = metrics.mark()
    return metrics.since(mark)

  def evaluate(self, examples: Any, *, batch_size: Optional[int] = None) -> Dict[str, float]:
    """Returns the mean of 'loss' and of each metric over other examples, such as a third split.

    It is the same number on any towers. The weights are their averages if the program has any; the
    training goes on as if nothing had been asked. Each of several workers computes all by itself.

    Args:
      examples: `towers.Examples` in the structure of the training split; or what
        `towers.from_arrays` takes, one structure of arrays; or an iterator of batches of these.
      batch_size: rows at a time, of what does not come in batches; None for the program's.

    Raises:
      UsageError: the examples do not fit the model.
    """
    with self._forwarded(self.program.model, examples, batch_size, is_model=True) as (model, rows):
      return model.measure(rows)

  def predict(self, examples: Any, function: Callable[..., Any], *,
              batch_size: Optional[int] = None) -> Any:
    """Returns what a function computes of each example, in order, each once, on any towers.

      session.predict(images, lambda images: {'class': tf.argmax(net(images), 1)})

    Args:
      examples: as for `evaluate`; parts that the function does not take may be missing.
      function: of parts of a batch, `[n, ...]` each, to a tensor or a dict of tensors, `[n, ...]`,
        as `predict` of `towers.export`; it makes the model's variables by the same names.
      batch_size: rows at a time, of what does not come in batches; None for the program's.

    Returns:
      An array, or a dict of arrays, with a row for each example.

    Raises:
      UsageError: the function does not fit the examples, or has variables of its own.
    """
    with self._forwarded(function, examples, batch_size, is_model=False) as (model, rows):
      found = model.predict(rows)
    return found['output'] if list(found) == ['output'] else found

  def run(self, fetches: Any, feed_dict: Optional[Dict[Any, Any]] = None) -> Any:
    """Returns the values of `fetches`, any structure of tensors and ops of the graph.

    Where they need a batch, every tower takes its next one, and puts another. They only look at it:
    the next `train` takes the batch that it would have taken, at the cost of starting the input
    again. Where `feed_dict` feeds the program's `is_validating` True, the batch is of the
    validation split, and the weights are their averages if the program has any.

    Raises:
      UsageError: the fetches update the weights of a program that accumulates micro-batches.
    """
    program, validation = self.program, self.program.validation
    with self._called() as steps:
      taken = self._find_taken(fetches)
      switch = None if validation is None else validation.is_validating
      is_validating = switch is not None and bool((feed_dict or {}).get(switch, False))
      extra = []
      if taken.by_towers:
        feed = validation.feed if validation and is_validating else program.feed
        extra += [tensor.op for batch in program.batches
                  for tensor in tf.nest.flatten(batch.tensors)] + feed.put_ops
      if validation and taken.by_validation:
        self._check_beside()
        extra.append(validation.sums)
      if taken.updates:
        self.move_back()
      self._training_moved |= taken.by_towers and not is_validating and not taken.updates
      self._validation_moved |= is_validating or taken.by_validation
      measures = is_validating and not taken.updates
      with steps.averaged() if measures else contextlib.nullcontext():
        result = steps.session.run([fetches, extra], feed_dict)[0]
      if taken.updates:
        steps.step = int(steps.session.run(get_global_step()))
    return result

  def save(self, folder: str) -> str:
    """Saves all variables and counters as a checkpoint in `folder`; returns its path.

    With several workers all call it, and the chief writes.

    Raises:
      UsageError: the folder cannot be made, or a run saves there.
      RunError: it cannot be written.
    """
    with self._called() as steps:
      steps.check_replicas()
      if self.program.workers.rank != 0:
        return ''
      with lock_folder(folder), contextlib.closing(
          self.checkpoints_in(folder, stop_on_full_disk=True)) as saved:
        return saved.save(steps.session)

  def restore(self, folder: str, *, best: bool = False, best_metric: str = 'loss',
              map: Names = None, new: Sequence[str] = (), new_data: bool = False) -> str:
    """Restores a checkpoint, and goes on with the examples behind it; returns its path.

    With several workers all call it, and the chief's folder counts.

    Args:
      folder: whose newest checkpoint is taken; or the path of one checkpoint, as `save` returns it.
      best: whether to take that of the folder's best validation instead.
      best_metric: of the validations.
      map: from names in the checkpoint to names in the program, as `names` of `towers.init_from`;
        None in place of a name leaves a variable of the checkpoint behind. Its slots go along.
      new: patterns of the program's variables, and slots, that the checkpoint lacks or has in
        another shape: they keep their values, the initial ones in a new session.
      new_data: whether the training examples may differ from those that it was written on; its
        steps then count as steps on the new ones.

    Raises:
      UsageError: there is none, or it is of another program, other data or another batch size.
    """
    def choose():
      if self.program.workers.rank != 0:
        return None, None
      own, chosen = folder, None
      if best:
        chosen = path_of(folder, find_best(folder, best_metric))
      elif os.path.exists(folder + INDEX):
        own, chosen = os.path.dirname(folder) or '.', folder
      if not os.path.isdir(own):
        return None, None
      return self.checkpoints_in(own, names=map, new=new, new_data=new_data), chosen

    with self.explained():
      path = self.take_up(choose)
      if path is None:
        raise UsageError(f'There is no checkpoint in {folder}: name the folder that was saved to.')
      self.start(self.step)
    return path

  def _check_beside(self):
    if self._beside is not None and not self._beside.is_complete:
      raise UsageError('The validation tower is in the middle of a pass over the validation split, '
                       'which another would disturb: ask in on_validation, or use '
                       'validation=switch.')

  @contextlib.contextmanager
  def _forwarded(self, compute, examples, batch_size, *, is_model):
    """Opens a context with a function on towers beside the session, of its weights, and rows."""
    program = self.program
    rows_at_a_time = batch_size or program.plan.micro_batch_size
    with self._called('evaluate' if is_model else 'predict'), self.watchdog.paused(), \
        open_rows(examples, rows_at_a_time) as rows:
      key = (compute, rows.describe())
      held = self._forwards.get(is_model)
      if held is None or held[0] != key:
        if held is not None:
          self._forwards.pop(is_model)[1].close()
        held = self._forwards[is_model] = (key, Forward(
            compute, rows.template, devices=program.devices, is_model=is_model,
            variables=program.settings['variables'], precision=program.settings['precision']))
      held[1].load(self._read_weights)
      yield held[1], rows

  def _read_weights(self, names):
    """Returns the values of variables by name, averages of weights in their place."""
    averages, session = self.program.averages, self.steps.session
    with self.program.graph.as_default():
      variables = {variable.op.name: variable for variable in tf.global_variables()}
    others = sorted(set(names) - set(variables))
    if others:
      raise UsageError(f'{others[0]} is no variable of the program, so that it has no value: make '
                       'the variables by the same names as the model does.')
    with averages.in_place(session) if averages else contextlib.nullcontext():
      return dict(zip(names, session.run([variables[name] for name in names])))

  def _find_taken(self, fetches):
    """Returns which batches the fetches take."""
    ops = list_ops(self.program.graph, fetches)
    key = tuple(op.name for op in ops)
    if key not in self._taken:
      self._taken[key] = find_taken(self.program, find_needed(ops))
    return self._taken[key]
